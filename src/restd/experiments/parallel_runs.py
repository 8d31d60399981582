"""Training runs side by side, each in its own process.

Small models leave cores idle: two runs with one core each finish sooner than one after the other with both. This is a
head start and nothing more: the caller trains the same jobs afterwards as usual, finds most of them finished, and
continues with the rest.
"""

from collections.abc import Sequence
from functools import partial

from restd.artifacts.manifest import MANIFEST
from restd.evaluate import beam_negatives, ranked_validation
from restd.experiments.processes import Piece, refuse_bad_count, run_pieces
from restd.models.store import FOLDER
from restd.progress import Notify
from restd.train import Job, train_retriever

STOPPED = "stopped; runs in progress have saved a checkpoint. Run the same command again to continue."


def train_side_by_side(jobs: Sequence[Job], *, workers: int, notify: Notify) -> None:
    """Train the jobs that are not finished, some at a time, with the threads divided among them.

    Errors are not raised here: a run that fails is left as it is, and fails again with its reason when the caller
    trains it.

    Processes import the caller's main module, so a script of your own needs `if __name__ == "__main__":`.

    Args:
        jobs: runs, each with its own folder.
        workers: number of processes.
        notify: receives their messages, each after the name of the run's folder.

    Raises:
        Interrupted: on SIGINT or SIGTERM, after the runs in progress have saved a checkpoint.
    """
    refuse_bad_count(workers)
    waiting = [job for job in jobs if not (job.out / FOLDER / MANIFEST).is_file()]
    if workers == 1 or len(waiting) < 2:
        return
    pieces = [Piece(job.out.name, partial(train_one, job)) for job in waiting]
    again = "it will be trained again on its own"
    run_pieces(pieces, workers=workers, notify=notify, title="Runs", stopped=STOPPED, resume=again)


def train_one(job: Job, notify: Notify) -> None:
    """Train one job, with early stopping as its settings have it."""
    train_retriever(job, notify=notify, validate=ranked_validation(job), refresh=beam_negatives(job))
