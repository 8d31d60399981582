"""Any data set of the `ir_datasets` package: documents as items, queries and graded judgments per split."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal

import pyarrow as pa

from restd.data.datasets import DATASETS, DatasetEntry
from restd.data.judgments import split_of_queries
from restd.data.public.beir import ITEMS
from restd.data.schema import JUDGMENTS
from restd.data.source import Source
from restd.errors import DataError, MissingExtraError

_SPLITS: Final = {"train": "train", "dev": "valid", "valid": "valid", "validation": "valid", "test": "test"}
"""Our split of each name that ends the id of a part of a data set."""
_TEXTS: Final = ("text", "body", "abstract", "contents", "passage")
"""Fields that have a document's text, the first there is; without any, what the package itself takes for it."""
_BATCH_ROWS: Final = 4096


def ir_datasets_source(dataset: str, *, split: Literal["test", "drawn"] = "test") -> Source:
    """Return documents as items, and judgments with the splits and grades of the data set.

    `dataset` is an id of `ir_datasets`: of a data set whose parts end in train, dev (or validation) and test, such as
    `beir/nfcorpus`, or of one part. Documents are streamed, and only the texts of queries are kept in memory. Grades
    below 0 are kept as 0: judged, and not relevant.

    Args:
        dataset: id of the data set; the package downloads what is not on disk yet.
        split: what becomes of judgments that no split of the data set names: all are `test`, or they are `drawn` by
            query into train, valid and test.
    """
    whole = _open(dataset)
    if not whole.has_docs():
        raise DataError(f"The data set {dataset!r} of ir_datasets has no documents. Name one that has, or its parent.")
    parts = _parts(dataset, whole)
    if not parts:
        notes: tuple[str, ...] = (f"{dataset} has no judgments: only its items are read.",)
    elif None in parts:
        drawn = "split by query into train, valid and test" if split == "drawn" else "all test"
        notes = (f"{dataset} names no splits: its judgments are {drawn}.",)
    else:
        missing = [each for each in dict.fromkeys(_SPLITS.values()) if each not in parts]
        notes = (f"{dataset} has no judgments for {' and '.join(missing)}.",) if missing else ()
    return Source(
        name="ir-datasets",
        settings={"id": dataset, "splits": sorted(map(str, parts)), "split": split},
        items=lambda: _items(whole),
        judgments=None if not parts else lambda: _judgments(dataset, whole, parts, split),
        notes=notes,
    )


def _open(name: str) -> Any:
    try:
        import ir_datasets  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise MissingExtraError("ir_datasets", extra="ir-datasets", purpose="Reading its data sets") from error
    try:
        return ir_datasets.load(name)
    except KeyError:
        close = get_close_matches(name, list(ir_datasets.registry), n=1)
        guess = f" Did you mean {close[0]!r}?" if close else ""
        raise DataError(
            f"ir_datasets has no data set {name!r}.{guess} Its ids are on https://ir-datasets.com."
        ) from None


def _parts(name: str, whole: Any) -> dict[str | None, Any]:
    """What has judgments, by split; a data set without named splits by None."""
    import ir_datasets  # pyright: ignore[reportMissingImports]

    parts: dict[str | None, Any] = {}
    for ending, split in _SPLITS.items():
        child = f"{name}/{ending}"
        if split not in parts and child in set(ir_datasets.registry):
            part = ir_datasets.load(child)
            if part.has_qrels():
                parts[split] = part
    if parts or not whole.has_qrels():
        return parts
    return {_SPLITS.get(name.rpartition("/")[2]): whole}


def _items(whole: Any) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    for document in whole.docs_iter():
        title = getattr(document, "title", None)
        rows.append(
            {
                "id": str(document.doc_id),
                "title": title if isinstance(title, str) else "",
                "category": [],
                "text": _text(document),
            }
        )
        if len(rows) == _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(rows, schema=ITEMS)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=ITEMS)


def _text(document: Any) -> str:
    for field in _TEXTS:
        if isinstance(value := getattr(document, field, None), str):
            return value
    return str(document.default_text())


def _judgments(
    name: str, whole: Any, parts: Mapping[str | None, Any], undivided: Literal["test", "drawn"]
) -> Iterator[pa.RecordBatch]:
    for split, part in parts.items():
        queries = (part if part.has_queries() else whole).queries_iter()
        texts = {str(query.query_id): str(query.default_text()) for query in queries}
        rows: list[dict[str, Any]] = []
        for judged in part.qrels_iter():
            query = str(judged.query_id)
            if query not in texts:
                raise DataError(f"{name} judges documents for the query {query!r}, which is not among its queries.")
            grade = max(0.0, float(judged.relevance))
            own = split or ("test" if undivided == "test" else split_of_queries(pa.array([texts[query]]))[0].as_py())
            item = str(judged.doc_id)
            rows.append({"query_id": query, "query": texts[query], "item": item, "grade": grade, "split": own})
            if len(rows) == _BATCH_ROWS:
                yield pa.RecordBatch.from_pylist(rows, schema=JUDGMENTS)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=JUDGMENTS)


DATASETS.add(
    DatasetEntry(
        "ir-datasets",
        "Any data set of the ir_datasets package by its id, with its own splits and grades.",
        task="search",
        make=ir_datasets_source,
        source="MacAvaney et al. 2021, Simplified Data Wrangling with ir_datasets",
    )
)
