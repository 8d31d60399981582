"""Objectives by name: what supervises the model besides its generation loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import nn

from restd.data.pairs import Pairs
from restd.distill import (
    NONTARGET_CAP,
    NONTARGET_WEIGHT,
    AuxiliaryConfig,
    OutputDistiller,
    ResidualDistiller,
    ResidualTeacher,
)
from restd.index import SidIndex
from restd.models import Backbone
from restd.progress import Notify
from restd.registry import Registry
from restd.train.config import RunConfig
from restd.train.distill_objectives import ExtraObjective, OutputObjective, TrajectoryObjective
from restd.train.rank_objectives import RANK_LOSSES, CodeScores, RankObjective
from restd.train.teachers import TEACHERS, TeacherContext


@dataclass(frozen=True, slots=True, eq=False)
class ObjectiveContext:
    """What an objective may be built from.

    Args:
        config: the run's settings.
        index: the index that is trained for; its residuals make the teacher.
        pairs: training pairs; controls look at the items they name.
        backbone: the model whose states are supervised.
        total: updates of the run, for warm-ups given as a share.
        per_epoch: updates of an epoch, for negatives that are searched anew.
        joint: whether the objective is there from the start of base training.
        device: where the states will be.
        notify: receives what a control replaced.
    """

    config: RunConfig
    index: SidIndex
    pairs: Pairs
    backbone: Backbone
    total: int
    per_epoch: int
    joint: bool
    device: torch.device
    notify: Notify


def build_nothing(spec: "ObjectiveSpec", context: ObjectiveContext) -> dict[str, nn.Module]:
    """The generation loss alone."""
    return {}


def build_distillation(spec: "ObjectiveSpec", context: ObjectiveContext) -> dict[str, nn.Module]:
    """Distillation of a teacher into horizon heads, into the model's own logits, or both."""
    assert spec.teacher is not None
    config, index = context.config.distill, context.index
    nontarget = AuxiliaryConfig(weight=NONTARGET_WEIGHT, cap=NONTARGET_CAP)
    default = nontarget if spec.output == "nontarget" else AuxiliaryConfig()
    auxiliary = config.auxiliary(default, total=context.total, joint=context.joint)
    levels = index.latents_and_codebooks()[1].levels
    settings = config.config(levels=levels, horizon=spec.horizon, auxiliary=auxiliary)
    distiller = ResidualDistiller.of_index(index, width=context.backbone.width, config=settings, device=context.device)
    residual = distiller.teacher
    assert isinstance(residual, ResidualTeacher)
    device = residual.geometry.latents.device
    teaching = TeacherContext(index, context.pairs, config.seed, distiller.horizon, context.notify, device)
    teacher = TEACHERS[spec.teacher](residual, teaching)
    if spec.teacher != "residual":
        context.notify(f"Objective {spec.name}: {teacher.replaced:.1%} of the item-level targets are replaced")
    modules: dict[str, nn.Module] = {}
    if spec.heads:
        distiller.teacher = teacher
        modules["trajectory"] = TrajectoryObjective(distiller)
    if spec.output is not None:
        weight = config.output_weight
        weights = auxiliary if weight is None else replace(auxiliary, weight=weight)
        output = OutputDistiller(teacher, kind=spec.output, config=weights)
        modules["output"] = OutputObjective(output, prefix="output_" if spec.heads else "")
    return modules


def build_ranking(spec: "ObjectiveSpec", context: ObjectiveContext) -> dict[str, nn.Module]:
    """A ranking loss over negatives of the model's own beam."""
    config = context.config
    settings, trie = config.rank, None
    if config.train.loss_norm == "trie_children":  # scores of other codes are not trained
        trie = context.index.trie.to(context.device)
    scores = CodeScores(logits=spec.name == "ripor" and settings.scores == "logit", trie=trie)
    phase = settings.phase(total=context.total, per_epoch=context.per_epoch)
    sids = torch.from_numpy(context.index.sids.astype(np.int64)).to(context.device)
    return {"rank": RankObjective(RANK_LOSSES[spec.name], settings, phase, sids, scores)}


@dataclass(frozen=True, slots=True)
class ObjectiveSpec:
    """An entry of `OBJECTIVES`.

    Args:
        name: name of the objective.
        summary: one sentence that says what the model learns from.
        build: builds its modules, each called as `restd.train.module.Objective`; `trajectory` has horizon heads, which
            are saved beside the model.
        teacher: name in `TEACHERS`; None for an objective without one, which does not need the index's residuals.
        horizon: offsets that the heads supervise; unset, as many as [distill] says.
        output: supervises the retriever's own logits: over all codes, or over the codes that are not stored.
        heads: supervises horizon heads.
        refresh: what it compares the positives with: `negatives` of the model's own beam, the same with scores of a
            teacher (`teacher`), or with log-probabilities of the model at the first search (`reference`); None for an
            objective that needs no search.
        source: the paper it comes from.
    """

    name: str
    summary: str
    build: "Callable[[ObjectiveSpec, ObjectiveContext], Mapping[str, nn.Module]]" = build_distillation
    teacher: str | None = "residual"
    horizon: int | None = None
    output: Literal["full", "nontarget"] | None = None
    heads: bool = True
    refresh: Literal["negatives", "teacher", "reference"] | None = None
    source: str = ""


OBJECTIVES: Registry[ObjectiveSpec] = Registry("objective", group="objectives")
"""Every objective that is installed; `restd list objectives` prints it."""

for _spec in (
    ObjectiveSpec("base", "Generation loss only.", build_nothing, teacher=None, heads=False),
    ObjectiveSpec("rbd", "The residual's preferences at the current level.", horizon=1),
    ObjectiveSpec("restd", "The residual's preferences at the current and later levels."),
    ObjectiveSpec("restd-h2", "The residual's preferences at the current and the next level.", horizon=2),
    ObjectiveSpec("rbd-future-hard", "Preferences at the current level, stored codes later.", teacher="future-hard"),
    ObjectiveSpec("hard", "Stored codes only.", teacher="hard"),
    ObjectiveSpec("shuffled", "Another item's preferences.", teacher="shuffled"),
    ObjectiveSpec("full-output-kd", "Preferences, on the retriever's own logits.", output="full", heads=False),
    ObjectiveSpec(
        "nontarget-output",
        "Preferences among the codes that are not stored, on the retriever's own logits.",
        output="nontarget",
        heads=False,
    ),
    ObjectiveSpec("codebook-only", "Distances between codewords, without the item.", teacher="codebook-only"),
    ObjectiveSpec("code-mean", "The mean preferences of the items with the same code.", teacher="code-mean"),
    ObjectiveSpec(
        "entropy-shuffle",
        "Preferences of another item with the same code and a similar entropy.",
        teacher="entropy-shuffle",
    ),
    ObjectiveSpec(
        "nontarget-permutation", "Preferences with the codes that are not stored permuted.", teacher="permutation"
    ),
    ObjectiveSpec("shape-swap", "Preferences of the item most alike in shape.", teacher="shape-swap"),
    ObjectiveSpec("restd-mean", "The mean over a query's positives (beyond the paper).", teacher="mean"),
    ObjectiveSpec(
        "restd-trie",
        "Preferences among the codes that the catalogue continues with (beyond the paper).",
        teacher="trie",
    ),
    ObjectiveSpec(
        "restd-output", "Preferences, on heads and on the retriever's own logits (beyond the paper).", output="full"
    ),
    ObjectiveSpec(
        "output-mean",
        "The mean over a query's positives, on the retriever's own logits (beyond the paper).",
        teacher="mean",
        output="full",
        heads=False,
    ),
    ObjectiveSpec(
        "ltrgr",
        "Positives ahead of the model's own beam by a margin.",
        build_ranking,
        teacher=None,
        heads=False,
        refresh="negatives",
        source="Li et al. 2024, Learning to Rank in Generative Retrieval",
    ),
    ObjectiveSpec(
        "ripor",
        "Prefixes of positives and of the model's own beam as far apart as a teacher's scores.",
        build_ranking,
        teacher=None,
        heads=False,
        refresh="teacher",
        source="Zeng et al. 2024, Scalable and Effective Generative Information Retrieval",
    ),
    ObjectiveSpec(
        "ddro",
        "Positives preferred to the model's own beam, more than at the beginning.",
        build_ranking,
        teacher=None,
        heads=False,
        refresh="reference",
        source="Mekonnen et al. 2025, Lightweight and Direct Document Relevance Optimization for Generative "
        "Information Retrieval",
    ),
):
    OBJECTIVES.add(_spec)


def make_objectives(context: ObjectiveContext) -> dict[str, nn.Module]:
    """Everything besides the generation loss: the backbone's own losses, and the objective that the run names."""
    modules: dict[str, nn.Module] = {}
    extra = context.backbone.extra_loss(context.pairs, context.config.category)
    if extra is not None:
        modules["extra"] = ExtraObjective(extra)
    spec = OBJECTIVES[context.config.objective]
    return {**modules, **spec.build(spec, context)}
