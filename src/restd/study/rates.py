"""The learning rate by validation: short runs at every rate, the best of them chosen."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from restd.artifacts import hash_json
from restd.data.trec import write_atomically
from restd.errors import ConfigError, TrainingError
from restd.evaluate import ranked_validation
from restd.train import Job, train_retriever

Tell = Callable[[str], None]
FILE = "rates.json"
PROBES = "rates"
_LONGEST = 5


def choose_rate(job: Job, rates: Sequence[float], folder: Path, *, epochs: int, tell: Tell) -> float:
    """Train `epochs` epochs at each rate, and return the one with the best validation; known answers are reused.

    Everything else, the seed included, is as in the job; a rate at which training breaks down is out. Answers go to
    `rates.json` in the folder, by objective, and are those of one setting: where anything else has changed, rates are
    probed again.

    Args:
        job: what is to be trained.
        rates: to choose among.
        folder: where probes are trained and answers kept.
        epochs: of a probe, at most five: a probe should cost less than the run it serves.
        tell: hears what was found.
    """
    if not rates or min(rates) <= 0:
        raise ConfigError(f"Rates {list(rates)} were given; wanted at least one, all above 0.")
    if not 1 <= epochs <= _LONGEST:
        raise ConfigError(f"Probes of {epochs} epochs were asked for; wanted 1 to {_LONGEST}.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("Learning rates are probed by one process; choose one without torchrun, then give train.lr.")
    objective, known = job.config.objective, read_rates(folder)
    train = replace(job.config.train, lr=rates[0], updates=0, epochs=epochs, patience=0, keep="best")
    probe = replace(job, config=replace(job.config, train=train))
    setting = _setting(probe)
    held = known.get(objective, {})
    found: dict[str, float | None] = dict(held["validation"]) if held.get("setting") == setting else {}
    for rate in rates:
        if f"{rate:g}" in found:
            continue
        tell(f"Probing a learning rate of {rate:g} for {objective}, {epochs} epoch{'s' if epochs > 1 else ''}")
        found[f"{rate:g}"] = _validation(probe, rate, folder / PROBES / f"{objective}-{rate:g}", tell)
        answers = {**known, objective: {"setting": setting, "epochs": epochs, "validation": found}}
        write_atomically(folder / FILE, [(json.dumps(answers, indent=2) + "\n").encode()])
    shutil.rmtree(folder / PROBES, ignore_errors=True)  # only the answers are wanted
    asked = {f"{rate:g}": found[f"{rate:g}"] for rate in rates}
    best = best_rate(asked)
    if best is None:
        raise TrainingError(f"None of the learning rates {list(rates)} trains {objective}; try smaller ones.")
    if list(asked.values()).count(asked[f"{best:g}"]) > 1:
        tell(f"Several learning rates of {objective} validate alike; the first is taken, longer probes may part them")
    said = ", ".join(f"{rate}: {'fails' if value is None else format(value, '.3f')}" for rate, value in asked.items())
    tell(f"Learning rate of {objective}: {best:g} (validation {said})")
    return best


def _setting(probe: Job) -> str:
    """Hash of all that decides a probe but its rate."""
    told = probe.told()
    told["train"].pop("lr")
    return hash_json({"told": told, "parents": probe.parents()})


def _validation(probe: Job, rate: float, out: Path, tell: Tell) -> float | None:
    """The best validation of a probe at one rate; None where it does not train."""
    config = replace(probe.config, train=replace(probe.config.train, lr=rate))
    held = replace(probe, out=out, config=config)
    try:
        return train_retriever(held, tell=tell, validate=ranked_validation(held)).summary["validation"]
    except TrainingError as error:
        tell(f"A learning rate of {rate:g} does not train: {error}")
        return None


def best_rate(found: Mapping[str, float | None]) -> float | None:
    """The rate with the best validation; of equals the first.

    >>> best_rate({"0.01": 2.5, "0.005": 3.0, "0.001": None})
    0.005
    """
    worked = {rate: value for rate, value in found.items() if value is not None}
    return float(max(worked, key=lambda rate: worked[rate])) if worked else None


def read_rates(folder: Path) -> dict[str, dict[str, Any]]:
    """What was probed so far, by objective: setting, epochs, and the validation of each rate."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
