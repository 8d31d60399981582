"""Training SASRec: every place of a user's training events at once, validated over the whole catalogue."""

import hashlib
import logging
import math
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from restd.artifacts import hash_json, open_artifact, refuse_foreign_files, sole_writer
from restd.artifacts.manifest import MANIFEST
from restd.artifacts.swap import replace_folder
from restd.config import plain
from restd.data import EventSpans, Histories, leave_one_out
from restd.data.histories import training_events
from restd.errors import ArtifactError, ConfigError, DataError, TrainingError
from restd.models.contract import seeded
from restd.models.store import FOLDER
from restd.progress import Advance, Notify, progress
from restd.rankers.registry import RANKERS, RankerContext, RankerEntry, RankerTask, refuse_foreign_histories
from restd.rankers.sasrec import KIND, SCHEMA, SasRec, SasRecConfig, SasRecNetwork, make_network
from restd.rankers.sasrec_losses import full_softmax, sampled_binary
from restd.snapshot import Ranker, Snapshot
from restd.train.checkpoint import TrainerState, read_checkpoint, write_checkpoint
from restd.train.log import LOG, RunLog

logger = logging.getLogger(__name__)

CHECKPOINT, BEST = "checkpoint", "best"
_OURS = (FOLDER, CHECKPOINT, BEST, LOG)
_BETAS = (0.9, 0.98)  # as published
_DEPTH = 10


def train_sasrec(
    snapshot: Snapshot, histories: Histories, config: SasRecConfig, out: Path, *, notify: Notify = logger.info
) -> SasRec:
    """Train on what users did not hold out, or resume a run that was killed from its last checkpoint.

    Args:
        snapshot: the items to rank.
        histories: over the same items, as `Histories.over` makes them.
        config: shape and training.
        out: folder of the run; a finished one of the same settings and data is reused, another is refused.
        notify: receives sentences about progress.
    """
    refuse_foreign_histories(histories, snapshot)
    out = Path(out)
    refuse_foreign_files(out, ours=_OURS, command="the training of SASRec")
    with sole_writer(out):
        identity = _identity(histories, config)
        if _is_finished(out, identity):
            notify(f"Kept the model in {out / FOLDER}: nothing has changed since it was trained")
            return SasRec.load(out, snapshot)
        run = _Run.of(snapshot, histories, config, out, identity, notify)
        with seeded(config.seed):  # dropout is seeded update by update
            run.train()
        return SasRec.load(out, snapshot)


@dataclass(frozen=True, slots=True, eq=False)
class Lessons:
    """Training events: each is followed by the one to predict."""

    runs: EventSpans
    """What is read; places of held-out events hold -1, so that nobody reads those."""
    user: Int64[np.ndarray, "run"]
    taken: Int64[np.ndarray, "_"]
    """Every user and item of training as one number, user · items + item, sorted."""
    items: int

    @classmethod
    def of(cls, histories: Histories, *, length: int) -> "Lessons":
        """The latest training events of each user who has two, as many as the network reads and one to predict."""
        trained = training_events(histories)
        count = np.bincount(histories.user[trained], minlength=len(histories))
        user = np.flatnonzero(count > 1)
        if not len(user):
            raise DataError(
                f"None of {len(histories):,} users has two training events beside the two that are held out, so there "
                "is no next item to learn. Expected histories of at least four events."
            )
        rows = np.where(trained, histories.event_items, -1)
        runs = EventSpans(rows, histories.first[user], count[user] - 1).latest(length)
        items = len(histories.items)
        return cls(runs, user, np.unique(histories.user[trained] * items + histories.event_items[trained]), items)

    def refuse_without_negatives(self, users: pa.StringArray) -> None:
        """Refuse users who took everything."""
        user, count = np.unique(self.taken // self.items, return_counts=True)
        if count.max() == self.items:
            raise DataError(
                f"User {users[int(user[count.argmax()])].as_py()!r} took all {self.items:,} items, which leaves no "
                "negatives to draw; use the loss ce."
            )

    def negatives(
        self, user: Int64[np.ndarray, "place"], count: int, seed: tuple[int, ...]
    ) -> Int64[Tensor, "place _"]:
        """Draw items that these users did not take in training, each as likely as any other."""
        rng = np.random.default_rng(seed)
        drawn = rng.integers(self.items, size=(len(user), count))
        while (bad := self._took(user[:, None] * self.items + drawn)).any():
            drawn[bad] = rng.integers(self.items, size=int(bad.sum()))
        return torch.from_numpy(drawn)

    def _took(self, pairs: Int64[np.ndarray, "place _"]) -> Bool[np.ndarray, "place _"]:
        places = np.searchsorted(self.taken, pairs)
        return self.taken[np.minimum(places, len(self.taken) - 1)] == pairs


@torch.inference_mode()
def ndcg(
    network: SasRecNetwork, runs: EventSpans, wanted: Int64[np.ndarray, "run"], *, seen: bool, rows: int = 512
) -> float:
    """Mean NDCG@10 of one wanted item per run among all items, or all that were not seen, in percent.

    Ties count against the wanted item.
    """
    network.eval()
    gained = 0.0
    for start in range(0, len(runs), rows):
        part = runs.pick(slice(start, start + rows))
        scores = network.last(part) @ network.items.T
        if not seen:
            scores[torch.from_numpy(part.owner), torch.from_numpy(part.flat)] = -torch.inf
        target = torch.from_numpy(wanted[start : start + rows, None])
        rank = scores.shape[1] - (scores < scores.gather(1, target)).sum(dim=1)
        gained += float((1 / (rank[rank <= _DEPTH] + 1).double().log2()).sum())
    return 100 * gained / len(runs)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """One run: what is trained, on what, how, and where it is written."""

    model: SasRec
    lessons: Lessons
    valid: EventSpans
    wanted: Int64[np.ndarray, "run"]
    optimizer: torch.optim.Optimizer
    out: Path
    identity: str
    notify: Notify

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        histories: Histories,
        config: SasRecConfig,
        out: Path,
        identity: str,
        notify: Notify,
    ) -> "_Run":
        lessons, held_out = Lessons.of(histories, length=config.length), leave_one_out(histories, "valid")
        if config.loss == "bce":
            lessons.refuse_without_negatives(histories.users)
        network = make_network(len(histories.items), config)
        matrices, vectors = ([p for p in network.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=_BETAS, fused=True)
        notify(
            f"{lessons.runs.count.sum():,} next items of {len(lessons.user):,} users to learn, {len(held_out):,} to "
            f"validate, among {len(histories.items):,} items"
        )
        valid = EventSpans.of_queries(held_out, histories.items)
        model = SasRec(network, histories.items, config, {}, snapshot.hash)
        return cls(model, lessons, valid, held_out.targets, optimizer, out, identity, notify)

    @property
    def config(self) -> SasRecConfig:
        return self.model.config

    @property
    def per_epoch(self) -> int:
        return -(-len(self.lessons.runs) // self.config.batch)

    def train(self) -> None:
        """Train to the end, or to the patience's, and write the model."""
        network, folder = self.model.network, self.out / CHECKPOINT
        standing = read_checkpoint(folder, network, self.optimizer, identity=self.identity)
        if standing is not None:
            self.notify(f"Resuming after epoch {standing.update // self.per_epoch:,}")
        standing = standing or TrainerState()
        log = RunLog(self.out / LOG, from_update=standing.update)
        total = self.config.epochs * self.per_epoch
        with progress("Training SASRec", total=total) as advance:
            advance(standing.update)
            while standing.update < total and not self._is_done(standing):
                standing = self._passed(standing, log, advance)
                write_checkpoint(folder, network, self.optimizer, standing, identity=self.identity, write=True)
        self._keep(standing)

    def _is_done(self, standing: TrainerState) -> bool:
        return 0 < self.config.patience <= standing.stale

    def _passed(self, standing: TrainerState, log: RunLog, advance: Advance) -> TrainerState:
        """One epoch and its validation."""
        begin = time.perf_counter()
        epoch = standing.update // self.per_epoch
        loss = self._epoch(epoch, advance)
        trained = time.perf_counter()
        score = ndcg(self.model.network, self.valid, self.wanted, seen=self.config.ranks_seen)
        standing = replace(standing, update=standing.update + self.per_epoch, stale=standing.stale + 1)
        if standing.best is None or score > standing.best:
            standing = replace(standing, best=score, best_update=standing.update, stale=0)
            if self.config.patience:
                self._write(self.out / BEST, standing)
        seconds = {"seconds": trained - begin, "validation_seconds": time.perf_counter() - trained}
        log.write({"update": standing.update, "epoch": epoch, "loss": loss, "validation": score, **seconds})
        advance(0, loss=loss, NDCG=score, best=standing.best)
        return standing

    def _epoch(self, epoch: int, advance: Advance) -> float:
        """Every sequence once; returns the mean loss of the updates."""
        self.model.network.train()
        order = np.random.default_rng((self.config.seed, epoch)).permutation(len(self.lessons.runs))
        losses = []
        for number in range(self.per_epoch):
            chosen = order[number * self.config.batch : (number + 1) * self.config.batch]
            losses.append(self.update(chosen, epoch, number))
            advance(1)
        return float(np.mean(losses))

    def update(self, chosen: Int64[np.ndarray, "_"], epoch: int, number: int) -> float:
        """One optimiser step; its dropout and negatives depend on seed, epoch and number alone."""
        seed = (self.config.seed, epoch, number)
        torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        loss = self._loss(chosen, seed)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingError(
                f"The loss of update {number + 1:,} in epoch {epoch + 1:,} is NaN or infinite. Lower sasrec.lr, which "
                f"is {self.config.lr:g}."
            )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return value

    def _loss(self, chosen: Int64[np.ndarray, "_"], seed: tuple[int, ...]) -> Float[Tensor, ""]:
        """Mean over the real places of all sequences; those of similar length are read together."""
        network, states, wanted, user = self.model.network, [], [], []
        for alike in self.lessons.runs.pick(chosen).by_length():
            part = self.lessons.runs.pick(chosen[alike])
            taken, mask = part.padded()
            states.append(network(torch.from_numpy(taken))[torch.from_numpy(mask)])
            wanted.append(torch.from_numpy(part.next_events.flat))
            user.append(np.repeat(self.lessons.user[chosen[alike]], part.count))
        arguments = torch.cat(states), network.items, torch.cat(wanted)
        if self.config.loss == "ce":
            return full_softmax(*arguments)
        return sampled_binary(*arguments, self.lessons.negatives(np.concatenate(user), self.config.negatives, seed))

    def _write(self, folder: Path, standing: TrainerState) -> None:
        ends = {"epochs": standing.update // self.per_epoch, "best_epoch": standing.best_update // self.per_epoch}
        replace(self.model, summary={**ends, "validation": standing.best}).save(folder, identity=self.identity)

    def _keep(self, standing: TrainerState) -> None:
        """The model of a finished run, and nothing that only a running one needs."""
        epochs, best = standing.update // self.per_epoch, standing.best_update // self.per_epoch
        self.notify(f"Trained for {epochs:,} epochs; the best NDCG@10 was {standing.best:.2f}, after epoch {best:,}")
        if self.config.patience:
            replace_folder(self.out / BEST, self.out / FOLDER)
        else:
            self._write(self.out / FOLDER, standing)
        for name in (CHECKPOINT, BEST):
            shutil.rmtree(self.out / name, ignore_errors=True)


def _identity(histories: Histories, config: SasRecConfig) -> str:
    """Hash of all that decides the result."""
    parts = (
        histories.first,
        histories.event_items,
        histories.from_end,
        histories.full_lengths,
    )  # the last two decide what is held out
    events = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
    return hash_json({"config": plain(config), "events": events, "items": histories.items.to_pylist()})


def _is_finished(out: Path, identity: str) -> bool:
    folder = out / FOLDER
    if not (folder / MANIFEST).is_file():
        return False
    if open_artifact(folder, kind=KIND, schema=SCHEMA).manifest.settings["identity"] != identity:
        raise ArtifactError(
            f"{folder} is a SASRec that was trained with other settings, histories or items; choose another folder, or "
            "delete it first."
        )
    return True


_DROPOUTS = (0.2, 0.5)
"""Published for dense and for sparse data; the better one is chosen on validation."""


def _best_of_dropouts(context: RankerContext, loss: Literal["ce", "bce"]) -> Ranker:
    """The network that validates best among a few trained ones."""
    if context.trained is None:
        raise ConfigError("SASRec is trained before it ranks. Pass --out: the folder to keep it in.")
    histories, rivals = context.histories(), []
    seen = context.seen and loss == "ce"  # bce never learns to put down what was seen
    for dropout in _DROPOUTS:
        config = SasRecConfig(loss=loss, dropout=dropout, seen=seen)
        name = f"sasrec-{loss}-{dropout:g}{'' if seen else '-unseen'}"
        rivals.append(train_sasrec(context.snapshot, histories, config, context.trained / name))
    return max(rivals, key=lambda rival: rival.summary["validation"])


RANKERS.add(
    RankerEntry(
        "sasrec",
        "SASRec: causal self-attention over the history, trained with a softmax over all items.",
        {
            "recommend": RankerTask(
                lambda context: _best_of_dropouts(context, "ce"),
                {"search": "all items scored", "parameters": "softmax over all items, dropout 0.2 or 0.5"},
                seen="optional",
            )
        },
        source="Kang & McAuley 2018",
    )
)
RANKERS.add(
    RankerEntry(
        "sasrec-bce",
        "SASRec as published, trained with one sampled negative per event.",
        {
            "recommend": RankerTask(
                lambda context: _best_of_dropouts(context, "bce"),
                {"search": "all items scored", "parameters": "a sampled negative, dropout 0.2 or 0.5"},
                seen="never",
            )
        },
        source="Kang & McAuley 2018",
    )
)
