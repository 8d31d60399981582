"""Tables of pseudo-queries: read for training, and written by a generator of the user's own."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from logging import getLogger
from pathlib import Path

import numpy as np
import pyarrow as pa

from restd._arrow import pc
from restd.artifacts import sole_writer, write_atomically
from restd.data.catalog import Catalog
from restd.data.pairs import Pairs
from restd.data.readers import column_names, first_row, read_batches, required_text
from restd.errors import DataError
from restd.progress import Notify, progress

Generate = Callable[[list[str]], Sequence[Sequence[str]]]
"""Makes queries for texts: one list of queries per text."""

logger = getLogger(__name__)

_COLUMNS = ("item", "query")
_BEGUN = "begun.json"
_CHUNK = 1 << 20


def read_pseudo_table(path: Path, ids: pa.StringArray) -> tuple[Pairs, int]:
    """Read the columns `item` and `query` of a table as pairs, and count the rows that name an unknown item.

    Rows of the same query are one query with several items. Other columns are not read.
    """
    available = column_names(path)
    for name in _COLUMNS:
        if name not in available:
            raise DataError(
                f"{path} has no column {name!r}; it has: {', '.join(available) or 'none'}. Expected the "
                "columns item and query; rename yours."
            )
    batches = list(read_batches(path, rows=1 << 16, columns=list(_COLUMNS)))
    if not sum(batch.num_rows for batch in batches):
        raise DataError(f"{path} has no queries. Expected one item and one query per row, or no pseudo_table.")
    table = pa.Table.from_batches(batches)
    item, query = (required_text(table, name, path=path) for name in _COLUMNS)
    rows = pc.index_in(item, value_set=ids)
    known = pc.is_valid(rows)
    unknown = len(table) - pc.sum(known).as_py()
    if unknown == len(table):
        raise DataError(
            f"{path}: none of the {len(table):,} rows names an item of the index; row {first_row(path)} has "
            f"{item[0].as_py()!r}. Use the ids of the catalogue in the column 'item'."
        )
    encoded = pc.dictionary_encode(query.filter(known)).unify_dictionaries().combine_chunks()
    pairs = np.stack([encoded.indices.to_numpy(), rows.filter(known).to_numpy()]).astype(np.int64)
    text, row = np.unique(pairs, axis=1)
    texts = tuple(encoded.dictionary.to_pylist())
    return Pairs(texts, text, row, len(texts)), unknown


def write_pseudo_table(
    catalog: Catalog, out: Path, generate: Generate, *, batch: int = 64, notify: Notify = logger.info
) -> int:
    r"""Let a function make queries for every item of a catalogue, and write them as a table; returns how many.

    Items are read and queries written in batches, and each batch is kept when it is done. Called again after an
    interruption, it goes on with the first batch that is missing. To begin anew, because the function changed, delete
    the folder `OUT.parts`.

    Args:
        catalog: items; those without a text are left out.
        out: table to write, a new file that ends in .jsonl.
        generate: gets the texts of a batch, and returns one list of queries per text, which may be empty.
        batch: most texts per call.
        notify: receives progress messages.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> items = folder / "items.csv"
    >>> _ = items.write_text("id,title\na,Red kettle\nb,Oak desk\n", encoding="utf-8")
    >>> write_pseudo_table(Catalog(items), folder / "queries.jsonl", lambda texts: [[f"buy {text}"] for text in texts])
    2
    >>> print((folder / "queries.jsonl").read_text("utf-8").splitlines()[0])
    {"item": "a", "query": "buy Red kettle"}
    """
    if batch < 1:
        raise DataError(f"Expected batches of at least 1 text, got {batch}.")
    if out.suffix != ".jsonl":
        raise DataError(f"{out} would hold JSON lines; choose a name that ends in .jsonl.")
    if out.exists():
        raise DataError(f"{out} exists already; delete it, or choose another name.")
    parts = out.with_name(f"{out.name}.parts")
    with sole_writer(parts):
        _refuse_other_beginning(parts, {"catalog": catalog.identity(), "batch": batch})
        written = []
        with progress("Generating queries", total=None) as advance:
            for number, items in enumerate(catalog.batches(rows=batch)):
                part = parts / f"{number:07d}.jsonl"
                if not part.exists():
                    lines = _lines(items.column("id").to_pylist(), catalog.texts(items).to_pylist(), generate)
                    write_atomically(part, lines)
                written.append(part)
                advance(items.num_rows)
        count = sum(line.count(b"\n") for line in _contents(written))
        if count:
            write_atomically(out, _contents(written))
    shutil.rmtree(parts)
    if not count:
        raise DataError("The function gave no query for any item. Expected one list of queries per text.")
    notify(f"{out}: {count:,} queries")
    return count


def _refuse_other_beginning(parts: Path, begun: dict[str, object]) -> None:
    """Refuse to go on with what was begun with other items or batches."""
    record = parts / _BEGUN
    if record.is_file() and json.loads(record.read_text(encoding="utf-8")) != begun:
        raise DataError(
            f"{parts} was begun with other items, another reading of them or another batch. Delete it to begin anew, "
            "or go on with the same."
        )
    write_atomically(record, [json.dumps(begun).encode()])


def _lines(ids: list[str], texts: list[str], generate: Generate) -> Iterator[bytes]:
    """One line per query of the items that have a text."""
    filled = [(item, text) for item, text in zip(ids, texts, strict=True) if text]
    if not filled:
        return
    made = generate([text for _, text in filled])
    if isinstance(made, str) or len(made) != len(filled):
        raise DataError(
            f"The function gave {len(made):,} results for {len(filled):,} texts. Expected one list of queries per text."
        )
    for (item, _), queries in zip(filled, made, strict=True):
        if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
            raise DataError(f"The function gave {queries!r} for the item {item!r}. Expected a list of texts.")
        for query in dict.fromkeys(" ".join(query.split()) for query in queries):
            if query:
                yield json.dumps({"item": item, "query": query}, ensure_ascii=False).encode() + b"\n"


def _contents(parts: Sequence[Path]) -> Iterator[bytes]:
    for part in parts:
        with part.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
