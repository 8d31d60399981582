"""Batches of item updates that follow from their number, and what a plain dict makes of them."""

import json
import random
import shutil
from contextlib import closing, contextmanager
from pathlib import Path

from restd.serve.item_updates import ItemUpdates
from tests.serving import train_run
from tests.training import COLORS, MATERIALS, THINGS, write_world

SOFA = {"id": "sofa", "title": "purple glass sofa", "category": ["Home", "sofa"], "price": 99.5, "stock": 3}


def write_shop(folder: Path) -> Path:
    """The tiny world with prices and stock, an index, and a run with a fitted hybrid search."""
    data = write_world(folder / "data")
    lines = [json.loads(line) for line in (data / "items.jsonl").read_text("utf-8").splitlines()]
    rows = [{**line, "price": 2.5 * row, "stock": row} for row, line in enumerate(lines)]
    (data / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return train_run(folder, data)


def title(draws):
    return " ".join([draws.choice(COLORS), draws.choice(MATERIALS), draws.choice(THINGS), draws.choice(COLORS)])


def batch(number, titles):
    """What update `number` does to items with these titles: `("put", items)` or `("delete", ids)`."""
    draws = random.Random(number)
    if number % 3 == 0:
        return "delete", draws.sample(sorted(titles), 2)
    known = draws.sample(sorted(titles), 2)
    ids = [*known, *(f"new-{number}-{row}" for row in range(2))][: draws.randint(1, 4)]
    return "put", [{"id": item, "title": title(draws), "price": number} for item in ids]


def after(change, titles):
    """The titles by id, in the order of the rows, after one change."""
    kind, what = change
    ids = what if kind == "delete" else [item["id"] for item in what]
    left = {item: name for item, name in titles.items() if item not in ids}
    return left if kind == "delete" else left | {item["id"]: item["title"] for item in what}


def after_all(count, titles):
    """The titles by id after the first updates."""
    for number in range(1, count + 1):
        titles = after(batch(number, titles), titles)
    return titles


def titles_of(served):
    items = served.snapshot.items
    return dict(zip(items.ids.to_pylist(), items.titles().to_pylist(), strict=True))


def write_model(folder, shop, **options):
    """Another model of the same index, beside the first."""
    shutil.copytree(shop.parent / "data", folder / "data")
    shutil.copytree(shop.parent / "index", folder / "index")
    return train_run(folder, folder / "data", updates=3, **options)


@contextmanager
def opened_updates(served, folder, **options):
    published = []
    updates = ItemUpdates(served, folder, publish=published.append, **options)
    with closing(updates):
        yield updates
    assert all(one is not served for one in published)
