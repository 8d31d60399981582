"""The learning rate by validation: short runs at every rate, the one that validates best chosen."""

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
from restd.train import Job, read_log, train_retriever
from restd.train.log import LOG

Tell = Callable[[str], None]
Answers = dict[str, dict[str, float] | None]
"""Of each rate, as a word: its lowest validation loss, and the best of what `train.select` looks at."""
FILE = "rates.json"
PROBES = "rates"
_LONGEST = 5


def choose_rate(job: Job, rates: Sequence[float], folder: Path, *, epochs: int, tell: Tell) -> float:
    """Train `epochs` epochs at each rate, and return the one that validates best; answers are reused.

    What `train.select` looks at decides, over all validation queries: where rankings are wanted, the generation loss
    need not agree, for it is a mean over all codes and the later ones follow from the catalogue. The loss is kept
    beside it. Everything else, the seed included, is as in the job; a rate
    at which training breaks down is out. Answers go to `rates.json` in the folder, by objective, and are those of one
    setting: where anything else has changed, rates are probed again.

    Args:
        job: what is to be trained.
        rates: to choose among.
        folder: where probes are trained and answers kept.
        epochs: of a probe, at most five: a probe should cost less than the run it serves.
        tell: hears what was found.
    """
    probes = open_probes(job, rates, folder, epochs=epochs)
    objective, known = job.config.objective, read_rates(folder)
    setting, found = _answered(job, folder, epochs)
    for rate, probe in probes.items():
        tell(f"Probing a learning rate of {rate:g} for {objective}, {epochs} epoch{'s' if epochs > 1 else ''}")
        found[_name(rate)] = _answer(probe, tell)
        answers = {**known, objective: {"setting": setting, "epochs": epochs, "probes": found}}
        write_atomically(folder / FILE, [(json.dumps(answers, indent=2) + "\n").encode()])
    for probe in probes.values():  # only the answers are wanted
        shutil.rmtree(probe.out, ignore_errors=True)
    asked = {_name(rate): found[_name(rate)] for rate in rates}
    best = best_rate(asked)
    if best is None:
        raise TrainingError(f"None of the learning rates {list(rates)} trains {objective}; try smaller ones.")
    said = ", ".join(
        f"{rate}: {'fails' if held is None else format(held['validation'], '.3f')}" for rate, held in asked.items()
    )
    tell(f"Learning rate of {objective}: {best:g} (validation {said})")
    return best


def open_probes(job: Job, rates: Sequence[float], folder: Path, *, epochs: int) -> dict[float, Job]:
    """The runs it still takes to choose a rate, by rate; arguments as for `choose_rate`."""
    refuse_bad_rates(rates, epochs)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("Learning rates are probed by one process; choose one without torchrun, then give train.lr.")
    _, answered = _answered(job, folder, epochs)
    return {rate: _probe(job, rate, folder, epochs) for rate in rates if _name(rate) not in answered}


def _name(rate: float) -> str:
    """A rate as a word that says all of it."""
    return repr(float(rate))


def refuse_bad_rates(rates: Sequence[float], epochs: int) -> None:
    """Rates above zero, and probes that are short."""
    if not rates or min(rates) <= 0:
        raise ConfigError(f"Rates {list(rates)} were given; wanted at least one, all above 0.")
    if not 1 <= epochs <= _LONGEST:
        raise ConfigError(f"Probes of {epochs} epochs were asked for; wanted 1 to {_LONGEST}.")


def _probe(job: Job, rate: float, folder: Path, epochs: int) -> Job:
    train = replace(job.config.train, lr=rate, updates=0, epochs=epochs, patience=0, keep="best", judged=0)
    out = folder / PROBES / f"{job.config.objective}-{_name(rate)}"
    return replace(job, out=out, config=replace(job.config, train=train))


def _answered(job: Job, folder: Path, epochs: int) -> tuple[str, Answers]:
    """Hash of all that decides a probe but its rate, and the answers there are for that, by rate."""
    probe = _probe(job, 1.0, folder, epochs)
    told = probe.told()
    told["train"].pop("lr")
    setting = hash_json({"told": told, "parents": probe.parents()})
    held = read_rates(folder).get(job.config.objective, {})
    return setting, dict(held["probes"]) if held.get("setting") == setting else {}


def _answer(probe: Job, tell: Tell) -> dict[str, float] | None:
    """The lowest loss of a probe and the best of what its settings look at; None where it does not train."""
    try:
        trained = train_retriever(probe, tell=tell, validate=ranked_validation(probe))
        losses = [record["valid_loss"] for record in read_log(probe.out / LOG) if "valid_loss" in record]
        return {"loss": min(losses), "validation": trained.summary["validation"]}
    except TrainingError as error:
        tell(f"A learning rate of {probe.config.train.lr:g} does not train: {error}")
        return None


def best_rate(found: Mapping[str, Mapping[str, float] | None]) -> float | None:
    """The rate that validates best, higher being better; of equal ones the one with the lower loss.

    >>> best_rate({"0.01": {"validation": 1.5, "loss": 2.0}, "0.005": {"validation": 2.5, "loss": 3.0}, "0.001": None})
    0.005
    """
    answers = {rate: (held["validation"], -held["loss"]) for rate, held in found.items() if held is not None}
    return float(max(answers, key=lambda rate: answers[rate])) if answers else None


def read_rates(folder: Path) -> dict[str, dict[str, Any]]:
    """What was probed so far, by objective: setting, epochs, and the answer of each rate."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
