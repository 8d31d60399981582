"""The pseudo-queries of a run: drawn from items' words, from a table, or both."""

from pathlib import Path

import numpy as np

from restd.data.pairs import Pairs
from restd.data.pseudo_pairs import (
    describe_items,
    held_out_items,
    pseudo_query_pairs,
    with_fitting_items,
    without_items,
)
from restd.data.pseudo_table import read_pseudo_table
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.progress import Notify
from restd.train.job import Job, open_catalog


def with_pseudo_queries(job: Job, index: SidIndex, pairs: Pairs, notify: Notify) -> Pairs:
    """Add the pseudo-queries that the run's settings ask for; never one of a held-out item."""
    config = job.config.train
    if not config.pseudo_queries and not config.pseudo_table:
        return pairs
    if job.task == "recommend":
        raise ConfigError(
            "A recommender does not read texts; leave train.pseudo_queries at 0 and train.pseudo_table empty."
        )
    ids = index.table.ids
    held_out = held_out_items(job.data, ids)
    extra: list[Pairs] = []
    if config.pseudo_table:
        listed, unknown = read_pseudo_table(Path(config.pseudo_table), ids)
        if unknown:
            notify(
                f"{unknown:,} rows of {config.pseudo_table} name items that the index does not have; they are left out"
            )
        extra.append(listed)
    items = None
    if config.pseudo_queries or config.pseudo_positives > 1:
        items = describe_items(open_catalog(job.data, index), ids)
    if config.pseudo_queries:
        assert items is not None
        draws = min(config.pseudo_draws, config.epochs) if config.epochs else config.pseudo_draws
        kinds, seed = config.pseudo_kinds, config.seed
        extra.append(pseudo_query_pairs(items, per_item=config.pseudo_queries, kinds=kinds, seed=seed, draws=draws))
    extra = [without_items(part, held_out) for part in extra]
    if held_out is not None:
        count = int(np.count_nonzero(held_out))
        notify(f"The data set's queries are made up; pseudo-queries of its {count:,} held-out items are left out")
    if config.pseudo_positives > 1:
        assert items is not None
        words, most = items.word_index(), config.pseudo_positives
        before = sum(map(len, extra))
        extra = [with_fitting_items(part, words, most=most, held_out=held_out) for part in extra]
        notify(f"Pseudo-queries fit {sum(map(len, extra)) - before:,} further items")
    for part in extra:
        pairs = pairs.with_queries(part)
    return pairs
