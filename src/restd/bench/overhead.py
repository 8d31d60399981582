"""The cost of distillation in training: updates of Base, H=1 and H=4 with a model of T5-small's size, in turn."""

import subprocess
import sys
from typing import Any

import numpy as np
import torch
from torch import nn

from restd.bench.measure import interleaved, machine, peak_bytes
from restd.distill import AuxiliaryConfig, DistillConfig, ResidualDistiller, TemperatureConfig, strip

_LEVELS, _CODES, _DIM = 4, 256, 32
_WORDS, _QUERY = 32_128, 16
_MICRO, _ACCUMULATED = 8, 16
_ITEMS = 20_000
_ARMS = {"base": 0, "h1": 1, "h4": 4}


def bench_overhead(updates: int = 15) -> dict[str, Any]:
    """Time whole updates of 16 micro-batches of 8; the first of each arm is not counted."""
    arms = {name: _Arm(horizon) for name, horizon in _ARMS.items()}
    seconds = interleaved({name: arm.update for name, arm in arms.items()}, updates)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    extra = extra_peak()
    model = arms["h4"].model
    whole = sum(parameter.numel() for parameter in model.parameters())
    removed = strip(model)
    left = sum(parameter.numel() for parameter in model.parameters())
    bare = sum(parameter.numel() for parameter in model.body.parameters())
    geometry = arms["base"].model.distiller.teacher.geometry
    return {
        "h1_over_base": medians["h1"] / medians["base"],
        "h4_over_base": medians["h4"] / medians["base"],
        "paper": {"h1_over_base": 1.059, "h4_over_base": 1.119},
        "update_seconds": medians,
        "updates": updates,
        "extra_peak_bytes": extra,
        "residual_bytes_per_item": geometry.latents.element_size() * geometry.latents.shape[1],
        "head_parameters": removed,
        "inference_extra_parameters": left - bare,
        "training_parameters": whole,
        "machine": machine(),
    }


class _Model(nn.Module):
    """A random T5 and the distiller, trained together."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        with torch.random.fork_rng():
            torch.manual_seed(0)
            config = T5Config(
                vocab_size=_WORDS + _LEVELS * _CODES,
                d_model=512,
                d_kv=64,
                d_ff=2048,
                num_layers=6,
                num_heads=8,
            )
            config.decoder_start_token_id = 0
            self.body = T5ForConditionalGeneration(config)
        generator = torch.Generator().manual_seed(1)
        self.sids = torch.randint(_CODES, (_ITEMS, _LEVELS), generator=generator)
        self.distiller = ResidualDistiller.of_tensors(
            torch.randn(_LEVELS, _CODES, _DIM, generator=generator) / 4,
            torch.randn(_ITEMS, _DIM, generator=generator) / 2,
            self.sids,
            width=512,
            config=DistillConfig(
                auxiliary=AuxiliaryConfig(warm_up=0), temperature=TemperatureConfig("fixed"), check=False
            ),
        )


class _Arm:
    """One objective with its own model and optimiser; all load the same data and have the same heads."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.model = _Model()
        if horizon:
            config = DistillConfig(
                horizon=horizon,
                auxiliary=AuxiliaryConfig(warm_up=0),
                temperature=TemperatureConfig("fixed"),
                check=False,
            )
            self.model.distiller.config = config
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def update(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.optimizer.zero_grad()
        for _ in range(_ACCUMULATED):
            self.micro_batch(generator)
        self.optimizer.step()

    def micro_batch(self, generator: torch.Generator) -> None:
        model = self.model
        rows = torch.randint(_ITEMS, (_MICRO,), generator=generator)
        queries = torch.randint(1, _WORDS, (_MICRO, _QUERY), generator=generator)
        residuals = model.distiller.teacher.geometry.residuals(rows)  # Base loads the same data
        tokens = model.sids[rows] + _WORDS + torch.arange(_LEVELS) * _CODES
        labels = torch.cat([tokens, torch.ones(_MICRO, 1, dtype=torch.int64)], dim=1)
        output = model.body(input_ids=queries, labels=labels, output_hidden_states=True)
        loss = output.loss
        if self.horizon:
            states = output.decoder_hidden_states[-1][:, :_LEVELS]
            loss = loss + model.distiller(states, rows, sid_loss=output.loss, step=1)
        del residuals
        (loss / _ACCUMULATED).backward()


def extra_peak() -> int:
    """Peak memory of an update with four horizons above one without, each in its own process."""
    base, restd = (
        int(subprocess.run([sys.executable, "-c", _ALONE.format(horizon)], check=True, capture_output=True).stdout)
        for horizon in (0, 4)
    )
    return restd - base


_ALONE = "import sys; from restd.bench.overhead import peak_of; sys.stdout.write(str(peak_of({})))"


def peak_of(horizon: int) -> int:
    """Peak memory of this process after two updates."""
    arm = _Arm(horizon)
    arm.update(0)
    arm.update(1)
    return peak_bytes()
