"""Whether the quantiser's preferences say what users take next: counted, without a model that has to learn it first.

From the first code of the latest item to the first code of the next one, transitions are counted twice: once as stored
codes, once as what the next item's teacher spreads over the codes. If the second kind of counting predicts held-out
transitions better, the teacher knows something of next items that the stored code does not say. A model that is taught
by it and gains nothing then does so for other reasons.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.sparse import coo_array

from restd.analyses.result import AnalysisResult, Figure, Table, best_of_columns
from restd.analyses.teachers import study_teachers
from restd.data import Histories, Prefixes, leave_one_out
from restd.distill import code_mean
from restd.errors import DataError
from restd.evaluate import bootstrap_mean
from restd.experiments.study import Study

SHARES = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""What part of a count is spread as the teacher says; the rest goes to the stored code."""
BELIEFS = (5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 400.0, 800.0)
"""Transitions that how often codes come at all is worth beside those that were counted."""
_INTERVAL = "{mean:+.4f} [{low:+.4f}, {high:+.4f}]"
_BEYOND = "the item beyond its code"
_NAMES = {
    "own": "the item's own teacher",
    "code-mean": "the mean teacher of its first code",
    "another": "another item's teacher",
}


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Transitions: the first code of the latest item, and the next item."""

    before: Int64[np.ndarray, "step"]
    item: Int64[np.ndarray, "step"]

    @classmethod
    def of(cls, prefixes: Prefixes, codes: Int64[np.ndarray, "item"]) -> "Steps":
        """From what comes last before a held-out item to that item."""
        return cls(codes[prefixes.histories.event_items[prefixes.end - 1]], prefixes.targets)

    def pick(self, places: slice) -> "Steps":
        """Some of them."""
        return Steps(self.before[places], self.item[places])


def log_chances(
    counted: Steps,
    targets: Steps,
    codes: Int64[np.ndarray, "item"],
    spread: Float[np.ndarray, "item code"],
    *,
    belief: float,
) -> Float[np.ndarray, "step"]:
    """Logarithm of what counted transitions give to the stored code of each target.

    Args:
        counted: transitions to count.
        targets: transitions to predict.
        codes: stored first code of each item.
        spread: how one transition to an item is shared among the codes.
        belief: transitions that the frequency of stored codes is worth.

    >>> codes, spread = np.array([0, 1]), np.eye(2)
    >>> steps = Steps(np.array([0, 0, 0]), np.array([1, 1, 0]))
    >>> np.exp(log_chances(steps, steps, codes, spread, belief=2.0)).round(3).tolist()  # (2 + 2 · 3/5) / 5
    [0.64, 0.64, 0.36]
    """
    size = spread.shape[1]
    often = np.bincount(codes[counted.item], minlength=size) + 1.0
    pairs = coo_array((np.ones(len(counted.item)), (counted.before, counted.item)), shape=(size, len(codes)))
    counts = np.asarray(pairs.tocsr() @ spread)
    rows = (counts + belief * often / often.sum()) / (counts.sum(1, keepdims=True) + belief)
    return np.log(rows[targets.before, codes[targets.item]])


def transitions(study: Study, *, seed: int = 0) -> AnalysisResult:
    """Log-likelihood of held-out transitions by what share of a count the teacher spreads, whose teacher it may be.

    How much frequencies count is chosen on every other validation user, row by row; the others are predicted.
    The test's items have no part in it.

    Args:
        study: a comparison of recommenders.
        seed: of who takes whose teacher.
    """
    if study.comparison.task != "recommend":
        raise DataError(
            "This study compares answers to queries. The analysis of transitions needs a study of histories."
        )
    codes = study.index.sids[:, 0].astype(np.int64)
    histories = Histories.read(study.comparison.data)[0].over(study.index.table.ids)[0]
    counted, held_out = (Steps.of(leave_one_out(histories, split), codes) for split in ("train", "valid"))
    if len(held_out.item) < 4:
        raise DataError(f"Expected at least 4 validation users, half of them to choose on; got {len(held_out.item)}.")
    chosen_on, targets = held_out.pick(slice(0, None, 2)), held_out.pick(slice(1, None, 2))
    teachers = study_teachers(study)
    own = teachers.taught(len(study.index), level=0).double().numpy()
    of_code = code_mean(teachers.teacher, torch.arange(len(study.index))).table[0].double().numpy()
    stored = np.eye(own.shape[1])[codes]
    kinds = {"own": own, "code-mean": of_code[codes]}
    kinds["another"] = own[np.random.default_rng(seed).permutation(len(own))]

    def predict(spread: Float[np.ndarray, "item code"]) -> Float[np.ndarray, "step"]:
        tried = {belief: log_chances(counted, chosen_on, codes, spread, belief=belief).mean() for belief in BELIEFS}
        return log_chances(counted, targets, codes, spread, belief=max(tried, key=lambda belief: tried[belief]))

    plain = predict(stored)
    softly = {
        name: [predict((1 - share) * stored + share * teacher) for share in SHARES] for name, teacher in kinds.items()
    }
    numbers = {
        "stored": float(-plain.mean()),
        "counted": len(counted.item),
        "asked": len(targets.item),
        "gains": {
            name: [asdict(bootstrap_mean(chances - plain)) for chances in by_share] for name, by_share in softly.items()
        },
        "beyond": [
            asdict(bootstrap_mean(own - mean)) for own, mean in zip(softly["own"], softly["code-mean"], strict=True)
        ],
    }
    return _result(numbers)


def _result(numbers: Mapping[str, Any]) -> AnalysisResult:
    columns = {**{_NAMES[name]: gains for name, gains in numbers["gains"].items()}, _BEYOND: numbers["beyond"]}
    rows = tuple(
        (f"{share:.0%}", *(_INTERVAL.format(**gains[number]) for gains in columns.values()))
        for number, share in enumerate(SHARES)
    )
    best = best_of_columns([[gains[number]["mean"] for gains in columns.values()] for number in range(len(SHARES))])
    table = Table(
        "transitions",
        "Nats gained on a held-out transition by counting softly",
        ("Share of a count that is spread", *columns),
        rows,
        (
            f"Counted as stored codes, a transition costs {numbers['stored']:.4f} nats. 95 % bootstrap intervals over "
            "users; the last column is the first minus the second.",
        ),
        best,
    )
    figure = Figure(
        "transitions",
        "What the teacher knows about next items",
        "lines",
        {
            "labels": [f"{share:.0%}" for share in SHARES],
            "series": {name: [entry["mean"] for entry in gains] for name, gains in columns.items() if name != _BEYOND},
            "xlabel": "share of a count that the teacher spreads",
            "ylabel": "nats gained per transition",
        },
    )
    most = int(np.argmax([entry["mean"] for entry in numbers["gains"]["own"]]))
    says = (
        f"{numbers['counted']:,} transitions between first codes were counted, and {numbers['asked']:,} of validation "
        f"users predicted. With {SHARES[most]:.0%} of each count spread as the item's own teacher prefers, the "
        f"prediction of a transition is {_INTERVAL.format(**numbers['gains']['own'][most])} nats better than by stored "
        f"codes alone. Of that, the item adds {_INTERVAL.format(**numbers['beyond'][most])} to the mean of its code."
    )
    return AnalysisResult(
        "transitions", "What teachers know about next items", says, (table,), (figure,), dict(numbers)
    )
