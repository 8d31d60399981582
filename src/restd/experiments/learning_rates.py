"""The learning rate chosen on validation: a short run at every rate, and the one with the best validation wins."""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from restd.artifacts import hash_json, write_atomically
from restd.errors import ConfigError, TrainingError
from restd.evaluate import beam_negatives, ranked_validation
from restd.progress import Notify
from restd.train import Job, read_log, train_retriever
from restd.train.log import LOG

ProbeScores = dict[str, dict[str, float] | None]
"""By rate, as text: the lowest validation loss and the best value of `train.select`; None where training failed."""
FILE = "rates.json"
PROBES = "rates"
_MAX_EPOCHS = 5


def choose_rate(job: Job, rates: Sequence[float], folder: Path, *, epochs: int, notify: Notify) -> float:
    """Train a few epochs at each rate and return the rate with the best validation; finished probes are reused.

    Rates are compared by `train.select` over all validation queries. The generation loss need not agree with a
    ranking metric: it is a mean over all codes, and later codes are often determined by the catalogue. Both are kept.
    Everything else, the seed included, is as in the job. A rate at which training fails is left out. Scores go to
    `rates.json` in the folder, by objective; when any other setting changes, rates are probed again.

    Args:
        job: what is to be trained.
        rates: learning rates to choose from.
        folder: where probes are trained and their scores kept.
        epochs: length of a probe, at most five: a probe should cost less than the run it serves.
        notify: receives one sentence at a time about the progress.
    """
    probes = open_probes(job, rates, folder, epochs=epochs)
    objective, saved = job.config.objective, read_rates(folder)
    setting, scores = _finished_probes(job, folder, epochs)
    for rate, probe in probes.items():
        notify(f"Probing a learning rate of {rate:g} for {objective}, {epochs} epoch{'s' if epochs > 1 else ''}")
        scores[_key(rate)] = _probe_scores(probe, notify)
        entry = {"setting": setting, "epochs": epochs, "probes": scores}
        write_atomically(folder / FILE, [(json.dumps({**saved, objective: entry}, indent=2) + "\n").encode()])
    for probe in probes.values():  # only their scores are needed
        shutil.rmtree(probe.out, ignore_errors=True)
    candidates = {_key(rate): scores[_key(rate)] for rate in rates}
    best = best_rate(candidates)
    if best is None:
        raise TrainingError(f"None of the learning rates {list(rates)} trains {objective}; try smaller ones.")
    values = {rate: "fails" if score is None else f"{score['validation']:.3f}" for rate, score in candidates.items()}
    listed = ", ".join(f"{rate}: {value}" for rate, value in values.items())
    notify(f"Learning rate of {objective}: {best:g} (validation {listed})")
    return best


def open_probes(job: Job, rates: Sequence[float], folder: Path, *, epochs: int) -> dict[float, Job]:
    """Runs that are still needed to choose a rate, by rate; arguments as for `choose_rate`."""
    refuse_bad_rates(rates, epochs)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("Learning rates cannot be probed under torchrun; choose one without it, then set train.lr.")
    _, finished = _finished_probes(job, folder, epochs)
    return {rate: _probe(job, rate, folder, epochs) for rate in rates if _key(rate) not in finished}


def _key(rate: float) -> str:
    """A rate as text, with all its digits."""
    return repr(float(rate))


def refuse_bad_rates(rates: Sequence[float], epochs: int) -> None:
    """Refuse rates that are not above zero, and probes that are too long."""
    if not rates or min(rates) <= 0:
        raise ConfigError(f"Expected at least one learning rate, all above 0; got {list(rates)}.")
    if not 1 <= epochs <= _MAX_EPOCHS:
        raise ConfigError(f"Expected probes of 1 to {_MAX_EPOCHS} epochs, got {epochs}.")


def _probe(job: Job, rate: float, folder: Path, epochs: int) -> Job:
    train = replace(job.config.train, lr=rate, updates=0, epochs=epochs, patience=0, keep="best", judged=0)
    out = folder / PROBES / f"{job.config.objective}-{_key(rate)}"
    return replace(job, out=out, config=replace(job.config, train=train))


def _finished_probes(job: Job, folder: Path, epochs: int) -> tuple[str, ProbeScores]:
    """Hash of everything that decides a probe except its rate, and the scores of finished probes with that hash."""
    probe = _probe(job, 1.0, folder, epochs)
    settings = probe.settings()
    settings["train"].pop("lr")
    settings["train"].pop("pseudo_table")  # its content is a parent
    setting = hash_json({"told": settings, "parents": probe.parents()})
    saved = read_rates(folder).get(job.config.objective, {})
    return setting, dict(saved["probes"]) if saved.get("setting") == setting else {}


def _probe_scores(probe: Job, notify: Notify) -> dict[str, float] | None:
    """Train a probe; its lowest loss and its best validation, or None where training fails."""
    try:
        trained = train_retriever(
            probe, notify=notify, validate=ranked_validation(probe), refresh=beam_negatives(probe)
        )
    except TrainingError as error:
        notify(f"Training fails at a learning rate of {probe.config.train.lr:g}: {error}")
        return None
    losses = [record["valid_loss"] for record in read_log(probe.out / LOG) if "valid_loss" in record]
    lowest = min((loss for loss in losses if not math.isnan(loss)), default=math.inf)
    return {"loss": lowest, "validation": trained.summary["validation"]}


def best_rate(scores: Mapping[str, Mapping[str, float] | None]) -> float | None:
    """The rate with the highest validation; among equal ones, the one with the lower loss.

    >>> best_rate({"0.01": {"validation": 1.5, "loss": 2.0}, "0.005": {"validation": 2.5, "loss": 3.0}, "0.001": None})
    0.005
    """
    ranked = {rate: (score["validation"], -score["loss"]) for rate, score in scores.items() if score is not None}
    return float(max(ranked, key=lambda rate: ranked[rate])) if ranked else None


def read_rates(folder: Path) -> dict[str, dict[str, Any]]:
    """Probes of a folder so far, by objective: setting, epochs, and the scores of each rate."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
