"""From an index and judgments or histories to a trained model: what `restd train` does."""

import logging
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from restd.artifacts import open_artifact, refuse_foreign_files, sole_writer
from restd.artifacts.manifest import MANIFEST
from restd.data.pairs import Pairs, item_texts, read_examples
from restd.distill import HorizonHeads
from restd.distill.heads import FOLDER as HEADS
from restd.errors import ArtifactError, ConfigError
from restd.index import SidIndex
from restd.models import Backbone
from restd.models.store import FOLDER, KIND, SCHEMA
from restd.progress import Notify
from restd.train.batches import count_updates
from restd.train.generation import make_generation_loss
from restd.train.job import CACHE, Job, find_backbone, open_catalog, prepare_texts
from restd.train.log import LOG
from restd.train.loop import CHECKPOINT, Loop, TrainingSet, Validate
from restd.train.model_writer import BEST, BEST_HEADS, ModelWriter
from restd.train.module import TrainingModule
from restd.train.negatives import Refresh
from restd.train.objectives import OBJECTIVES, ObjectiveContext, make_objectives
from restd.train.pseudo import with_pseudo_queries
from restd.train.rank_objectives import RankObjective
from restd.train.reference import FOLDER as REFERENCE
from restd.train.refresher import Refresher
from restd.train.run_record import RUN, write_run_record

logger = logging.getLogger(__name__)

_HEADS = 4
_OURS = (FOLDER, CHECKPOINT, BEST, BEST_HEADS, HEADS, CACHE, REFERENCE, RUN, LOG, "rates.json", "rates", "fusion")


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of a run: the model's folder, and a summary of it."""

    folder: Path
    summary: dict[str, Any]


def train_retriever(
    job: Job, *, notify: Notify = logger.info, validate: Validate | None = None, refresh: Refresh | None = None
) -> Trained:
    """Train a retriever, or continue an interrupted run of the same settings.

    Args:
        job: what to train, on what, and where to write it.
        notify: receives progress messages.
        validate: scores the model for early stopping, in place of the generation loss of the validation pairs;
            `restd.evaluate.ranked_validation` gives one that ranks, which `train.select=ndcg` needs.
        refresh: finds negatives for an objective that compares with them; `restd.evaluate.beam_negatives` gives one.
    """
    if job.config.train.select != "loss" and validate is None:
        raise ConfigError(
            f"train.select = {job.config.train.select} needs rankings, which training itself cannot compute. Pass "
            "validate=restd.evaluate.ranked_validation(job), or set train.select=loss."
        )
    objective = OBJECTIVES[job.config.objective]
    if objective.refresh is not None and refresh is None:
        raise ConfigError(
            f"The objective {objective.name} needs negatives of the model's own beam, which training itself cannot "
            "search. Pass refresh=restd.evaluate.beam_negatives(job), or choose another objective."
        )
    index = SidIndex.load(job.index)
    if objective.teacher is not None:
        index.latents_and_codebooks()  # refuses an index without residuals before anything costly is done
    accelerator = _accelerator(job)
    if not accelerator.is_main_process:
        return _train(job, index, accelerator, _silent, validate, refresh)
    refuse_foreign_files(job.out, ours=_OURS, command="restd train")
    job.out.mkdir(parents=True, exist_ok=True)
    with sole_writer(job.out):
        return _train(job, index, accelerator, notify, validate, refresh)


def _silent(message: str) -> None:
    """Ignore a message: the main process sends it."""


def _train(
    job: Job,
    index: SidIndex,
    accelerator: Accelerator,
    notify: Notify,
    validate: Validate | None,
    refresh: Refresh | None,
) -> Trained:
    identity = job.identity(processes=accelerator.num_processes)
    if (summary := _finished_summary(job.out, identity)) is not None:
        notify(f"Kept the model in {job.out / FOLDER}: nothing has changed since it was trained")
        return Trained(job.out / FOLDER, summary)
    loop, writer = _prepare(job, index, accelerator, identity, notify, validate, refresh)
    if accelerator.is_main_process:
        write_run_record(
            job.out,
            sources={"index": job.index, "catalog": job.data},
            identity=identity,
            settings=job.settings(),
            parents=job.parents(),
            machine=_machine(accelerator),
        )
    state = loop.run()
    summary = writer.finish(loop.module, state)
    accelerator.wait_for_everyone()  # no process continues before the model is there
    for tracker in accelerator.trackers:
        tracker.finish()
    return Trained(job.out / FOLDER, summary)


def make_loop(job: Job, *, notify: Notify = logger.info) -> Loop:
    """The loop of a run that is not to be finished: for those who time its updates."""
    accelerator = _accelerator(job)
    identity = job.identity(processes=accelerator.num_processes)
    return _prepare(job, SidIndex.load(job.index), accelerator, identity, notify, None, None)[0]


def _prepare(
    job: Job,
    index: SidIndex,
    accelerator: Accelerator,
    identity: str,
    notify: Notify,
    validate: Validate | None,
    refresh: Refresh | None,
) -> tuple[Loop, ModelWriter]:
    """Everything a run needs before its first update."""
    config = job.config.train
    learns_more = bool(config.pseudo_queries or config.pseudo_table)
    pairs, valid, remarks = read_examples(job.data, index.table.ids, task=job.task, need_training=not learns_more)
    for remark in remarks:
        notify(remark)
    valid = valid.some(job.config.train.judged)
    with accelerator.main_process_first():
        if job.config.train.pairs_per_item:
            pairs = pairs.at_most(job.config.train.pairs_per_item)
        backbone = find_backbone(job, index, pairs, notify)
        pairs = _with_indexing(job, index, with_pseudo_queries(job, index, pairs, notify))
        sids = torch.from_numpy(index.sids.astype(np.int64))
        train, held_out = (
            TrainingSet(part, prepare_texts(job, backbone, part, index, notify), sids) for part in (pairs, valid)
        )
    ddp = DistributedDataParallelKwargs(find_unused_parameters=backbone.unused_parameters)
    cast(Any, accelerator).ddp_handler = ddp
    items, queries = len(pairs.texts) - pairs.queries, "queries" if job.task == "search" else "histories"
    notify(
        f"{len(pairs) - items:,} pairs of {pairs.queries:,} {queries}{f', {items:,} items' if items else ''}; "
        f"{len(valid):,} pairs of {valid.queries:,} {queries} to validate"
    )
    training_module = _training_module(job, index, pairs, backbone, accelerator, notify)
    writer = ModelWriter(job, index, training_module, valid, identity, write=accelerator.is_main_process)
    loop = Loop(
        training_module,
        train,
        held_out,
        job.config.train,
        job.out,
        identity,
        accelerator,
        notify,
        writer.save_best,
        validate,
        _refresher(job, training_module, train, refresh, accelerator, notify),
    )
    return loop, writer


def _refresher(
    job: Job,
    training_module: TrainingModule,
    train: TrainingSet,
    refresh: Refresh | None,
    accelerator: Accelerator,
    notify: Notify,
) -> Refresher | None:
    """What searches negatives in the course of the run; None for an objective without any."""
    needs = OBJECTIVES[job.config.objective].refresh
    if needs is None or refresh is None:
        return None
    objective = training_module.objectives["rank"]
    assert isinstance(objective, RankObjective)
    reference = needs == "reference"
    return Refresher(refresh, training_module.backbone, objective, train, job.out, reference, accelerator, notify)


def _with_indexing(job: Job, index: SidIndex, pairs: Pairs) -> Pairs:
    field = job.config.train.indexing
    if field == "none":
        return pairs
    if job.task == "recommend":
        raise ConfigError("A recommender does not read items' texts; leave train.indexing at none.")
    return pairs.with_items(*item_texts(open_catalog(job.data, index), index.table.ids, field=field))


def _training_module(
    job: Job, index: SidIndex, pairs: Pairs, backbone: Backbone, accelerator: Accelerator, notify: Notify
) -> TrainingModule:
    config = job.config
    per_epoch = count_updates(len(pairs), config.train.batch, pairs.draw)
    total = config.train.updates or config.train.epochs * per_epoch
    objectives = make_objectives(
        ObjectiveContext(
            config,
            index,
            pairs,
            backbone,
            total,
            per_epoch=per_epoch,
            joint=job.init is None,
            device=accelerator.device,
            notify=notify,
        )
    )
    idle = None
    if config.train.idle_heads and "trajectory" not in objectives:
        dim = index.latents_and_codebooks()[1].dim
        idle = HorizonHeads(backbone.width, dim, horizon=_HEADS, seed=config.distill.seed)
    generation = make_generation_loss(config.train, index, pairs, backbone, device=accelerator.device, notify=notify)
    return TrainingModule(backbone, objectives, generation=generation, idle_heads=idle)


def _accelerator(job: Job) -> Accelerator:
    config, device = job.config.train, torch.device(job.device or "cpu")
    if device.type == "cuda" and device.index is not None:  # Accelerate takes the current one
        torch.cuda.set_device(device)
    on_cpu = job.device == "cpu" or not torch.accelerator.is_available()
    precision = {"float32": "no", "bf16": "bf16", "fp16": "fp16"}.get(config.precision)
    if precision is None:
        capable = not on_cpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        precision = "bf16" if capable else "no"
    tracker = None if config.tracker == "none" else config.tracker
    try:
        accelerator = Accelerator(
            # explicitly: otherwise processes that torchrun starts on a machine without accelerators stay alone
            cpu=on_cpu,
            mixed_precision=precision,
            log_with=tracker,
            project_dir=str(job.out),
        )
    except ValueError as error:
        raise ConfigError(f"Accelerate cannot be set up with these settings: {str(error).splitlines()[0]}") from error
    if tracker is not None:
        accelerator.init_trackers("restd", config={"objective": job.config.objective, **asdict(config)})
    return accelerator


def _machine(accelerator: Accelerator) -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "device": str(accelerator.device),
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
        "precision": accelerator.mixed_precision,
    }


def _finished_summary(out: Path, identity: str) -> dict[str, Any] | None:
    """Summary of the model in a run's folder; None where there is none, an error where it is of another run."""
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
