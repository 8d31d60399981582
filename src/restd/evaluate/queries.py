"""The queries a ranking is judged on, and what answers them: texts with judged items, or histories with the next."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64

from restd._arrow import pc
from restd.artifacts import hash_file
from restd.data import EVIDENCE, Histories, Query, Task, leave_one_out, read_judgments, task_in
from restd.data.dataset import find_table
from restd.data.draws import draw_queries
from restd.data.histories import FEWEST, count_training_events
from restd.data.judgments import count_training_pairs
from restd.errors import ConfigError, DataError
from restd.snapshot import Snapshot

_SPACE = re.compile(r"\s")
GROUPS = ("seen", "mixed", "unseen")
"""Whether training named all of a query's positives, some of them, or none."""


@dataclass(frozen=True, slots=True, eq=False)
class TestSet:
    """Queries with their positives, as rows of a snapshot.

    Args:
        split: where they come from.
        source: hash of the judgments' or histories' file.
        snapshot_hash: of the snapshot whose rows the positives are.
        ids: of the queries; of users, where they are histories.
        texts: of the queries, or their histories.
        first: where each query's positives begin.
        rows: the positives, one query after another, each item once.
        grades: theirs, all above zero.
        trained: how many training pairs, or training events of users, name each of them.
        without_positives: queries of the split that were left out because nothing answers them; users with too few
            events to hold one out.
        unknown: positives that were left out because the index does not have them.
        without_history: users who were left out because the index has nothing of what they took before.
        task: whether queries are texts or histories.
    """

    __test__ = False  # pytest should not collect it, whatever its name

    split: str
    source: str
    snapshot_hash: str
    ids: tuple[str, ...]
    texts: Sequence[Query]
    first: Int64[np.ndarray, "query_plus_one"]
    rows: Int64[np.ndarray, "positive"]
    grades: Float[np.ndarray, "positive"]
    trained: Int64[np.ndarray, "positive"]
    without_positives: int = 0
    unknown: int = 0
    without_history: int = 0
    task: Task = "search"

    def __len__(self) -> int:
        return len(self.ids)

    def positives(self, query: int) -> slice:
        """Where one query's positives stand."""
        return slice(int(self.first[query]), int(self.first[query + 1]))

    def groups(self) -> Int64[np.ndarray, "query"]:
        """Number of each query's group in `GROUPS`."""
        known = np.add.reduceat((self.trained > 0).astype(np.int64), self.first[:-1])
        return np.where(known == np.diff(self.first), 0, np.where(known > 0, 1, 2))

    def notes(self) -> list[str]:
        """What was left out, in sentences."""
        notes = []
        recommend = self.task == "recommend"
        if self.unknown:
            what = "held-out items are ones" if recommend else "positives name items"
            notes.append(f"{self.unknown:,} {what} that the index does not have; they are left out")
        if self.without_history:
            what = "users took nothing before their held-out item"
            notes.append(f"{self.without_history:,} {what} that the index has; they are left out")
        if self.without_positives:
            why = (
                f"users have fewer than {FEWEST} events" if recommend else "queries have no positive item in the index"
            )
            notes.append(f"{self.without_positives:,} {why}; they are not judged")
        return notes


def read_tests(data: Path, snapshot: Snapshot, *, split: str = "test", task: Task | None = None) -> TestSet:
    """Read the queries of a split for the items of a snapshot.

    A positive is a judgment with a grade above zero, or the one item a user holds out. Without a task, the tables that
    are there decide, where only one kind is.
    """
    if (task or task_in(data)) == "recommend":
        return _read_next(data, snapshot, split=split)
    judgments = read_judgments(data)
    own = judgments.filter(pc.equal(judgments["split"], split))
    if not len(own):
        counts = pc.value_counts(judgments["split"]).to_pylist()
        splits = ", ".join(f"{entry['values']} ({entry['counts']:,} judgments)" for entry in counts)
        raise DataError(f"{data} has no queries in the split {split!r}; it has: {splits}.")
    positive = own.filter(pc.greater(own["grade"], 0.0))
    known = positive.filter(pc.is_in(positive["item"], value_set=snapshot.ids))
    if not len(known):
        raise DataError(
            f"No query of the split {split!r} of {data} has a positive item that the index has: "
            f"{pc.count_distinct(own['query_id']).as_py():,} queries have {len(positive):,} positives. Check that "
            "index and judgments are of the same catalogue."
        )
    source = hash_file(find_table(data, "judgments"))
    return _collected(known, judgments, snapshot, split=split, source=source, own=own)


def _read_next(data: Path, snapshot: Snapshot, *, split: str) -> TestSet:
    """Every user's history, and the item that was held out of it."""
    whole, _ = Histories.read(data)
    histories, _ = whole.over(snapshot.ids)
    prefixes, held_out = leave_one_out(histories, split), leave_one_out(whole, split)
    targets = whole.items.take(pa.array(held_out.targets))
    unknown = int(pc.sum(pc.invert(pc.is_in(targets, value_set=snapshot.ids))).as_py() or 0)
    if not len(prefixes):
        raise DataError(
            f"No user of {data} has an item of the split {split!r} that is in the index. Check that both use the same "
            "ids."
        )
    users = [_SPACE.sub("_", user) for user in histories.users.take(pa.array(prefixes.user)).to_pylist()]
    # training has several queries per user; names must also suit TREC files
    names = users if split != "train" else [f"{user}:{end}" for user, end in zip(users, prefixes.end, strict=True)]
    if len(set(names)) < len(names):
        raise DataError(f"Users of {data} differ in white space alone, which result files cannot show; rename them.")
    return TestSet(
        split=split,
        source=hash_file(find_table(data, EVIDENCE["recommend"])),
        snapshot_hash=snapshot.hash,
        ids=tuple(names),
        texts=prefixes,
        first=np.arange(len(prefixes) + 1),
        rows=prefixes.targets,
        grades=np.ones(len(prefixes)),
        trained=count_training_events(histories)[prefixes.targets],
        without_positives=int((whole.lengths < FEWEST).sum()),
        unknown=unknown,
        without_history=len(held_out) - unknown - len(prefixes),
        task="recommend",
    )


def _collected(
    known: pa.Table, judgments: pa.Table, snapshot: Snapshot, *, split: str, source: str, own: pa.Table
) -> TestSet:
    encoded = pc.dictionary_encode(known["query_id"]).unify_dictionaries().combine_chunks()
    query = encoded.indices.to_numpy().astype(np.int64)
    rows = pc.index_in(known["item"].combine_chunks(), value_set=snapshot.ids).to_numpy().astype(np.int64)
    grades = known["grade"].to_numpy().astype(np.float64)
    order = np.lexsort((-grades, rows, query))  # of a pair given twice the best grade stands first, and is kept
    query, rows, grades = query[order], rows[order], grades[order]
    fresh = np.concatenate([[True], (np.diff(query) != 0) | (np.diff(rows) != 0)])
    query, rows, grades = query[fresh], rows[fresh], grades[fresh]
    texts = dict(zip(known["query_id"].to_pylist(), known["query"].to_pylist(), strict=True))
    names = tuple(encoded.dictionary.to_pylist())
    return TestSet(
        split=split,
        source=source,
        snapshot_hash=snapshot.hash,
        ids=names,
        texts=tuple(texts[name] for name in names),
        first=np.searchsorted(query, np.arange(len(names) + 1)),
        rows=rows,
        grades=grades,
        trained=count_training_pairs(judgments, snapshot.ids)[rows],
        without_positives=pc.count_distinct(own["query_id"]).as_py() - len(names),
        unknown=pc.sum(pc.greater(own["grade"], 0.0)).as_py() - len(known),
    )


def some_queries(tests: TestSet, count: int, *, seed: int = 0) -> TestSet:
    """A random part of the queries, in their order; all of them where there are no more."""
    if count < 1:
        raise ConfigError(f"{count} queries cannot be drawn; expected at least 1.")
    if count >= len(tests):
        return tests
    return _picked(tests, draw_queries(len(tests), count, seed=seed).tolist())


def validation_queries(tests: TestSet, count: int) -> TestSet:
    """The part of the validation queries that the generation loss is measured on, for `train.judged`; all for 0.

    Training knows queries by their text, so queries of one text are drawn or left out together.
    """
    if tests.task == "recommend":
        return some_queries(tests, count) if count else tests
    number_of = {text: number for number, text in enumerate(dict.fromkeys(map(str, tests.texts)))}
    if not count or count >= len(number_of):
        return tests
    drawn = set(draw_queries(len(number_of), count).tolist())
    return _picked(tests, [place for place, text in enumerate(tests.texts) if number_of[str(text)] in drawn])


def _picked(tests: TestSet, chosen: list[int]) -> TestSet:
    places = np.concatenate([np.arange(*tests.positives(number).indices(len(tests.rows))[:2]) for number in chosen])
    counts = np.diff(tests.first)[chosen]
    return TestSet(
        split=tests.split,
        source=tests.source,
        snapshot_hash=tests.snapshot_hash,
        ids=tuple(tests.ids[number] for number in chosen),
        texts=tuple(tests.texts[number] for number in chosen),
        first=np.concatenate([[0], np.cumsum(counts)]),
        rows=tests.rows[places],
        grades=tests.grades[places],
        trained=tests.trained[places],
        task=tests.task,
    )
