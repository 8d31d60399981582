"""Running a comparison: train and evaluate every cell that is not finished yet."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from restd.artifacts import sole_writer
from restd.errors import ConfigError
from restd.evaluate import Evaluation, TestSet, beam_negatives, ranked_validation, read_tests
from restd.experiments.comparison import Comparison, cell_name
from restd.experiments.evaluations import START, evaluate_baseline, evaluate_model
from restd.experiments.learning_rates import choose_rate, open_probes
from restd.experiments.parallel_runs import train_side_by_side
from restd.experiments.processes import refuse_bad_count
from restd.experiments.study_file import continue_study, save_study
from restd.models.store import model_folder
from restd.progress import Notify
from restd.snapshot import Snapshot
from restd.train import train_retriever

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class FinishedComparison:
    """A comparison with the evaluation of every cell."""

    comparison: Comparison
    cells: Mapping[tuple[str, int], Evaluation]
    """By objective and seed."""
    references: Mapping[str, Evaluation]
    """Baselines, and the checkpoint that the cells continue from (`start`)."""


def run_comparison(comparison: Comparison, *, workers: int = 1, notify: Notify = logger.info) -> FinishedComparison:
    """Train and evaluate every cell that is not finished yet.

    Args:
        comparison: what to compare.
        workers: how many cells are trained at a time, each in its own process.
        notify: receives one sentence at a time about the progress.
    """
    refuse_bad_count(workers)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("A comparison cannot run under torchrun; train single cells with torchrun instead.")
    comparison.out.mkdir(parents=True, exist_ok=True)
    snapshot = Snapshot.load(comparison.index)
    tests = read_tests(comparison.data, snapshot, split=comparison.split, task=comparison.task)
    for sentence in tests.notes():
        notify(sentence)
    with sole_writer(comparison.out):
        comparison = continue_study(comparison)
        references = _references(comparison, tests, snapshot, notify)
        _choose_rates(comparison, workers, notify)
        order = [(objective, seed) for seed in comparison.seeds for objective in comparison.objectives]
        train_side_by_side([comparison.job(*cell) for cell in order], workers=workers, notify=notify)
        cells: dict[tuple[str, int], Evaluation] = {}
        for number, (objective, seed) in enumerate(order, start=1):
            notify(f"[{number}/{len(order)}] {objective}, seed {seed}")
            job = comparison.job(objective, seed)
            model = train_retriever(
                job, notify=notify, validate=ranked_validation(job), refresh=beam_negatives(job)
            ).folder
            name = cell_name(objective, seed)
            cells[objective, seed] = evaluate_model(
                comparison, name, model, tests, snapshot, seeds=(seed,), notify=notify
            )
        save_study(comparison)
        return FinishedComparison(comparison, cells, references)


def _choose_rates(comparison: Comparison, workers: int, notify: Notify) -> None:
    """Choose the learning rate of every objective, where the comparison lists several."""
    if not comparison.rates:
        return
    rates, folder, epochs = comparison.rates, comparison.out, comparison.probe_epochs
    jobs = [replace(comparison, rates=()).job(name, comparison.seeds[0]) for name in comparison.objectives]
    probes = [probe for job in jobs for probe in open_probes(job, rates, folder, epochs=epochs).values()]
    train_side_by_side(probes, workers=workers, notify=notify)
    for job in jobs:
        choose_rate(job, rates, folder, epochs=epochs, notify=notify)


def _references(comparison: Comparison, tests: TestSet, snapshot: Snapshot, notify: Notify) -> dict[str, Evaluation]:
    """Evaluate the baselines and the initial checkpoint."""
    evaluations = {
        name: evaluate_baseline(comparison, name, tests, snapshot, notify=notify) for name in comparison.baselines
    }
    if comparison.init is not None:
        model = model_folder(comparison.init)
        evaluations[START] = evaluate_model(comparison, START, model, tests, snapshot, seeds=(), notify=notify)
    return evaluations
