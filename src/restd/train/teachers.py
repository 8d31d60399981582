"""Teachers by name: what an objective compares the model with, built from the residual teacher of the index."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from restd.data.pairs import Pairs
from restd.distill import (
    FutureHardTeacher,
    HardTeacher,
    MeanTeacher,
    PermutedTeacher,
    ResidualTeacher,
    Teacher,
    TrieTeacher,
    code_mean,
    codebook_only,
    entropy_shuffle,
    shape_swap,
    shuffled,
)
from restd.index import SidIndex
from restd.progress import Notify


@dataclass(frozen=True, slots=True, eq=False)
class TeacherContext:
    """What a teacher may be built from, besides the residual teacher."""

    index: SidIndex
    pairs: Pairs
    """Training pairs; controls draw from the items they name."""
    seed: int
    horizon: int
    """Offsets that are supervised."""
    notify: Notify
    device: torch.device

    @property
    def train_items(self) -> Tensor:
        """Rows of the items that training queries name."""
        return torch.from_numpy(self.pairs.items).to(self.device)


def _shape_swap(residual: ResidualTeacher, context: TeacherContext) -> Teacher:
    teacher, quality = shape_swap(residual, context.train_items)
    context.notify(
        f"Shape matching: median |ΔH| {quality.entropy_gap:.4f} nats, |Δq_y| {quality.stored_gap:.4f}, "
        f"L1 {quality.shape_median:.4f} (P90 {quality.shape_p90:.4f}), coverage {quality.coverage:.2%}"
    )
    return teacher


def _mean(residual: ResidualTeacher, context: TeacherContext) -> Teacher:
    text, item = (torch.from_numpy(column).to(context.device) for column in (context.pairs.text, context.pairs.item))
    return MeanTeacher.of(residual, text, item)


TEACHERS: Mapping[str, Callable[[ResidualTeacher, TeacherContext], Teacher]] = {
    "residual": lambda residual, context: residual,
    "hard": lambda residual, context: HardTeacher(residual.geometry),
    "future-hard": lambda residual, context: FutureHardTeacher(residual, context.horizon),
    "shuffled": lambda residual, context: shuffled(residual, context.train_items, seed=context.seed),
    "codebook-only": lambda residual, context: codebook_only(residual),
    "code-mean": lambda residual, context: code_mean(residual, context.train_items),
    "entropy-shuffle": lambda residual, context: entropy_shuffle(residual, context.train_items),
    "permutation": lambda residual, context: PermutedTeacher(residual, context.seed),
    "shape-swap": _shape_swap,
    "mean": _mean,
    "trie": lambda residual, context: TrieTeacher(residual, context.index.trie.to(context.device)),
}
