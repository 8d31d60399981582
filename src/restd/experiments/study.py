"""A finished comparison, opened for analysis."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float

from restd.data import Catalog
from restd.errors import DataError
from restd.evaluate import Evaluation, TestSet, read_tests
from restd.experiments.comparison import Comparison, cell_name
from restd.experiments.evaluations import START, evaluation_folder
from restd.experiments.study_file import load_study
from restd.index import SidIndex
from restd.snapshot import Snapshot


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
        folder = evaluation_folder(self.comparison, START)
        return Evaluation.load(folder) if self.comparison.init is not None and folder.is_dir() else None

    @cached_property
    def baselines(self) -> dict[str, Evaluation]:
        """Evaluations of the baselines, by name."""
        names = self.comparison.baselines
        return {name: Evaluation.load(evaluation_folder(self.comparison, name)) for name in names}

    def cell(self, objective: str, seed: int) -> Evaluation:
        """Evaluation of one cell."""
        folder = evaluation_folder(self.comparison, cell_name(objective, seed))
        if not folder.is_dir():
            raise DataError(
                f"{self.comparison.out} has no result of {objective} with seed {seed} on the {self.comparison.split} "
                f"queries; add it with restd compare --objectives {objective} and the study's other options."
            )
        return Evaluation.load(folder)

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
