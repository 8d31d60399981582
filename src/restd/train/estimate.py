"""Estimate of what a run will cost, from a few timed updates that leave no trace."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int64

from restd.memory import peak_bytes

if TYPE_CHECKING:
    from restd.train.loop import Loop

_TIMED = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cost of a run."""

    seconds: float
    """Of one update."""
    memory: int
    """Bytes at the peak: of the accelerator where there is one, of the process elsewhere."""
    device: str

    def sentence(self, updates: int) -> str:
        """One line for the user.

        >>> Estimate(0.5, 3_000_000_000, "cpu").sentence(1_200)
        '1,200 updates of about 0.50 s: 10 min, 3.0 GB of memory (cpu)'
        """
        total = updates * self.seconds
        spelled = (
            f"{total:.0f} s" if total < 100 else f"{total / 60:.0f} min" if total < 6_000 else f"{total / 3600:.1f} h"
        )
        each = f"{self.seconds:.2f}" if self.seconds >= 0.1 else f"{self.seconds:.3f}"
        return f"{updates:,} updates of about {each} s: {spelled}, {self.memory / 1e9:.1f} GB of memory ({self.device})"


def estimate_cost(loop: "Loop") -> Estimate:
    """Time forward, backward and an optimiser step of rate zero; weights and the run's randomness stay as they are.

    The first micro-batch is the largest of the epoch, so that the memory it takes is the run's.
    """
    parts = loop.plan.epoch(0).reshape(-1, loop.config.micro * loop.accelerator.num_processes)
    sizes = _sizes(loop, parts)
    largest = int(sizes.argmax())
    middle = [int(number) for number in sizes.argsort()[len(sizes) // 4 :: max(len(sizes) // 4, 1)][:_TIMED]]
    micros = list(loop.plan.update(parts[[largest, *middle]], rank=loop.accelerator.process_index))
    device = loop.accelerator.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    loop.micro_batch(micros[0], 0, 0, last=True)
    _step_of_rate_zero(loop)
    begin = time.perf_counter()
    for rows in micros[1:]:
        loop.micro_batch(rows, 0, 0, last=True)
    micro = (time.perf_counter() - begin) / len(middle)
    begin = time.perf_counter()
    _step_of_rate_zero(loop)
    step = time.perf_counter() - begin
    # the run starts with an optimiser that has seen nothing
    loop.optimizer.state.clear()
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_bytes()
    return Estimate(micro * loop.plan.accumulated + step, memory, device.type)


def _sizes(loop: "Loop", parts: Int64[np.ndarray, "part pair"]) -> Int64[np.ndarray, "part"]:
    """Scores that attention makes for each part: positions squared of every text that is read."""
    longest = loop.train.lengths[parts].max(axis=1)
    if loop.plan.together is None:
        return longest**2
    groups = np.sort(loop.plan.together[parts], axis=1)
    return (1 + (np.diff(groups, axis=1) != 0).sum(axis=1)) * longest**2


def _step_of_rate_zero(loop: "Loop") -> None:
    for parameter in loop.module.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()  # an infinite gradient makes weights NaN even at a rate of zero
    for group in loop.optimizer.param_groups:
        group["lr"] = 0.0
    loop.optimizer.step()
    loop.prepared_optimizer.zero_grad()
