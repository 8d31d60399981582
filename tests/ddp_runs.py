"""Runs inside a group of processes: torchrun -m tests.ddp_runs FOLDER, where FOLDER holds data and index."""

import os
import sys
from pathlib import Path

from restd.cli.train import leave_group
from tests.training import run

NO_DROPOUT = ("compact.dropout=0.0", "calir.dropout=0.0", "tiger.dropout=0.0")
CAUSAL = ("tiger.causal=true", "tiger.history=4")

ALONE = ("rank.negatives=1", "rank.refresh=0.5", "rank.queries=10", "rank.weight=1")
"""One negative for each query leaves nothing to be drawn, so that processes can be compared."""
SOFT = (*NO_DROPOUT[:1], "train.ema=0.9", "train.multi_positive=grades", "train.loss_norm=trie_children")


def main():
    folder = Path(sys.argv[1])
    for backbone, objective in (("compact", "base"), ("compact", "restd"), ("calir", "restd"), ("tiger", "base")):
        run(
            folder / "index",
            folder / "data",
            folder / f"two-{backbone}-{objective}",
            *NO_DROPOUT,
            *CAUSAL,
            "train.batch=8",
            "train.micro=2",
            "train.checkpoint=7",
            backbone=backbone,
            objective=objective,
        )
    run(
        folder / "index",
        folder / "data",
        folder / "two-soft",
        *SOFT,
        *("train.batch=8", "train.micro=2", "train.checkpoint=7"),
    )
    run(
        folder / "index",
        folder / "data",
        folder / "two-ddro",
        *(*NO_DROPOUT, *ALONE, "train.batch=8", "train.micro=2", "train.checkpoint=7"),
        objective="ddro",
    )
    scores = iter([1.0, 2.0, 3.0] if os.environ["RANK"] == "0" else [3.0, 2.0, 1.0])
    run(
        folder / "index",
        folder / "data",
        folder / "two-validated",
        *("train.batch=8", "train.micro=4", "train.epochs=3", "train.patience=1", "train.keep=last"),
        updates=None,
        validate=lambda backbone: next(scores),
    )
    leave_group()


if __name__ == "__main__":
    main()
