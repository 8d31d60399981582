"""Objectives by name: which teacher, which horizon, which part of the model it supervises."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from restd.distill import (
    FutureHardTeacher,
    HardTeacher,
    MeanTeacher,
    OutputDistiller,
    PermutedTeacher,
    ResidualDistiller,
    ResidualTeacher,
    Teacher,
    TrieTeacher,
    code_mean,
    codebook_only,
    entropy_shuffle,
    shape_swap,
    shuffled,
)
from restd.distill.distiller import AuxiliaryConfig, DistillLog
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.models import AnyBackbone, CalirBackbone
from restd.train.categories import CategoryObjective
from restd.train.config import RunConfig
from restd.train.examples import Pairs
from restd.train.module import Batch, Forward

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """An objective beside the generation loss."""

    says: str
    teacher: str = "residual"
    horizon: int | None = None
    """Offsets; unset, as many as [distill] says."""
    output: Literal["full", "nontarget"] | None = None
    """Supervises the retriever's own logits."""
    heads: bool = True
    """Supervises horizon heads."""


OBJECTIVES: dict[str, Recipe | None] = {
    "base": None,
    "rbd": Recipe("the residual's preference at the current level", horizon=1),
    "restd": Recipe("the residual's preferences at the current and later levels"),
    "restd-h2": Recipe("the same, one level ahead", horizon=2),
    "rbd-future-hard": Recipe("preferences now, stored codes later", teacher="future-hard"),
    "hard": Recipe("stored codes only", teacher="hard"),
    "shuffled": Recipe("another item's preferences", teacher="shuffled"),
    "full-output-kd": Recipe("preferences, on the retriever's own logits", output="full", heads=False),
    "nontarget-output": Recipe(
        "preferences among the other codes, on the retriever's own logits", output="nontarget", heads=False
    ),
    "codebook-only": Recipe("distances between codewords", teacher="codebook-only"),
    "code-mean": Recipe("the mean preference of items with the same code", teacher="code-mean"),
    "entropy-shuffle": Recipe("another item's, of the same code and entropy", teacher="entropy-shuffle"),
    "nontarget-permutation": Recipe("preferences with the other codes dealt out anew", teacher="permutation"),
    "shape-swap": Recipe("those of the item most alike in shape", teacher="shape-swap"),
    "restd-mean": Recipe("the mean over a query's positives (beyond the paper)", teacher="mean"),
    "restd-trie": Recipe("preferences among codes the catalogue can follow (beyond the paper)", teacher="trie"),
    "restd-output": Recipe("preferences, on heads and on the retriever's own logits (beyond the paper)", output="full"),
    "output-mean": Recipe(
        "the mean over a query's positives, on the retriever's own logits (beyond the paper)",
        teacher="mean",
        output="full",
        heads=False,
    ),
}


def recipe_named(name: str) -> Recipe | None:
    """Look an objective up; an unknown name is an error that lists them."""
    if name not in OBJECTIVES:
        raise ConfigError(f"Objective {name!r} is unknown; wanted one of {', '.join(OBJECTIVES)}.")
    return OBJECTIVES[name]


class TrajectoryObjective(nn.Module):
    """The trajectory loss of horizon heads."""

    def __init__(self, distiller: ResidualDistiller) -> None:
        super().__init__()
        self.distiller = distiller

    def forward(self, batch: Batch, found: Forward, *, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss to be added, and its parts."""
        levels = self.distiller.teacher.geometry.levels  # a disambiguation code has no teacher
        states = found.output.states[:, :levels]
        loss = self.distiller(states, batch.rows, sid_loss=found.sid_loss, step=step, queries=batch.queries)
        return loss, _said(self.distiller.last)


class OutputObjective(nn.Module):
    """A divergence of the retriever's own logits from the teacher."""

    def __init__(self, distiller: OutputDistiller, *, prefix: str = "") -> None:
        super().__init__()
        self.distiller = distiller
        self.prefix = prefix

    def forward(self, batch: Batch, found: Forward, *, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss to be added, and its parts."""
        levels, codes = self.distiller.teacher.geometry.code_mask.shape
        logits = found.backbone.logits(found.output.states[:, :levels])[:, :, :codes]
        loss = self.distiller(logits, batch.rows, sid_loss=found.sid_loss, step=step, queries=batch.queries)
        return loss, _said(self.distiller.last, prefix=self.prefix)


def _said(log: DistillLog | None, *, prefix: str = "") -> dict[str, Tensor]:
    """What the log of an update has of a distiller; a prefix tells two of them apart."""
    assert log is not None
    asked = log.divergence.new_tensor(log.asked)
    parts = {"kl": log.divergence, "weight": log.weight, "capped": (log.weight < asked).float()}
    return {f"{prefix}{name}": value for name, value in parts.items()}


def make_objectives(
    config: RunConfig,
    index: SidIndex,
    pairs: Pairs,
    backbone: AnyBackbone,
    *,
    total: int,
    joint: bool,
    device: torch.device,
    tell: Tell,
) -> dict[str, nn.Module]:
    """Everything beside the generation loss: CaLIR's own losses, and the objective of this name.

    Args:
        config: names the objective and its settings.
        index: holds residuals.
        pairs: training pairs; controls look at the items they name.
        backbone: whose states are supervised.
        total: updates of the run, for warm-ups given as a share.
        joint: whether the objective is there from the start of base training.
        device: where the states will be.
        tell: hears what a control replaced.
    """
    parts: dict[str, nn.Module] = {}
    if isinstance(backbone, CalirBackbone):
        parts["category"] = CategoryObjective(backbone, pairs, config.category)
    recipe = recipe_named(config.objective)
    if recipe is None:
        return parts
    default = AuxiliaryConfig(weight=0.02, cap=0.01) if recipe.output == "nontarget" else AuxiliaryConfig()
    auxiliary = config.distill.auxiliary(default, total=total, joint=joint)
    levels = index.geometry()[1].values.shape[0]
    settings = config.distill.config(levels=levels, horizon=recipe.horizon, auxiliary=auxiliary)
    distiller = ResidualDistiller.of_index(index, width=backbone.width, config=settings, device=device)
    base = distiller.teacher
    assert isinstance(base, ResidualTeacher)
    teacher = _teacher(recipe.teacher, base, index, pairs, seed=config.distill.seed, tell=tell)
    if recipe.teacher != "residual":
        tell(f"Objective {config.objective}: {teacher.replaced:.1%} of the item-level targets are replaced")
    if recipe.heads:
        distiller.teacher = teacher
        parts["trajectory"] = TrajectoryObjective(distiller)
    if recipe.output is not None:
        own = config.distill.output_weight
        weights = auxiliary if own is None else replace(auxiliary, weight=own)
        held = OutputDistiller(teacher, kind=recipe.output, config=weights)
        parts["output"] = OutputObjective(held, prefix="output_" if recipe.heads else "")
    return parts


def _teacher(name: str, base: ResidualTeacher, index: SidIndex, pairs: Pairs, *, seed: int, tell: Tell) -> Teacher:
    device = base.geometry.latents.device
    train = torch.from_numpy(pairs.items).to(device)
    if name == "shape-swap":
        teacher, quality = shape_swap(base, train)
        tell(
            f"Shape matching: median |ΔH| {quality.entropy_gap:.4f} nats, |Δq_y| {quality.stored_gap:.4f}, "
            f"L1 {quality.shape_median:.4f} (P90 {quality.shape_p90:.4f}), coverage {quality.coverage:.2%}"
        )
        return teacher
    text, item = (torch.from_numpy(values).to(device) for values in (pairs.text, pairs.item))
    makers: dict[str, Callable[[], Teacher]] = {
        "residual": lambda: base,
        "hard": lambda: HardTeacher(base.geometry),
        "future-hard": lambda: FutureHardTeacher(base),
        "shuffled": lambda: shuffled(base, train, seed=seed),
        "codebook-only": lambda: codebook_only(base),
        "code-mean": lambda: code_mean(base, train),
        "entropy-shuffle": lambda: entropy_shuffle(base, train),
        "permutation": lambda: PermutedTeacher(base, seed),
        "mean": lambda: MeanTeacher.of(base, text, item),
        "trie": lambda: TrieTeacher(base, index.trie.to(device)),
    }
    return makers[name]()
