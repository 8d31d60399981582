"""A finished comparison, opened for analysis."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float

from restd.data import Catalog
from restd.errors import DataError
from restd.evaluate import Evaluation, TestSet, read_tests
from restd.index import SidIndex
from restd.study.comparison import EVALUATIONS, START, Comparison, cell_name, recall_study
from restd.study.teachers import Teachers


@dataclass(frozen=True, eq=False)
class Study:
    """What a comparison was told, and what came of it; read when asked for."""

    comparison: Comparison

    @classmethod
    def open(cls, folder: Path) -> "Study":
        """Open the folder of `restd compare`."""
        return cls(recall_study(folder))

    @cached_property
    def index(self) -> SidIndex:
        """The index of all cells."""
        return SidIndex.load(self.comparison.index)

    @cached_property
    def tests(self) -> TestSet:
        """The queries that were asked."""
        return read_tests(
            self.comparison.data, self.index.table.ids, split=self.comparison.split, task=self.comparison.task
        )

    @cached_property
    def beside(self) -> dict[str, Evaluation]:
        """The checkpoint the cells went on from, where there is one."""
        folder = self._folder(START)
        if self.comparison.init is None:
            return {}
        return {START: Evaluation.load(folder)} if folder.is_dir() else {}

    @cached_property
    def baselines(self) -> dict[str, Evaluation]:
        """The rankers beside the models."""
        return {name: Evaluation.load(self._folder(name)) for name in self.comparison.baselines}

    def _folder(self, name: str) -> Path:
        return self.comparison.out / EVALUATIONS / f"{name}-{self.comparison.split}"

    def cell(self, objective: str, seed: int) -> Evaluation:
        """One cell's result."""
        folder = self._folder(cell_name(objective, seed))
        if not folder.is_dir():
            raise DataError(
                f"{self.comparison.out} has no result of {objective} with seed {seed} on the {self.comparison.split} "
                f"queries; add it with restd compare --objectives {objective} and the study's other options."
            )
        return Evaluation.load(folder)

    def mean_of_seeds(self, objective: str, measure: str) -> Float[np.ndarray, "query"]:
        """Every query's value, averaged over seeds."""
        held = [self.cell(objective, seed).values["sid"][measure] for seed in self.comparison.seeds]
        return np.mean(held, axis=0)

    def model(self, objective: str, seed: int) -> Path:
        """Folder of a cell's trained run."""
        return self.comparison.run(objective, seed)

    def catalog(self) -> Catalog:
        """The items, read as the index read them."""
        return Catalog.read_as(self.comparison.data, self.index.origin.get("reading"))

    def teachers(self) -> Teachers:
        """The teacher as the study's runs had it."""
        return Teachers.of(self.index, self.comparison.config.distill)
