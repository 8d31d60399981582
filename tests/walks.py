"""A world of walks, and a model that knows them; made once for all tests of recommending."""

from restd.index import SidIndex
from restd.train import train_retriever
from tests.training import job, make_index, write_walks

SETTINGS = ("train.lr=0.01",)


def made(folder):
    """Items and walks, an index with a disambiguation code, and a trained TIGER."""
    data = write_walks(folder / "data", users=200)
    make_index(data, folder / "index", policy="suffix")
    settings = (*SETTINGS, "train.lr=0.003", "train.batch=32", "train.micro=32", "tiger.dropout=0.0")
    asked = job(folder / "index", data, folder / "run", *settings, backbone="tiger", updates=600)
    train_retriever(asked, notify=lambda sentence: None)
    return folder


def walk(place, count, start=0):
    ids = SidIndex.load(place / "index").table.ids.to_pylist()
    return [ids[(start + 7 * step) % len(ids)] for step in range(count)]


def tiger(place, out, *settings, **options):
    return job(place / "index", place / "data", out, *SETTINGS, *settings, backbone="tiger", **options)
