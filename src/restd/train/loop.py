"""The one training loop, on Accelerate: the same on a laptop, an accelerator, or many machines."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Int64
from torch import Tensor, nn

from restd.encode import Ragged
from restd.errors import Interrupted, TrainingError
from restd.models import AnyBackbone
from restd.progress import progress
from restd.train.batches import BatchPlan, in_lots
from restd.train.checkpoint import Standing, read_checkpoint, write_checkpoint
from restd.train.config import TrainConfig
from restd.train.estimate import rehearse
from restd.train.examples import Pairs
from restd.train.log import LOG, RunLog
from restd.train.module import Batch, Trainee
from restd.train.signals import when_told_to_stop

Tell = Callable[[str], None]
Validate = Callable[[AnyBackbone], float]
"""Judges a model in evaluation mode; higher is better."""
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSet:
    """Pairs, the texts as the backbone reads them, and every item's Semantic ID."""

    pairs: Pairs
    texts: Ragged
    sids: Int64[Tensor, "item level"]

    @property
    def lengths(self) -> Int64[np.ndarray, "pair"]:
        """Length of each pair's text."""
        return self.texts.lengths[self.pairs.text]

    @property
    def together(self) -> Int64[np.ndarray, "pair"] | None:
        """The same number for pairs that an update may read as one; None where none are."""
        held = self.texts.together
        return None if held is None else in_lots(held[self.pairs.text], self.lengths)

    def batch(self, rows: Int64[np.ndarray, "row"]) -> Batch:
        """Pairs as tensors."""
        items = torch.from_numpy(self.pairs.item[rows])
        queries = self.pairs.text[rows]
        return Batch(self.texts.merged(queries), self.sids[items], items, torch.from_numpy(queries))


@dataclass(eq=False)
class Loop:
    """One run: what is trained, on what, how, and where it is written."""

    trainee: Trainee
    train: TrainingSet
    valid: TrainingSet
    config: TrainConfig
    out: Path
    identity: str
    """Hash of all that decides the result; a checkpoint of another identity is refused."""
    accelerator: Accelerator
    tell: Tell
    on_best: Callable[[nn.Module, Standing], None]
    """Called on every process when a validation was the best so far."""
    validate: Validate | None = None
    _stop: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = BatchPlan(
            self.train.lengths,
            self.config.batch,
            self.config.micro,
            self.accelerator.num_processes,
            self.config.seed,
            self.train.together,
        )
        epochs = self.config.epochs
        self.total = self.config.updates or epochs * self.plan.updates_per_epoch
        # fused: one pass over the parameters instead of a dozen, which small models feel on processors too
        self.optimizer = torch.optim.AdamW(_groups(self.trainee, self.config), lr=self.config.lr, fused=True)
        module = torch.compile(self.trainee, dynamic=True) if self.config.compile else self.trainee
        self.module, self.stepper = self.accelerator.prepare(module, self.optimizer)

    def run(self) -> Standing:
        """Train to the end, or to the patience's; returns where it ended."""
        # dropout is seeded update by update, so the caller's randomness is put back when the run ends
        with torch.random.fork_rng(devices=_devices(self.accelerator)), when_told_to_stop(self._stop.append):
            self.module.train()
            estimate = rehearse(self)
            standing = read_checkpoint(self.out / CHECKPOINT, self.module, self.optimizer, identity=self.identity)
            if standing is not None:
                self.tell(f"Resuming after update {standing.update:,}")
            standing = standing or Standing()
            self.tell(estimate.sentence(self.total - standing.update))
            log = RunLog(self.out / LOG, from_update=standing.update, enabled=self.accelerator.is_main_process)
            return self._updates(standing, log)

    def _updates(self, standing: Standing, log: RunLog) -> Standing:
        per_epoch = self.plan.updates_per_epoch
        with progress("Training", total=self.total) as advance:
            advance(standing.update)
            while standing.update < self.total and not self._done(standing):
                epoch, place = divmod(standing.update, per_epoch)
                for rows in self.plan.epoch(epoch)[place:]:
                    record = self.update(rows, standing.update)
                    standing = replace(standing, update=standing.update + 1)
                    log.write({"update": standing.update, "epoch": epoch, **record})
                    self.accelerator.log(record, step=standing.update)
                    advance(1, **_shown(record))
                    ended = standing.update == self.total
                    if standing.update % per_epoch == 0 or ended:
                        standing = self._validated(standing, log)
                    self._saved(standing)
                    if ended:
                        break
        return standing

    def _done(self, standing: Standing) -> bool:
        if not self.config.patience or standing.stale < self.config.patience:
            return False
        self.tell(f"Stopped after update {standing.update:,}: {standing.stale} validations without a better one")
        return True

    def update(self, rows: Int64[np.ndarray, "part pair"], update: int) -> dict[str, float]:
        """One optimiser step; returns what there is to say of it."""
        begin = time.perf_counter()
        rate = self._rate(update)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["relative"]
        parts: list[dict[str, Tensor]] = []
        micros = list(self.plan.update(rows, rank=self.accelerator.process_index))
        for number, micro in enumerate(micros):
            last = number + 1 == len(micros)
            parts.append(self.micro_batch(micro, update, number, last=last))
        norm = self.accelerator.clip_grad_norm_(self.module.parameters(), self.config.clip)
        assert norm is not None
        record = self._mean(parts)
        # a scaler of float16 skips updates whose gradient overflows; elsewhere a norm that is no number is the end
        broken = not math.isfinite(record["loss"]) or (
            self.accelerator.scaler is None and not math.isfinite(float(norm))
        )
        if broken:
            self._refuse(parts, micros, update)
        self.stepper.step()
        self.stepper.zero_grad()
        seconds = time.perf_counter() - begin
        return {**record, "norm": float(norm), "lr": rate, "examples_per_s": self.config.batch / seconds}

    def micro_batch(
        self, rows: Int64[np.ndarray, "micro"], update: int, number: int, *, last: bool
    ) -> dict[str, Tensor]:
        """Forward and backward of one micro-batch; its dropout depends on seed, update, place and process alone."""
        seed = (self.config.seed, update, number, self.accelerator.process_index)
        torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        batch = self.train.batch(rows).to(self.accelerator.device)
        with nullcontext() if last else self.accelerator.no_sync(self.module):
            with self.accelerator.autocast():
                loss, parts = self.module(batch, update)
            self.accelerator.backward(loss / self.plan.accumulated)
        return parts

    def _rate(self, update: int) -> float:
        """Linear warm-up from zero, then a cosine to zero."""
        warm = self.config.warm_up_updates(self.total)
        if update < warm:
            return self.config.lr * update / warm
        done = (update - warm) / max(self.total - warm, 1)
        return self.config.lr * 0.5 * (1 + math.cos(math.pi * done))

    def _mean(self, parts: Sequence[dict[str, Tensor]]) -> dict[str, float]:
        names = list(parts[0])
        values = torch.stack([torch.stack([part[name].float() for name in names]) for part in parts]).mean(dim=0)
        reduced = self.accelerator.reduce(values, reduction="mean")
        assert isinstance(reduced, Tensor)
        return dict(zip(names, reduced.tolist(), strict=True))

    def _refuse(self, parts: list[dict[str, Tensor]], micros: list[np.ndarray], update: int) -> None:
        bad = [number for number, part in enumerate(parts) if not bool(torch.isfinite(part["loss"]))]
        rows = micros[bad[0] if bad else 0][:3]
        pairs = self.train.pairs
        named = "; ".join(f"{str(pairs.texts[int(pairs.text[row])])!r} with item row {pairs.item[row]}" for row in rows)
        folder = self.out / CHECKPOINT
        kept = f"the last good checkpoint is {folder}" if folder.is_dir() else "no checkpoint was written yet"
        raise TrainingError(
            f"The {'loss' if bad else 'gradient'} of update {update + 1:,} is no number, in the micro-batch that "
            f"begins with {named}; {kept}. Lower train.lr, or look at those."
        )

    def _validated(self, standing: Standing, log: RunLog) -> Standing:
        if not self.config.epochs and self.config.keep == "last":
            return standing
        self.module.eval()
        with torch.no_grad():
            loss = self._valid_loss()
            score = self.validate(self.trainee.backbone) if self.validate is not None else -loss
        self.module.train()
        log.write({"update": standing.update, "valid_loss": loss, "validation": score})
        self.accelerator.log({"valid_loss": loss}, step=standing.update)
        if standing.best is not None and score <= standing.best:
            return replace(standing, stale=standing.stale + 1)
        standing = replace(standing, best=score, best_update=standing.update, stale=0)
        if self.config.keep == "best":
            self.on_best(self.module, standing)
        return standing

    def _valid_loss(self) -> float:
        """Mean generation loss of the validation pairs, parted among the processes."""
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        order = np.argsort(self.valid.lengths, kind="stable")[rank::processes]
        size = max(self.config.micro, 64)
        total = torch.zeros(2, device=self.accelerator.device)
        for start in range(0, len(order), size):
            batch = self.valid.batch(order[start : start + size]).to(self.accelerator.device)
            with self.accelerator.autocast():
                _, parts = self.module(batch, 0, only_sid=True)
            count = torch.tensor(float(len(batch.rows)), device=total.device)
            total += torch.stack([parts["sid_loss"].float() * count, count])
        reduced = self.accelerator.reduce(total, reduction="sum")
        assert isinstance(reduced, Tensor)
        return float(reduced[0] / reduced[1].clamp_min(1))

    def _saved(self, standing: Standing) -> None:
        stopped = self._told_to_stop()
        if not stopped and standing.update % self.config.checkpoint:
            return
        write_checkpoint(
            self.out / CHECKPOINT,
            self.module,
            self.optimizer,
            standing,
            identity=self.identity,
            write=self.accelerator.is_main_process,
        )
        if stopped:
            raise Interrupted(
                f"stopped after update {standing.update:,} of {self.total:,} and saved to {self.out / CHECKPOINT}; run "
                "the same command again to go on.",
                signal=stopped,
            )

    def _told_to_stop(self) -> int:
        """The signal that came, if any came to any process."""
        told = self._stop[0] if self._stop else 0
        if self.accelerator.num_processes == 1:
            return told
        flag = torch.tensor(told, device=self.accelerator.device)
        told_any = self.accelerator.gather(flag[None])
        assert isinstance(told_any, Tensor)
        return int(told_any.max())


def _groups(trainee: Trainee, config: TrainConfig) -> list[dict[str, Any]]:
    """Parameters by learning rate and decay: vectors (norms, biases) are not decayed."""
    rates = {f"backbone.{name}": rate for name, rate in trainee.backbone.rates.items()}
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in trainee.named_parameters():
        if parameter.requires_grad:
            relative = next((rate for start, rate in rates.items() if name.startswith(start)), 1.0)
            decay = config.weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((relative, decay), []).append(parameter)
    return [{"params": held, "relative": relative, "weight_decay": decay} for (relative, decay), held in groups.items()]


def _devices(accelerator: Accelerator) -> list[int]:
    return [accelerator.device.index or 0] if accelerator.device.type == "cuda" else []


def _shown(record: dict[str, float]) -> dict[str, Any]:
    names = {"loss": "loss", "kl": "KL", "weight": "λ", "capped": "capped", "examples_per_s": "examples/s"}
    return {said: record[name] for name, said in names.items() if name in record}
