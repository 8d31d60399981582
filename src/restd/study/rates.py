"""The learning rate by validation: short runs at every rate, the best of them chosen."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from restd.data.trec import write_atomically
from restd.errors import ConfigError, TrainingError
from restd.evaluate import ranked_validation
from restd.train import Job, train_retriever

Tell = Callable[[str], None]
PAPER_RATES = (0.01, 0.005, 0.001, 0.0005)
"""What the paper chooses among for recommendation."""
FILE = "rates.json"
PROBES = "rates"
_LONGEST = 5


def choose_rate(job: Job, rates: Sequence[float], folder: Path, *, epochs: int, tell: Tell) -> float:
    """Train `epochs` epochs at each rate, and return the one with the best validation; known answers are reused.

    Everything else, the seed included, is as in the job; a rate at which training breaks down is out. Answers go to
    `rates.json` in the folder, by objective.

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
    known = read_rates(folder)
    objective = job.config.objective
    found: dict[str, float | None] = dict(known.get(objective, {}))
    for rate in rates:
        if f"{rate:g}" in found:
            continue
        train = replace(job.config.train, lr=rate, updates=0, epochs=epochs, patience=0, keep="best")
        out = folder / PROBES / f"{objective}-{rate:g}"
        probe = replace(job, out=out, config=replace(job.config, train=train))
        tell(f"Probing a learning rate of {rate:g} for {objective}, {epochs} epochs")
        try:
            found[f"{rate:g}"] = train_retriever(probe, tell=tell, validate=ranked_validation(probe)).summary[
                "validation"
            ]
        except TrainingError as error:
            tell(f"A learning rate of {rate:g} does not train: {error}")
            found[f"{rate:g}"] = None
        text = json.dumps({**known, objective: found}, indent=2) + "\n"
        write_atomically(folder / FILE, [text.encode()])
        shutil.rmtree(out, ignore_errors=True)  # only the answer is wanted
    best = chosen(found)
    if best is None:
        raise TrainingError(f"None of the learning rates {list(rates)} trains {objective}; try smaller ones.")
    tell(f"Learning rate of {objective}: {best:g} (validation {', '.join(f'{k}: {v}' for k, v in found.items())})")
    return best


def chosen(found: dict[str, float | None]) -> float | None:
    """The rate with the best validation; of equals the first.

    >>> chosen({"0.01": 2.5, "0.005": 3.0, "0.001": None})
    0.005
    """
    worked = {rate: value for rate, value in found.items() if value is not None}
    return float(max(worked, key=lambda rate: worked[rate])) if worked else None


def read_rates(folder: Path) -> dict[str, dict[str, float | None]]:
    """Validations of every objective and rate that were probed so far."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
