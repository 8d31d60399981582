"""Writing the models of a run and their heads: the best so far while it trains, and what is kept at the end."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from restd.artifacts import open_artifact
from restd.artifacts.swap import replace_folder
from restd.data.pairs import Pairs
from restd.distill.heads import FOLDER as HEADS
from restd.errors import TrainingError
from restd.index import SidIndex
from restd.models import Backbone, route_texts
from restd.models.store import FOLDER, KIND, SCHEMA
from restd.train.checkpoint import TrainerState, backbone_state, write_heads, write_model
from restd.train.job import Job
from restd.train.loop import CHECKPOINT
from restd.train.module import TrainingModule
from restd.train.reference import FOLDER as REFERENCE

BEST, BEST_HEADS = "best", "best-heads"


@dataclass(frozen=True, slots=True, eq=False)
class ModelWriter:
    """Writes models; every process gathers weights, one writes.

    A run is finished when its model is there. So heads always come first: a run that is killed between the two writes
    both again.
    """

    job: Job
    index: SidIndex
    training_module: TrainingModule
    valid: Pairs
    identity: str
    write: bool

    def save_best(self, module: nn.Module, state: TrainerState) -> None:
        """Save the best model so far and its heads beside the run."""
        self._write_heads(self.job.out / BEST_HEADS, state)
        self._write(self.job.out / BEST, module, state)

    def finish(self, module: nn.Module, state: TrainerState) -> dict[str, Any]:
        """Save the model of a finished run, and delete what only a running one needs; returns its summary."""
        out, summary = self.job.out, {}
        if self.job.config.train.keep == "last":
            self._write_heads(out / HEADS, state)
            summary = self._write(out / FOLDER, module, state)
        elif state.best is None:
            raise TrainingError(
                f"No validation of the run in {out} gave a number, so there is no best model to keep: every one was "
                "NaN. Lower train.lr, check the validation queries, or set train.keep=last."
            )
        elif self.write:
            summary = open_artifact(out / BEST, kind=KIND, schema=SCHEMA).manifest.settings["summary"]
            if (out / BEST_HEADS).is_dir():  # gone where the run was killed right after this
                replace_folder(out / BEST_HEADS, out / HEADS)
            replace_folder(out / BEST, out / FOLDER)
        if self.write:
            for name in (CHECKPOINT, REFERENCE, BEST, BEST_HEADS):
                shutil.rmtree(out / name, ignore_errors=True)
        return summary

    def _write_heads(self, folder: Path, state: TrainerState) -> None:
        if "trajectory" in self.training_module.objectives:
            layout, update = self.index.layout(), state.update
            write_heads(
                folder, self.training_module, layout=layout, identity=self.identity, update=update, write=self.write
            )

    def _write(self, folder: Path, module: nn.Module, state: TrainerState) -> dict[str, Any]:
        weights, backbone = backbone_state(module), self.training_module.backbone
        summary = {"updates": state.update, "validation": state.best}
        width = self.job.config.category.width
        if backbone.routes:
            summary[f"category_recall@{width}"] = category_recall(backbone, self.valid, width=width)
        settings = {
            "layout": self.index.layout(),
            "index_generation": self.index.generation,
            "told": self.job.settings(),
            "identity": self.identity,
            "summary": summary,
        }
        if self.write:
            parents = self.job.parents()
            write_model(folder, backbone, weights, ids=self.index.table.ids, settings=settings, parents=parents)
        return summary


def category_recall(backbone: Backbone, pairs: Pairs, *, width: int) -> float:
    """Share of a query's positives inside its `width` likeliest categories, averaged over queries, in percent.

    It is an upper bound for a search that is restricted to those categories.
    """
    routes = route_texts(backbone, [str(text) for text in pairs.texts[: pairs.queries]], width=width)
    assert backbone.categories is not None
    inside = (backbone.categories.of_item[pairs.item, -1][:, None] == routes[pairs.text]).any(axis=1)
    reachable = np.bincount(pairs.text, weights=inside, minlength=pairs.queries)
    return float(100 * (reachable / np.bincount(pairs.text, minlength=pairs.queries)).mean())
