"""The queries a ranking is judged on, and what answers them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int64

from restd._arrow import pc
from restd.artifacts import hash_file
from restd.data import read_judgments
from restd.data.dataset import find_table
from restd.errors import DataError

GROUPS = ("seen", "mixed", "unseen")
"""Whether training named all of a query's positives, some of them, or none."""


@dataclass(frozen=True, slots=True, eq=False)
class TestSet:
    """Queries with their positives, as rows of an index.

    Args:
        split: where they come from.
        source: hash of the judgments' file.
        ids: of the queries.
        texts: of the queries.
        first: where each query's positives begin.
        rows: the positives, one query after another, each item once.
        grades: theirs, all above zero.
        trained: which of them a training query names too.
        without_positives: queries of the split that were left out because nothing answers them.
        unknown: positives that were left out because the index does not have them.
    """

    __test__ = False  # the name is not a wish to be collected by pytest

    split: str
    source: str
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    first: Int64[np.ndarray, "query_plus_one"]
    rows: Int64[np.ndarray, "positive"]
    grades: Float[np.ndarray, "positive"]
    trained: Bool[np.ndarray, "positive"]
    without_positives: int = 0
    unknown: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def positives(self, query: int) -> slice:
        """Where one query's positives stand."""
        return slice(int(self.first[query]), int(self.first[query + 1]))

    def groups(self) -> Int64[np.ndarray, "query"]:
        """Number of each query's group in `GROUPS`."""
        known = np.add.reduceat(self.trained.astype(np.int64), self.first[:-1])
        return np.where(known == np.diff(self.first), 0, np.where(known > 0, 1, 2))

    def sentences(self) -> list[str]:
        """What was left out, for a person."""
        found = []
        if self.unknown:
            found.append(f"{self.unknown:,} positives name items that the index does not have; they are left out")
        if self.without_positives:
            found.append(f"{self.without_positives:,} queries have no positive item in the index; they are not judged")
        return found


def read_tests(data: Path, ids: pa.StringArray, *, split: str = "test") -> TestSet:
    """Read the queries of a split for the items `ids`; a positive is a judgment with a grade above zero."""
    judgments = read_judgments(data)
    own = judgments.filter(pc.equal(judgments["split"], split))
    if not len(own):
        counted = pc.value_counts(judgments["split"]).to_pylist()
        held = ", ".join(f"{entry['values']} ({entry['counts']:,} judgments)" for entry in counted)
        raise DataError(f"{data} has no queries in the split {split!r}; it has: {held}.")
    positive = own.filter(pc.greater(own["grade"], 0.0))
    known = positive.filter(pc.is_in(positive["item"], value_set=ids))
    if not len(known):
        raise DataError(
            f"No query of the split {split!r} of {data} has a positive item that the index has: "
            f"{pc.count_distinct(own['query_id']).as_py():,} queries have {len(positive):,} positives. Check that "
            "index and judgments are of the same catalogue."
        )
    return _collected(known, judgments, ids, split=split, source=hash_file(find_table(data, "judgments")), own=own)


def _collected(
    known: pa.Table, judgments: pa.Table, ids: pa.StringArray, *, split: str, source: str, own: pa.Table
) -> TestSet:
    encoded = pc.dictionary_encode(known["query_id"]).unify_dictionaries().combine_chunks()
    query = encoded.indices.to_numpy().astype(np.int64)
    rows = pc.index_in(known["item"].combine_chunks(), value_set=ids).to_numpy().astype(np.int64)
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
        ids=names,
        texts=tuple(texts[name] for name in names),
        first=np.searchsorted(query, np.arange(len(names) + 1)),
        rows=rows,
        grades=grades,
        trained=trained_items(judgments, ids)[rows],
        without_positives=pc.count_distinct(own["query_id"]).as_py() - len(names),
        unknown=pc.sum(pc.greater(own["grade"], 0.0)).as_py() - len(known),
    )


def trained_items(judgments: pa.Table, ids: pa.StringArray) -> Bool[np.ndarray, "item"]:
    """Which items a positive training pair names."""
    train = judgments.filter(pc.and_(pc.equal(judgments["split"], "train"), pc.greater(judgments["grade"], 0.0)))
    return pc.is_in(ids, value_set=pc.unique(train["item"])).to_numpy(zero_copy_only=False)
