"""A finished comparison, opened for analysis."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from restd.data import Catalog
from restd.errors import DataError
from restd.evaluate import Evaluation, TestSet, read_tests
from restd.evaluate.card import BINARY, GRADED
from restd.experiments.comparison import Comparison, cell_name
from restd.experiments.evaluations import NO_HEADS, START, evaluation_folder
from restd.experiments.study_file import load_study
from restd.index import SidIndex
from restd.snapshot import Snapshot

_HASH = 64
_OPTIONAL = ("mode", "heads", "where", "allow", "deny")
"""Options that a protocol card names only where they are used."""


@dataclass(frozen=True, eq=False)
class Study:
    """The settings and evaluations of a comparison; everything is read when it is first used."""

    comparison: Comparison

    @classmethod
    def open(cls, folder: Path, *, device: str | None = None) -> "Study":
        """Open the folder of `restd compare`; models run on this device."""
        return cls(replace(load_study(folder), device=device))

    @cached_property
    def snapshot(self) -> Snapshot:
        """What all cells search."""
        return Snapshot.load(self.comparison.index)

    @property
    def index(self) -> SidIndex:
        """The index of all cells."""
        return self.snapshot.index

    @cached_property
    def tests(self) -> TestSet:
        """The queries that were evaluated."""
        return read_tests(self.comparison.data, self.snapshot, split=self.comparison.split, task=self.comparison.task)

    @cached_property
    def start(self) -> Evaluation | None:
        """Evaluation of the checkpoint that the cells continue from, where there is one."""
        if self.comparison.init is None or not evaluation_folder(self.comparison, START).is_dir():
            return None
        return self._evaluation(START)

    @cached_property
    def baselines(self) -> dict[str, Evaluation]:
        """Evaluations of the baselines, by name."""
        return {name: self._evaluation(name) for name in self.comparison.baselines}

    def cell(self, objective: str, seed: int) -> Evaluation:
        """Evaluation of one cell, measured by the rules of the study."""
        name = cell_name(objective, seed)
        if not evaluation_folder(self.comparison, name).is_dir():
            raise DataError(
                f"{self.comparison.out} has no result of {objective} with seed {seed} on the {self.comparison.split} "
                f"queries; add it with restd compare --objectives {objective} and the study's other options."
            )
        return self._evaluation(name)

    def _evaluation(self, name: str) -> Evaluation:
        """A stored evaluation; one that was measured by other rules than the study's is refused."""
        evaluation = Evaluation.load(evaluation_folder(self.comparison, name))
        rules, card = self._rules, evaluation.card
        stated = {"judgments": card.judgments, "snapshot": card.snapshot, "relevance": card.relevance}
        if card.decoding.get("ranker") == rules["ranker"]:  # a baseline decodes in its own way
            stated |= {**dict.fromkeys(_OPTIONAL), **card.decoding}
            if stated["heads"] == NO_HEADS and rules["heads"] is not None:
                stated["heads"] = rules["heads"]
        other = [key for key in stated if key in rules and stated[key] != rules[key]]
        if other:
            shown = "; ".join(f"{key}: {_short(stated[key])} instead of {_short(rules[key])}" for key in other)
            raise DataError(
                f"{name} of {self.comparison.out} was measured by other rules than the study's ({shown}), so its "
                "values cannot be averaged with the others'. A comparison that was interrupted leaves such a mixture: "
                "run restd compare again with the study's options to evaluate all cells alike."
            )
        return evaluation

    @cached_property
    def _rules(self) -> dict[str, Any]:
        """What the protocol cards of all cells must say, where they say it."""
        comparison = self.comparison
        return {
            "judgments": self.tests.source,
            "snapshot": self.snapshot.hash,
            "relevance": GRADED if comparison.graded else BINARY,
            "router": comparison.router,
            **dict.fromkeys(_OPTIONAL),
            **comparison.decoding.card(task=comparison.task, routes=True),
        }

    def mean_of_seeds(self, objective: str, measure: str) -> Float[np.ndarray, "query"]:
        """Every query's value, averaged over seeds."""
        cells = [self.cell(objective, seed) for seed in self.comparison.seeds]
        return np.mean([cell.values["sid"][measure] for cell in cells], axis=0)

    def model(self, objective: str, seed: int) -> Path:
        """Folder of a cell's trained run."""
        return self.comparison.run(objective, seed)

    def catalog(self) -> Catalog:
        """The items, read as the index read them."""
        return Catalog.read_as(self.comparison.data, self.index.origin.get("reading"))


def _short(value: object) -> str:
    """A value for a message; hashes by their beginning."""
    return value[:8] if isinstance(value, str) and len(value) == _HASH else str(value)
