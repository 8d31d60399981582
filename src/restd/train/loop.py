"""The one training loop, on Accelerate: the same on a laptop, an accelerator, or many machines."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from jaxtyping import Int64
from torch import Tensor, nn

from restd.data.pairs import Pairs
from restd.encode import Ragged
from restd.errors import Interrupted, TrainingError
from restd.models import Backbone
from restd.progress import Notify, progress
from restd.train.average import WeightAverage
from restd.train.batches import BatchPlan, in_lots
from restd.train.checkpoint import TrainerState, read_checkpoint, write_checkpoint
from restd.train.config import TrainConfig
from restd.train.estimate import estimate_cost
from restd.train.log import LOG, RunLog
from restd.train.module import Batch, TrainingModule
from restd.train.refresher import Refresher
from restd.train.schedule import learning_rate
from restd.train.signals import catch_stop_signals

Validate = Callable[[Backbone], float]
"""Scores a model in evaluation mode; higher is better."""
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSet:
    """Pairs, their texts as the backbone reads them, and every item's Semantic ID."""

    pairs: Pairs
    texts: Ragged
    sids: Int64[Tensor, "item level"]

    @property
    def lengths(self) -> Int64[np.ndarray, "pair"]:
        """Length of each pair's text."""
        return self.texts.lengths[self.pairs.text]

    @property
    def together(self) -> Int64[np.ndarray, "pair"] | None:
        """The same number for pairs whose texts a micro-batch reads as one; None where none are."""
        together = self.texts.together
        return None if together is None else in_lots(together[self.pairs.text], self.lengths)

    def batch(self, rows: Int64[np.ndarray, "row"]) -> Batch:
        """Pairs as tensors."""
        items = torch.from_numpy(self.pairs.item[rows])
        queries = self.pairs.text[rows]
        return Batch(self.texts.merged(queries), self.sids[items], items, torch.from_numpy(queries))


@dataclass(eq=False)
class Loop:
    """One run: what is trained, on what, how, and where it is written."""

    training_module: TrainingModule
    train: TrainingSet
    valid: TrainingSet
    config: TrainConfig
    out: Path
    identity: str
    """Hash of all that decides the result; a checkpoint of another identity is refused."""
    accelerator: Accelerator
    notify: Notify
    on_best: Callable[[nn.Module, TrainerState], None]
    """Called on every process when a validation was the best so far."""
    validate: Validate | None = None
    refresher: Refresher | None = None
    """Searches negatives for an objective that needs them."""
    _stop: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = BatchPlan(
            self.train.lengths,
            self.config.batch,
            self.config.micro,
            self.accelerator.num_processes,
            self.config.seed,
            self.train.together,
            self.train.pairs.draw,
        )
        epochs = self.config.epochs
        self.total = self.config.updates or epochs * self.plan.updates_per_epoch
        # fused: one pass over the parameters instead of a dozen, which small models feel on processors too
        self.optimizer = torch.optim.AdamW(_groups(self.training_module, self.config), lr=self.config.lr, fused=True)
        module = self.training_module
        compiled = torch.compile(module, dynamic=True) if self.config.compile else module
        self.module, self.prepared_optimizer = self.accelerator.prepare(compiled, self.optimizer)
        self.average = WeightAverage.of(self.module, decay=self.config.ema) if self.config.ema else None

    def run(self) -> TrainerState:
        """Train to the end, or until patience runs out; returns the progress at that point.

        With `train.ema` the module ends with the averaged weights.
        """
        # dropout is seeded update by update; the caller's random state is restored when the run ends
        with torch.random.fork_rng(devices=_devices(self.accelerator)), catch_stop_signals(self._stop.append):
            self.module.train()
            estimate = estimate_cost(self)
            state = read_checkpoint(
                self.out / CHECKPOINT,
                self.module,
                self.optimizer,
                identity=self.identity,
                scaler=self.accelerator.scaler,
                average=self.average,
            )
            if state is not None:
                self.notify(f"Resuming after update {state.update:,}")
                if self.refresher is not None:
                    self.refresher.restore(self.out / CHECKPOINT)
            state = state or TrainerState()
            self.notify(estimate.sentence(self.total - state.update))
            log = RunLog(self.out / LOG, from_update=state.update, enabled=self.accelerator.is_main_process)
            state = self._updates(state, log)
            if self.average is not None:
                self.average.exchange()
            return state

    def _updates(self, state: TrainerState, log: RunLog) -> TrainerState:
        per_epoch = self.plan.updates_per_epoch
        with progress("Training", total=self.total) as advance:
            advance(state.update)
            while state.update < self.total and not self._done(state):
                epoch, place = divmod(state.update, per_epoch)
                for rows in self.plan.epoch(epoch)[place:]:
                    if self.refresher is not None:
                        self.refresher.before(state.update, self.module)
                    record = self.update(rows, state.update)
                    state = replace(state, update=state.update + 1)
                    log.write({"update": state.update, "epoch": epoch, **record})
                    self.accelerator.log(record, step=state.update)
                    advance(1, **_shown(record))
                    ended = state.update == self.total
                    if state.update % per_epoch == 0 or ended:
                        state = self._validated(state, log)
                    self._saved(state)
                    if ended:
                        break
        return state

    def _done(self, state: TrainerState) -> bool:
        if not self.config.patience or state.stale < self.config.patience:
            return False
        self.notify(f"Stopped after update {state.update:,}: {state.stale} validations without a better one")
        return True

    def update(self, rows: Int64[np.ndarray, "part pair"], update: int) -> dict[str, float]:
        """One optimiser step; returns its record for the log."""
        begin = time.perf_counter()
        warm_up = self.config.warm_up_updates(self.total)
        rate = learning_rate(update, peak=self.config.lr, warm_up=warm_up, total=self.total)
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
        # a scaler of float16 skips updates whose gradient overflows; elsewhere such a gradient ends the run
        broken = not math.isfinite(record["loss"]) or (
            self.accelerator.scaler is None and not math.isfinite(float(norm))
        )
        if broken:
            self._refuse(parts, micros, update)
        self.prepared_optimizer.step()
        self.prepared_optimizer.zero_grad()
        if self.average is not None:
            self.average.follow(update=update + 1)
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

    def _mean(self, parts: Sequence[dict[str, Tensor]]) -> dict[str, float]:
        names = list(parts[0])
        values = torch.stack([torch.stack([part[name].float() for name in names]) for part in parts]).mean(dim=0)
        reduced = cast(Tensor, self.accelerator.reduce(values, reduction="mean"))
        return dict(zip(names, reduced.tolist(), strict=True))

    def _refuse(self, parts: list[dict[str, Tensor]], micros: list[np.ndarray], update: int) -> None:
        bad = [number for number, part in enumerate(parts) if not bool(torch.isfinite(part["loss"]))]
        rows = micros[bad[0] if bad else 0][:3]
        pairs = self.train.pairs
        first = "; ".join(f"{str(pairs.texts[int(pairs.text[row])])!r} with item row {pairs.item[row]}" for row in rows)
        folder = self.out / CHECKPOINT
        saved = f"The last good checkpoint is {folder}" if folder.is_dir() else "No checkpoint was written yet"
        raise TrainingError(
            f"{'Loss' if bad else 'Gradient'} is NaN or infinite at update {update + 1:,}, in the micro-batch that "
            f"begins with {first}. {saved}. Lower train.lr, or check these pairs."
        )

    def _validated(self, state: TrainerState, log: RunLog) -> TrainerState:
        if not self.config.epochs and self.config.keep == "last" and not self.config.patience:
            return state  # nothing depends on it
        with nullcontext() if self.average is None else self.average.in_place():
            self.module.eval()
            with torch.no_grad():
                loss = self._valid_loss()
                score = -loss if self.validate is None else self._agreed(self.validate(self.training_module.backbone))
            self.module.train()
            log.write({"update": state.update, "valid_loss": loss, "validation": score})
            self.accelerator.log({"valid_loss": loss}, step=state.update)
            if math.isnan(score) or (state.best is not None and score <= state.best):
                return replace(state, stale=state.stale + 1)
            state = replace(state, best=score, best_update=state.update, stale=0)
            if self.config.keep == "best":
                self.on_best(self.module, state)
            return state

    def _agreed(self, score: float) -> float:
        """The first process's score: a difference in the last bit must not end the run on one process alone."""
        if self.accelerator.num_processes == 1:
            return score
        return broadcast_object_list([score])[0]

    def _valid_loss(self) -> float:
        """Mean generation loss of the validation pairs, split across the processes."""
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
        reduced = cast(Tensor, self.accelerator.reduce(total, reduction="sum"))
        return float(reduced[0] / reduced[1].clamp_min(1))

    def _saved(self, state: TrainerState) -> None:
        stopped = self._stop_signal()
        if not stopped and state.update % self.config.checkpoint:
            return
        write_checkpoint(
            self.out / CHECKPOINT,
            self.module,
            self.optimizer,
            state,
            identity=self.identity,
            write=self.accelerator.is_main_process,
            scaler=self.accelerator.scaler,
            average=self.average,
            extra=None if self.refresher is None else self.refresher.write,
        )
        if stopped:
            raise Interrupted(
                f"stopped after update {state.update:,} of {self.total:,} and saved to {self.out / CHECKPOINT}. "
                "Run the same command again to continue.",
                signal=stopped,
            )

    def _stop_signal(self) -> int:
        """The signal that any process received; 0 for none."""
        number = self._stop[0] if self._stop else 0
        if self.accelerator.num_processes == 1:
            return number
        numbers = cast(Tensor, self.accelerator.gather(torch.tensor([number], device=self.accelerator.device)))
        return int(numbers.max())


def _groups(module: TrainingModule, config: TrainConfig) -> list[dict[str, Any]]:
    """Parameters by learning rate and decay: vectors (norms, biases) and what a module names itself are not decayed."""
    rates = {f"backbone.{name}": rate for name, rate in module.backbone.rates.items()}
    undecayed = {f"{path}.{name}" for path, part in module.named_modules() for name in getattr(part, "undecayed", ())}
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            relative = next((rate for start, rate in rates.items() if name.startswith(start)), 1.0)
            decay = config.weight_decay if parameter.ndim > 1 and name not in undecayed else 0.0
            groups.setdefault((relative, decay), []).append(parameter)
    return [
        {"params": parameters, "relative": relative, "weight_decay": decay}
        for (relative, decay), parameters in groups.items()
    ]


def _devices(accelerator: Accelerator) -> list[int]:
    return [accelerator.device.index or 0] if accelerator.device.type == "cuda" else []


def _shown(record: dict[str, float]) -> dict[str, Any]:
    """Values that the progress bar shows, by their labels."""
    labels = {"loss": "loss", "kl": "KL", "weight": "λ", "capped": "capped", "examples_per_s": "examples/s"}
    return {label: record[name] for name, label in labels.items() if name in record}
