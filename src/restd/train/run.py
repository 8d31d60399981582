"""From an index and judgments to a trained model: what `restd train` does."""

import json
import logging
import os
import platform
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from restd.artifacts import open_artifact, sole_writer
from restd.artifacts.manifest import MANIFEST, recorded_versions
from restd.artifacts.swap import replace_folder
from restd.distill import HorizonHeads
from restd.distill.heads import FOLDER as HEADS
from restd.errors import ArtifactError, ConfigError
from restd.index import SidIndex
from restd.models import AnyBackbone, CalirBackbone, route_texts
from restd.models.store import FOLDER, KIND, SCHEMA
from restd.train.checkpoint import Standing, backbone_state, write_heads, write_model
from restd.train.examples import Pairs, item_texts, read_examples
from restd.train.job import CACHE, Job, Tell, find_backbone, open_catalog, prepare_texts
from restd.train.log import LOG
from restd.train.loop import CHECKPOINT, Loop, TrainingSet, Validate
from restd.train.module import Trainee
from restd.train.objectives import make_objectives, recipe_named

logger = logging.getLogger(__name__)

BEST = "best"
RUN = "run.json"
_HEADS = 4
_OURS = (FOLDER, CHECKPOINT, BEST, HEADS, CACHE, RUN, LOG, ".lock", "rates.json", "rates")


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run left: the model's folder, and what there is to say of it."""

    folder: Path
    summary: dict[str, Any]


def train_retriever(job: Job, *, tell: Tell = logger.info, validate: Validate | None = None) -> Trained:
    """Train a retriever, or go on where an interrupted run of the same settings stopped.

    Early stopping looks at the generation loss of validation pairs, or at whatever `validate` returns; where
    `train.select` asks for a ranking, only someone who can rank may say (`restd.evaluate.ranked_validation`).
    """
    if job.config.train.select != "loss" and validate is None:
        raise ConfigError(
            f"train.select = {job.config.train.select} judges rankings, which training itself cannot make; pass "
            "validate=restd.evaluate.ranked_validation(job), or set train.select=loss."
        )
    recipe = recipe_named(job.config.objective)
    index = SidIndex.load(job.index)
    if recipe is not None:
        index.geometry()  # refuses an index without residuals before anything costly is done
    accelerator = _accelerator(job)
    if not accelerator.is_main_process:
        return _trained(job, index, accelerator, _silent, validate)
    _refuse_foreign(job.out)
    job.out.mkdir(parents=True, exist_ok=True)
    with sole_writer(job.out):
        return _trained(job, index, accelerator, tell, validate)


def _silent(sentence: str) -> None:
    """Another process says it."""


def _trained(job: Job, index: SidIndex, accelerator: Accelerator, tell: Tell, validate: Validate | None) -> Trained:
    identity = job.identity(processes=accelerator.num_processes)
    if (summary := _finished(job.out, identity)) is not None:
        tell(f"Kept the model in {job.out / FOLDER}: nothing has changed since it was trained")
        return Trained(job.out / FOLDER, summary)
    loop, keeper = _prepared(job, index, accelerator, identity, tell, validate)
    if accelerator.is_main_process:
        _write_run(job, identity, accelerator)
    standing = loop.run()
    summary = keeper.keep(loop.module, standing, loop.trainee)
    accelerator.wait_for_everyone()  # nobody goes on before the model is there
    for tracker in accelerator.trackers:
        tracker.finish()
    return Trained(job.out / FOLDER, summary)


def make_loop(job: Job, *, tell: Tell = logger.info) -> Loop:
    """The loop of a run that is not to be finished: for those who time its updates."""
    accelerator = _accelerator(job)
    identity = job.identity(processes=accelerator.num_processes)
    return _prepared(job, SidIndex.load(job.index), accelerator, identity, tell, None)[0]


def _prepared(
    job: Job, index: SidIndex, accelerator: Accelerator, identity: str, tell: Tell, validate: Validate | None
) -> "tuple[Loop, _Keeper]":
    """Everything a run needs before its first update."""
    pairs, valid, said = read_examples(job.data, index, task=job.task)
    for sentence in said:
        tell(sentence)
    valid = valid.some(job.config.train.judged)
    with accelerator.main_process_first():
        if job.config.train.pairs_per_item:
            pairs = pairs.at_most(job.config.train.pairs_per_item)
        backbone = find_backbone(job, index, pairs, tell)
        pairs = _with_indexing(job, index, pairs)
        sids = torch.from_numpy(index.sids.astype(np.int64))
        train, held_out = (
            TrainingSet(part, prepare_texts(job, backbone, part, index, tell), sids) for part in (pairs, valid)
        )
    own, asked = len(pairs.texts) - pairs.queries, "queries" if job.task == "search" else "histories"
    tell(
        f"{len(pairs) - own:,} pairs of {pairs.queries:,} {asked}{f', {own:,} items' if own else ''}; "
        f"{len(valid):,} pairs of {valid.queries:,} {asked} to validate"
    )
    trainee = _trainee(job, index, pairs, backbone, accelerator, tell)
    keeper = _Keeper(job, index, backbone, valid, identity, write=accelerator.is_main_process)
    loop = Loop(
        trainee, train, held_out, job.config.train, job.out, identity, accelerator, tell, keeper.keep_best, validate
    )
    return loop, keeper


def _with_indexing(job: Job, index: SidIndex, pairs: Pairs) -> Pairs:
    what = job.config.train.indexing
    if what == "none":
        return pairs
    if job.task == "recommend":
        raise ConfigError("A recommender does not read items' texts; leave train.indexing at none.")
    return pairs.with_items(*item_texts(open_catalog(job.data, index), index, what=what))


def _trainee(
    job: Job, index: SidIndex, pairs: Pairs, backbone: AnyBackbone, accelerator: Accelerator, tell: Tell
) -> Trainee:
    config = job.config
    total = config.train.updates or config.train.epochs * -(-len(pairs) // config.train.batch)
    objectives = make_objectives(
        config, index, pairs, backbone, total=total, joint=job.init is None, device=accelerator.device, tell=tell
    )
    idle = None
    if config.train.idle_heads and "trajectory" not in objectives:
        dim = index.geometry()[1].dim
        idle = HorizonHeads(backbone.width, dim, horizon=_HEADS, seed=config.distill.seed)
    return Trainee(backbone, objectives, idle=idle)


def _accelerator(job: Job) -> Accelerator:
    config = job.config.train
    precision = {"float32": "no", "bf16": "bf16", "fp16": "fp16"}.get(config.precision)
    if precision is None:
        capable = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        precision = "bf16" if capable else "no"
    # an encoder that is trained has a pooling layer that token states do not use
    unused = DistributedDataParallelKwargs(find_unused_parameters=job.model.compact.tune_encoder)
    tracker = None if config.tracker == "none" else config.tracker
    try:
        accelerator = Accelerator(
            # said outright: without it, processes that torchrun starts on processors do not see each other
            cpu=not torch.accelerator.is_available(),
            mixed_precision=precision,
            log_with=tracker,
            project_dir=str(job.out),
            kwargs_handlers=[unused],
        )
    except ValueError as error:
        raise ConfigError(f"Accelerate cannot be set up as asked: {str(error).splitlines()[0]}") from error
    if tracker is not None:
        accelerator.init_trackers("restd", config={"objective": job.config.objective, **asdict(config)})
    return accelerator


@dataclass(frozen=True, slots=True, eq=False)
class _Keeper:
    """Writes models; every process gathers weights, one writes."""

    job: Job
    index: SidIndex
    backbone: AnyBackbone
    valid: Pairs
    identity: str
    write: bool

    def keep_best(self, module: nn.Module, standing: Standing) -> None:
        """The best so far, beside the run."""
        self._write(self.job.out / BEST, module, standing)

    def keep(self, module: nn.Module, standing: Standing, trainee: Trainee) -> dict[str, Any]:
        """The model of a finished run: what is kept of it, and nothing that only a running one needs."""
        out, train = self.job.out, self.job.config.train
        if train.keep == "last":
            summary = self._write(out / FOLDER, module, standing)
        elif self.write:
            summary = open_artifact(out / BEST, kind=KIND, schema=SCHEMA).manifest.settings["summary"]
            replace_folder(out / BEST, out / FOLDER)
        else:
            summary = {}
        if "trajectory" in trainee.objectives:
            write_heads(out / HEADS, trainee, layout=self.index.layout(), write=self.write)
        if self.write:
            for name in (CHECKPOINT, BEST):
                shutil.rmtree(out / name, ignore_errors=True)
        return summary

    def _write(self, folder: Path, module: nn.Module, standing: Standing) -> dict[str, Any]:
        state = backbone_state(module)
        summary = {"updates": standing.update, "validation": standing.best}
        width = self.job.config.category.width
        if isinstance(self.backbone, CalirBackbone):
            summary[f"category_recall@{width}"] = category_recall(self.backbone, self.valid, width=width)
        settings = {
            "layout": self.index.layout(),
            "told": self.job.told(),
            "identity": self.identity,
            "summary": summary,
        }
        if self.write:
            parents = self.job.parents()
            write_model(folder, self.backbone, state, ids=self.index.table.ids, settings=settings, parents=parents)
        return summary


def category_recall(backbone: CalirBackbone, pairs: Pairs, *, width: int) -> float:
    """Share of a query's positives inside its `width` likeliest categories, averaged over queries, in percent.

    It bounds what a search inside those categories can find.
    """
    routed = route_texts(backbone, [str(text) for text in pairs.texts[: pairs.queries]], width=width)
    inside = (backbone.table.of_item[pairs.item, -1][:, None] == routed[pairs.text]).any(axis=1)
    found = np.bincount(pairs.text, weights=inside, minlength=pairs.queries)
    return float(100 * (found / np.bincount(pairs.text, minlength=pairs.queries)).mean())


def _finished(out: Path, identity: str) -> dict[str, Any] | None:
    folder = out / FOLDER
    if not (folder / MANIFEST).is_file():
        return None
    settings = open_artifact(folder, kind=KIND, schema=SCHEMA).manifest.settings
    if settings["identity"] != identity:
        raise ArtifactError(
            f"{folder} is a model that was trained with other settings, data or index; choose another --out, or delete "
            "it first."
        )
    return settings["summary"]


def _refuse_foreign(out: Path) -> None:
    """Refuse a folder that holds anything but a run."""
    if out.exists() and not out.is_dir():
        raise ArtifactError(f"{out} is a file; --out wants a folder, new or made by restd train.")
    for entry in sorted(out.iterdir()) if out.exists() else ():
        inside = any(entry.name == name or entry.name.startswith(f".{name}.") for name in _OURS)
        if not inside:
            raise ArtifactError(
                f"{out} already holds {entry.name!r}, which restd train did not write; choose another --out."
            )


def _write_run(job: Job, identity: str, accelerator: Accelerator) -> None:
    """What the run was told, and where it runs."""
    near = job.out.resolve()
    places = {
        name: os.path.relpath(place.resolve(), near) for name, place in (("index", job.index), ("catalog", job.data))
    }
    said = {
        "identity": identity,
        "places": places,
        "told": job.told(),
        "parents": job.parents(),
        "versions": recorded_versions(),
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "device": str(accelerator.device),
            "processes": accelerator.num_processes,
            "threads": torch.get_num_threads(),
            "precision": accelerator.mixed_precision,
        },
    }
    unfinished = job.out / f".{RUN}.writing"
    unfinished.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    unfinished.rename(job.out / RUN)
