"""Writing the models of a run: the best so far while it trains, and the one that is kept at the end."""

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
from restd.index import SidIndex
from restd.models import Backbone, route_texts
from restd.models.store import FOLDER, KIND, SCHEMA
from restd.train.checkpoint import TrainerState, backbone_state, write_heads, write_model
from restd.train.job import Job
from restd.train.loop import CHECKPOINT
from restd.train.module import TrainingModule

BEST = "best"


@dataclass(frozen=True, slots=True, eq=False)
class ModelWriter:
    """Writes models; every process gathers weights, one writes."""

    job: Job
    index: SidIndex
    backbone: Backbone
    valid: Pairs
    identity: str
    write: bool

    def save_best(self, module: nn.Module, state: TrainerState) -> None:
        """Save the best model so far beside the run."""
        self._write(self.job.out / BEST, module, state)

    def finish(self, module: nn.Module, state: TrainerState, training_module: TrainingModule) -> dict[str, Any]:
        """Save the model of a finished run, and delete what only a running one needs; returns its summary."""
        out, train = self.job.out, self.job.config.train
        if train.keep == "last":
            summary = self._write(out / FOLDER, module, state)
        elif self.write:
            summary = open_artifact(out / BEST, kind=KIND, schema=SCHEMA).manifest.settings["summary"]
            replace_folder(out / BEST, out / FOLDER)
        else:
            summary = {}
        if "trajectory" in training_module.objectives:
            write_heads(out / HEADS, training_module, layout=self.index.layout(), write=self.write)
        if self.write:
            for name in (CHECKPOINT, BEST):
                shutil.rmtree(out / name, ignore_errors=True)
        return summary

    def _write(self, folder: Path, module: nn.Module, state: TrainerState) -> dict[str, Any]:
        weights = backbone_state(module)
        summary = {"updates": state.update, "validation": state.best}
        width = self.job.config.category.width
        if self.backbone.routes:
            summary[f"category_recall@{width}"] = category_recall(self.backbone, self.valid, width=width)
        settings = {
            "layout": self.index.layout(),
            "told": self.job.settings(),
            "identity": self.identity,
            "summary": summary,
        }
        if self.write:
            parents = self.job.parents()
            write_model(folder, self.backbone, weights, ids=self.index.table.ids, settings=settings, parents=parents)
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
