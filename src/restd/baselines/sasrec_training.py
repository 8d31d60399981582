"""Training SASRec: every place of a user's training events at once, validated over the whole catalogue."""

import hashlib
import logging
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from restd.artifacts import hash_json, open_artifact, sole_writer
from restd.artifacts.manifest import MANIFEST
from restd.artifacts.swap import replace_folder
from restd.baselines.sasrec import KIND, SCHEMA, SasRec, SasRecConfig, SasRecNetwork, make_network
from restd.baselines.sasrec_losses import full_softmax, sampled_binary
from restd.config import plain
from restd.data import Histories, Runs, leave_one_out
from restd.data.histories import trained_events
from restd.errors import ArtifactError, DataError, TrainingError
from restd.models.contract import seeded
from restd.models.store import FOLDER
from restd.progress import Advance, progress
from restd.train.checkpoint import Standing, read_checkpoint, write_checkpoint
from restd.train.log import LOG, RunLog

logger = logging.getLogger(__name__)

Tell = Callable[[str], None]
CHECKPOINT, BEST = "checkpoint", "best"
_OURS = (FOLDER, CHECKPOINT, BEST, LOG, ".lock")
_BETAS = (0.9, 0.98)  # as published
_DEPTH = 10


def train_sasrec(histories: Histories, config: SasRecConfig, out: Path, *, tell: Tell = logger.info) -> SasRec:
    """Train on what users did not hold out, or go on where a run that was killed had last saved itself.

    Args:
        histories: over the items to rank, as `Histories.over` makes them.
        config: shape and training.
        out: folder of the run; a finished one of the same settings and data is reused, another is refused.
        tell: takes sentences on how it goes.
    """
    out = Path(out)
    _refuse_foreign(out)
    with sole_writer(out):
        identity = _identity(histories, config)
        if _is_finished(out, identity):
            tell(f"Kept the model in {out / FOLDER}: nothing has changed since it was trained")
            return SasRec.load(out)
        run = _Run.of(histories, config, out, identity, tell)
        with seeded(config.seed):  # dropout is seeded update by update
            run.train()
        return SasRec.load(out)


@dataclass(frozen=True, slots=True, eq=False)
class Lessons:
    """Training events: each is followed by the one to predict."""

    runs: Runs
    """What is read; places of held-out events hold -1, so that nobody reads those."""
    user: Int64[np.ndarray, "run"]
    taken: Int64[np.ndarray, "_"]
    """Every user and item of training as one number, user · items + item, sorted."""
    items: int

    @classmethod
    def of(cls, histories: Histories, *, length: int) -> "Lessons":
        """The latest training events of each user who has two, as many as the network reads and one to predict."""
        trained = trained_events(histories)
        count = np.bincount(histories.user[trained], minlength=len(histories))
        user = np.flatnonzero(count > 1)
        if not len(user):
            raise DataError(
                f"None of {len(histories):,} users has two training events beside the two that are held out, so there "
                "is no next item to learn; wanted histories of at least four events."
            )
        rows = np.where(trained, histories.taken, -1)
        runs = Runs(rows, histories.first[user], count[user] - 1).latest(length)
        items = len(histories.items)
        return cls(runs, user, np.unique(histories.user[trained] * items + histories.taken[trained]), items)

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
        found = rng.integers(self.items, size=(len(user), count))
        while (bad := self._took(user[:, None] * self.items + found)).any():
            found[bad] = rng.integers(self.items, size=int(bad.sum()))
        return torch.from_numpy(found)

    def _took(self, pairs: Int64[np.ndarray, "place _"]) -> Bool[np.ndarray, "place _"]:
        places = np.searchsorted(self.taken, pairs)
        return self.taken[np.minimum(places, len(self.taken) - 1)] == pairs


@torch.inference_mode()
def ndcg(network: SasRecNetwork, runs: Runs, wanted: Int64[np.ndarray, "run"], *, seen: bool, rows: int = 512) -> float:
    """Mean NDCG@10 of one wanted item a run among all items, or all that were not seen, in percent.

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
    valid: Runs
    wanted: Int64[np.ndarray, "run"]
    optimizer: torch.optim.Optimizer
    out: Path
    identity: str
    tell: Tell

    @classmethod
    def of(cls, histories: Histories, config: SasRecConfig, out: Path, identity: str, tell: Tell) -> "_Run":
        lessons, held = Lessons.of(histories, length=config.length), leave_one_out(histories, "valid")
        if config.loss == "bce":
            lessons.refuse_without_negatives(histories.users)
        network = make_network(len(histories.items), config)
        matrices, vectors = ([p for p in network.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=_BETAS, fused=True)
        tell(
            f"{lessons.runs.count.sum():,} next items of {len(lessons.user):,} users to learn, {len(held):,} to "
            f"validate, among {len(histories.items):,} items"
        )
        valid = Runs.asked(held, histories.items)
        model = SasRec(network, histories.items, config, {})
        return cls(model, lessons, valid, held.targets, optimizer, out, identity, tell)

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
            self.tell(f"Resuming after epoch {standing.update // self.per_epoch:,}")
        standing = standing or Standing()
        log = RunLog(self.out / LOG, from_update=standing.update)
        total = self.config.epochs * self.per_epoch
        with progress("Training SASRec", total=total) as advance:
            advance(standing.update)
            while standing.update < total and not self._is_done(standing):
                standing = self._passed(standing, log, advance)
                write_checkpoint(folder, network, self.optimizer, standing, identity=self.identity, write=True)
        self._keep(standing)

    def _is_done(self, standing: Standing) -> bool:
        return 0 < self.config.patience <= standing.stale

    def _passed(self, standing: Standing, log: RunLog, advance: Advance) -> Standing:
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
                f"The loss of update {number + 1:,} in epoch {epoch + 1:,} is no number; lower sasrec.lr, which was "
                f"{self.config.lr:g}."
            )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return value

    def _loss(self, chosen: Int64[np.ndarray, "_"], seed: tuple[int, ...]) -> Float[Tensor, ""]:
        """Mean over the real places of all sequences; those of similar length are read together."""
        network, states, wanted, user = self.model.network, [], [], []
        for alike in self.lessons.runs.pick(chosen).alike():
            part = self.lessons.runs.pick(chosen[alike])
            taken, mask = part.padded()
            states.append(network(torch.from_numpy(taken))[torch.from_numpy(mask)])
            wanted.append(torch.from_numpy(part.following.flat))
            user.append(np.repeat(self.lessons.user[chosen[alike]], part.count))
        found = torch.cat(states), network.items, torch.cat(wanted)
        if self.config.loss == "ce":
            return full_softmax(*found)
        return sampled_binary(*found, self.lessons.negatives(np.concatenate(user), self.config.negatives, seed))

    def _write(self, folder: Path, standing: Standing) -> None:
        ends = {"epochs": standing.update // self.per_epoch, "best_epoch": standing.best_update // self.per_epoch}
        replace(self.model, summary={**ends, "validation": standing.best}).save(folder, identity=self.identity)

    def _keep(self, standing: Standing) -> None:
        """The model of a finished run, and nothing that only a running one needs."""
        epochs, best = standing.update // self.per_epoch, standing.best_update // self.per_epoch
        self.tell(f"Trained for {epochs:,} epochs; the best NDCG@10 was {standing.best:.2f}, after epoch {best:,}")
        if self.config.patience:
            replace_folder(self.out / BEST, self.out / FOLDER)
        else:
            self._write(self.out / FOLDER, standing)
        for name in (CHECKPOINT, BEST):
            shutil.rmtree(self.out / name, ignore_errors=True)


def _identity(histories: Histories, config: SasRecConfig) -> str:
    """Hash of all that decides the result."""
    held = (
        histories.first,
        histories.taken,
        histories.left,
        histories.taken_in_all,
    )  # the last two tell what is held out
    events = hashlib.sha256(b"".join(part.tobytes() for part in held)).hexdigest()
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


def _refuse_foreign(out: Path) -> None:
    """Refuse a folder that holds anything but such a run."""
    if out.exists() and not out.is_dir():
        raise ArtifactError(f"{out} is a file; wanted a folder, new or made by an earlier run.")
    for entry in sorted(out.iterdir()) if out.exists() else ():
        if not any(entry.name == name or entry.name.startswith(f".{name}.") for name in _OURS):
            raise ArtifactError(
                f"{out} already holds {entry.name!r}, which SASRec did not write; choose another folder."
            )
