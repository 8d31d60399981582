"""Negatives in the course of a run: searched again now and then, handed to the objective, kept in checkpoints."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn

from restd.artifacts import open_artifact
from restd.artifacts.store import Writer
from restd.models import Backbone
from restd.progress import Notify
from restd.train.checkpoint import KIND, SCHEMA
from restd.train.negatives import Negatives, NegativeTable, Refresh
from restd.train.rank_objectives import RankObjective
from restd.train.reference import FOLDER, reference_in_place, with_log_probabilities, write_reference

if TYPE_CHECKING:
    from restd.train.loop import TrainingSet

_FILE = "negatives"


@dataclass(eq=False)
class Refresher:
    """Keeps the negatives of a ranking objective up to date.

    When it searches depends on the update alone, and what it finds on the weights. So a run that continues from a
    checkpoint has the negatives that it would have had.

    Args:
        search: finds negatives.
        backbone: the model that is trained.
        objective: what they are for.
        train: the training pairs.
        out: folder of the run, where a reference is kept.
        reference: score negatives by the log-probabilities of the model as it was at the first search.
        accelerator: of the run.
        notify: receives what a search found and what it cost.
    """

    search: Refresh
    backbone: Backbone
    objective: RankObjective
    train: "TrainingSet"
    out: Path
    reference: bool
    accelerator: Accelerator
    notify: Notify
    negatives: Negatives | None = None

    def before(self, update: int, module: nn.Module) -> None:
        """Search before an update where it is time; the module is in training mode again afterwards."""
        phase = self.objective.phase
        if not phase.searches(update):
            return
        begin = time.perf_counter()
        module.eval()
        with torch.random.fork_rng(devices=_devices(self.accelerator)):
            negatives = self.search(self.backbone, self.train, number=phase.number(update))
            if self.reference:
                negatives = self._against_reference(negatives, first=update == phase.start)
        module.train()
        self._take(self._agreed(negatives))
        counts = (negatives.items >= 0).sum(axis=1)
        self.notify(
            f"Before update {update + 1:,}: {np.count_nonzero(counts):,} of {len(counts):,} searched queries have "
            f"negatives, {counts.mean() if len(counts) else 0:.1f} each ({time.perf_counter() - begin:.0f} s)"
        )

    def _against_reference(self, negatives: Negatives, *, first: bool) -> Negatives:
        folder = self.out / FOLDER
        if first and self.accelerator.is_main_process:
            write_reference(folder, self.backbone)
        self.accelerator.wait_for_everyone()
        with reference_in_place(folder, self.backbone):
            device = self.accelerator.device
            return with_log_probabilities(negatives, self.backbone, self.train, self.objective.scores, device=device)

    def _agreed(self, negatives: Negatives) -> Negatives:
        """The first process's: a difference in the last bit must not give processes different negatives."""
        if self.accelerator.num_processes == 1:
            return negatives
        return Negatives(**broadcast_object_list([negatives.arrays()])[0])

    def _take(self, negatives: Negatives) -> None:
        self.negatives = negatives
        texts, device = len(self.train.pairs.texts), self.accelerator.device
        self.objective.table = NegativeTable.of(negatives, texts=texts, items=len(self.train.sids), device=device)

    def write(self, writer: Writer) -> None:
        """Add the negatives to a checkpoint that is being written."""
        if self.negatives is not None:
            writer.tensors(_FILE, self.negatives.arrays())

    def restore(self, checkpoint: Path) -> None:
        """Take the negatives of a checkpoint, where it has any."""
        artifact = open_artifact(checkpoint, kind=KIND, schema=SCHEMA)
        if f"{_FILE}.safetensors" in artifact.manifest.files:
            self._take(Negatives(**artifact.tensors(_FILE)))


def _devices(accelerator: Accelerator) -> list[int]:
    return [accelerator.device.index or 0] if accelerator.device.type == "cuda" else []
