"""A tiny world to train in: sixty items, an index, judgments, and backbones that learn in a second."""

import json
from pathlib import Path

import numpy as np
import torch

from restd.cli.train import configure
from restd.data import Catalog
from restd.index import IndexConfig, build_index, with_shape
from restd.train import Job, train_retriever

COLORS = ["red", "blue", "green", "black"]
MATERIALS = ["steel", "oak", "glass"]
THINGS = ["kettle", "desk", "lamp", "mug", "chair"]

TINY = {
    "compact": ["compact.width=32", "compact.heads=2", "compact.blocks=1"],
    "t5": [
        *("t5.model=fresh", "t5.vocabulary=80", "t5.width=32", "t5.feed=32", "t5.layers=1", "t5.heads=2"),
        "t5.head_width=16",
    ],
}
TINY["tiger"] = ["tiger.width=32", "tiger.layers=1", "tiger.heads=2", "tiger.head_width=16", "tiger.feed=64"]
TINY["tiger"] += ["train.select=loss", "train.keep=last", "train.patience=0"]
TINY["calir"] = ["calir.body=compact", "calir.depth=2", *TINY["compact"]]
FAST = ["train.batch=8", "train.micro=4", "train.lr=0.003", "train.warm_up=0.1", "train.indexing=none"]


def write_world(folder: Path, *, categories: bool = True) -> Path:
    """Items and judgments as JSON lines: each thing, of each material, in each colour."""
    folder.mkdir(parents=True, exist_ok=True)
    items, judgments = [], []
    for thing in THINGS:
        for material in MATERIALS:
            for color in COLORS:
                path = ["Home", thing] if thing != "mug" else ["Home"]
                item = {"id": f"{color}-{material}-{thing}", "title": f"{color} {material} {thing}"}
                items.append({**item, "category": path} if categories else item)
    for thing in THINGS:
        for material in MATERIALS:
            for split, query in (("train", f"{material} {thing}"), ("valid", f"a {thing} of {material}")):
                for color in COLORS[:2]:
                    name = f"{color}-{material}-{thing}"
                    judgments.append({"query": query, "item": name, "grade": 1, "split": split})
    for color in COLORS:
        judgments.append({"query": f"{color} thing", "item": f"{color}-oak-desk", "grade": "I", "split": "train"})
    for name, rows in (("items", items), ("judgments", judgments)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return folder


def write_walks(folder: Path, *, users: int = 80, seed: int = 0) -> Path:
    """The same items, and users who walk through them instead of judgments."""
    add_walks(write_world(folder), users=users, seed=seed)
    (folder / "judgments.jsonl").unlink()
    return folder


def add_walks(folder: Path, *, users: int = 80, seed: int = 0) -> None:
    """Users who walk through the items of a world: seven items on, now and then eight."""
    ids = [json.loads(line)["id"] for line in (folder / "items.jsonl").read_text("utf-8").splitlines()]
    rng, events = np.random.default_rng(seed), []
    for user in range(users):
        steps = np.where(rng.random(4 + rng.integers(6)) < 0.9, 7, 8).cumsum()
        for time, step in enumerate((rng.integers(len(ids)) + steps) % len(ids)):
            events.append({"user": f"user{user}", "item": ids[step], "time": time})
    (folder / "histories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events), encoding="utf-8")


def make_index(data: Path, out: Path, *, policy: str = "single_substitution", seed: int = 0) -> Path:
    config = with_shape(IndexConfig(encoder="tfidf-svd", policy=policy), levels=3, codes=8, dim=8, seed=seed)
    build_index(Catalog(data), out, config)
    return out


def job(index, data, out, *settings, backbone="compact", objective="base", init=None, updates=20, cache=None):
    """A tiny run."""
    model, config = configure(
        None,
        [*TINY[backbone], *FAST, *settings],
        backbone=backbone,
        objective=objective,
        continued_from=init,
        options={"updates": updates} if updates else None,
    )
    return Job(index, data, out, model, config, init, cache)


def run(*args, notify=lambda sentence: None, validate=None, **options):
    from restd.evaluate import beam_negatives

    made = job(*args, **options)
    return train_retriever(made, notify=notify, validate=validate, refresh=beam_negatives(made))


def weights(folder: Path):
    """Every tensor of a model folder."""
    from safetensors.numpy import load_file

    return {
        f"{path.name}:{name}": value
        for path in sorted(folder.glob("*.safetensors"))
        for name, value in load_file(path).items()
    }


def same_weights(left, right):
    one, other = weights(left), weights(right)
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@torch.inference_mode()
def plain_beam(backbone, index, queries, *, width=20, k=10):
    """Rows of the best items by beam search without a cache: slow, short, and hard to get wrong."""
    sids = torch.from_numpy(index.sids.astype(np.int64))
    row_of = {tuple(sid): row for row, sid in enumerate(sids.tolist())}
    followers = [{} for _ in index.sizes]
    for sid in sids.tolist():
        for level, code in enumerate(sid):
            followers[level].setdefault(tuple(sid[:level]), set()).add(code)
    backbone.eval()
    prepared, found = backbone.prepare(queries), []
    for number in range(len(queries)):
        memory = backbone.encode(prepared.batch(np.array([number])))
        beams = [((), 0.0)]
        for level in range(len(index.sizes)):
            prefixes = torch.tensor([prefix for prefix, _ in beams], dtype=torch.int64).reshape(len(beams), level)
            taken = memory.take(torch.zeros(len(beams), dtype=torch.int64))
            scores = backbone.logits(backbone.states(taken, prefixes).states)[:, level].log_softmax(-1).tolist()
            longer = [
                ((*prefix, code), score + scores[place][code])
                for place, (prefix, score) in enumerate(beams)
                for code in followers[level][prefix]
            ]
            beams = sorted(longer, key=lambda beam: (-beam[1], beam[0]))[:width]
        found.append([row_of[prefix] for prefix, _ in beams[:k]])
    return found
