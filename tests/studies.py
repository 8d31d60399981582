"""A tiny study: every kind of objective, two seeds, in seconds."""

from dataclasses import replace

from restd.experiments import Comparison
from tests.training import job, make_index, run, write_world

SETTINGS = ("distill.weight=1.0", "distill.cap=none", "distill.warm_up=2", "train.lr=0.01")


def write_place(folder):
    """Data, index and a base model."""
    data = write_world(folder / "data")
    index = make_index(data, folder / "index")
    run(index, data, folder / "base", updates=15)
    return folder


def comparison(folder, out, *, objectives=("base", "rbd", "restd"), seeds=(1, 2), joint=False, **changed):
    init = None if joint else folder / "base"
    made = job(folder / "index", folder / "data", out, *SETTINGS, init=init, updates=12)
    held = Comparison(
        index=folder / "index",
        data=folder / "data",
        out=out,
        model=made.model,
        config=made.config,
        init=init,
        objectives=tuple(objectives),
        seeds=tuple(seeds),
        split="valid",
    )
    return replace(held, **changed)
