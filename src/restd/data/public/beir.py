"""BEIR's folders: a corpus, queries and graded judgments per split, as every set of the benchmark is published."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from restd.data.datasets import DATASETS, DatasetEntry
from restd.data.lines import json_lines, numbered_lines, required_id
from restd.data.schema import ITEM_COLUMNS, JUDGMENTS, parse_grade
from restd.data.source import Source
from restd.errors import DataError

ITEMS: Final = ITEM_COLUMNS.append(pa.field("text", pa.string()))
_FILES: Final = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
_BATCH_ROWS: Final = 4096


def beir_source(folder: Path) -> Source:
    r"""Return documents as items and judgments with BEIR's own splits and grades; `dev` becomes `valid`.

    `folder` has `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`) and `qrels/` with at least one
    of `train.tsv`, `dev.tsv` and `test.tsv` (query, document, grade, below a header). Any file may be compressed by
    gzip. Grades of 0 or below are kept as 0: judged, and not relevant.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     _ = (folder / "corpus.jsonl").write_text('{"_id": "d1", "title": "Mars", "text": "A red planet."}\n')
    ...     _ = (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "red planet"}\n')
    ...     (folder / "qrels").mkdir()
    ...     _ = (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\n")
    ...     source = beir_source(folder)
    ...     [(row["query"], row["item"], row["grade"]) for batch in source.judgments() for row in batch.to_pylist()]
    [('red planet', 'd1', 2.0)]
    """
    corpus, queries = _file(folder / "corpus.jsonl"), _file(folder / "queries.jsonl")
    tables = {split: path for split, name in _FILES.items() if (path := _existing(folder / "qrels" / name)) is not None}
    if not tables:
        raise DataError(f"{folder / 'qrels'} has none of {', '.join(_FILES.values())}. Expected a folder of BEIR.")
    texts = {
        required_id(record, "_id", path=queries, number=number): str(record.get("text") or "")
        for number, record in json_lines(queries, replace_surrogates=True)
    }
    missing = [split for split in _FILES if split not in tables]
    notes = () if not missing else (f"{folder} has no judgments for {' and '.join(missing)}.",)
    return Source(
        name="beir",
        settings={"folder": folder.name, "splits": sorted(tables)},
        items=lambda: _items(corpus),
        judgments=lambda: _judgments(tables, texts, queries),
        notes=notes,
    )


def _existing(path: Path) -> Path | None:
    """The file, or its compressed form; None where there is neither."""
    return next((one for one in (path, path.with_name(f"{path.name}.gz")) if one.is_file()), None)


def _file(path: Path) -> Path:
    existing = _existing(path)
    if existing is None:
        raise DataError(
            f"{path} does not exist. A folder of BEIR has corpus.jsonl, queries.jsonl and qrels/ with its splits."
        )
    return existing


def _items(corpus: Path) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    for number, record in json_lines(corpus, replace_surrogates=True):
        item = required_id(record, "_id", path=corpus, number=number)
        rows.append({"id": item, "title": _text(record, "title"), "category": [], "text": _text(record, "text")})
        if len(rows) == _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(rows, schema=ITEMS)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=ITEMS)


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return value if isinstance(value, str) else ""


def _judgments(tables: Mapping[str, Path], texts: Mapping[str, str], queries: Path) -> Iterator[pa.RecordBatch]:
    for split, path in tables.items():
        rows = []
        for number, line in numbered_lines(path):
            cells = line.split("\t")
            if not line.strip() or (number == 1 and not _is_number(cells[-1])):
                continue
            if len(cells) != 3 or not _is_number(cells[2]):
                raise DataError(
                    f"{path}, line {number}: expected query, document and grade with tabs, got {line!r:.60}."
                )
            query, item, grade = cells
            if query not in texts:
                raise DataError(f"{path}, line {number}: the query {query!r} is not in {queries}. Add it there.")
            rows.append(
                {
                    "query_id": query,
                    "query": texts[query],
                    "item": item,
                    "grade": parse_grade(str(max(0.0, float(grade))), where=f"{path}, line {number}"),
                    "split": split,
                }
            )
        yield pa.RecordBatch.from_pylist(rows, schema=JUDGMENTS)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


DATASETS.add(
    DatasetEntry(
        "beir",
        "Your copy of any set of BEIR: corpus, queries and graded judgments, with BEIR's own splits.",
        task="search",
        make=beir_source,
        source="Thakur et al. 2021, BEIR",
    )
)
