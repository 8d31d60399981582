"""A retriever as `mteb` searches: it indexes a task's corpus, trains on it, and answers the task's queries."""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from restd._version import __version__
from restd.artifacts import hash_file, hash_json
from restd.artifacts.manifest import MANIFEST
from restd.config import plain
from restd.data import Catalog, Source, read_judgments, write_dataset
from restd.data.dataset import find_table
from restd.data.pseudo_queries import make_pseudo_queries
from restd.data.public.beir import ITEMS
from restd.data.schema import JUDGMENTS
from restd.errors import ConfigError, DataError, MissingExtraError
from restd.evaluate.validation import ranked_validation
from restd.index import IndexConfig, build_index
from restd.models import ModelConfig
from restd.progress import Notify
from restd.search import Retriever, SearchOptions
from restd.train import Job, RunConfig, TrainConfig, train_retriever
from restd.train.config import default_training

logger = logging.getLogger(__name__)

PSEUDO_QUERIES = 4
"""Queries drawn per document where nothing else is said and there are no judgments."""
_VALIDATION = 500
_BATCH_ROWS = 4096


@dataclass(frozen=True, slots=True)
class MtebSettings:
    """What the retriever of each corpus is made with; see `MtebRetriever`."""

    index: IndexConfig
    model: ModelConfig
    run: RunConfig
    judgments: Path | None
    options: SearchOptions


class MtebRetriever:
    """A retriever that has `mteb`'s `SearchProtocol`: `mteb.evaluate(MtebRetriever(folder), tasks)`.

    Every corpus is indexed and trained on in a folder of its own. A corpus that was there before is not trained on
    again, and an interrupted run is continued.

    Args:
        folder: where data, indexes and models of all corpora are kept.
        index: settings of the index; the defaults otherwise.
        model: backbone and its settings; the defaults otherwise.
        run: objective and settings of training; unset, the backbone's usual ones, with pseudo-queries where there are
            no judgments.
        judgments: table or folder of judged queries of the corpus; unset, it trains on queries drawn from the
            documents' own words.
        options: how it searches; `k` is the task's.
        device: where encoder and model run.
        notify: receives progress messages.
    """

    def __init__(
        self,
        folder: Path,
        *,
        index: IndexConfig | None = None,
        model: ModelConfig | None = None,
        run: RunConfig | None = None,
        judgments: Path | None = None,
        options: SearchOptions | None = None,
        device: str | None = None,
        notify: Notify = logger.info,
    ) -> None:
        model = model or ModelConfig()
        if model.task != "search":
            raise ConfigError(f"mteb's tasks are searches, and the backbone {model.backbone} is for {model.task}.")
        run = run or RunConfig(train=_default_training(model, pseudo=judgments is None))
        self.folder = folder
        self.settings = MtebSettings(index or IndexConfig(), model, run, judgments, options or SearchOptions())
        self.device, self.notify = device, notify
        self.retriever: Retriever | None = None
        """Of the corpus that was indexed last."""

    @property
    def mteb_model_meta(self) -> Any:
        """Name and revision under which `mteb` keeps results; the revision has a hash of all settings."""
        try:
            from mteb.models.model_meta import ModelMeta  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise MissingExtraError("mteb", extra="mteb", purpose="Its benchmark") from error
        own = self.settings
        chosen = own.index
        index = {"encoder": chosen.encoder, "quantizer": chosen.quantizer, "policy": chosen.policy}
        parts = {"fit": chosen.section(chosen.quantizer), "align": chosen.align, "shape": chosen.shape, "run": own.run}
        settings = {**index, "balanced": chosen.balanced, **{name: plain(part) for name, part in parts.items()}}
        revision = hash_json({**settings, "model": own.model.used, "options": repr(own.options)})
        described = {
            "name": f"restd/{own.model.backbone}",
            "revision": f"{__version__}-{revision[:12]}",
            "framework": ["PyTorch"],
            "modalities": ["text"],
            "use_instructions": False,
            "training_datasets": set() if own.judgments is None else None,
        }
        return ModelMeta.create_empty(overwrites=described)

    def index(
        self,
        corpus: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: Mapping[str, Any],
        num_proc: int | None = None,
        **further: Any,
    ) -> None:
        """Index a corpus (a `datasets.Dataset` with `id`, `text` and perhaps `title`) and train a retriever for it."""
        home = self.folder / self._key(corpus)
        data, own = home / "data", self.settings
        if not (data / MANIFEST).is_file():
            write_dataset(self._source(corpus), data)
        build_index(Catalog(data), home / "index", own.index, judgments=data, device=self.device, notify=self.notify)
        job = Job(home / "index", data, home / "run", own.model, own.run, device=self.device)
        train_retriever(job, notify=self.notify, validate=ranked_validation(job))
        hybrid = own.options.mode == "hybrid"
        self.retriever = Retriever.load(home / "run", hybrid=hybrid, device=self.device)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Mapping[str, Any],
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        num_proc: int | None = None,
        **further: Any,
    ) -> dict[str, dict[str, float]]:
        """Scores of the best documents of each query, by their ids; of the given ones, where a task names some."""
        if self.retriever is None:
            raise ConfigError("No corpus was indexed; call `index` before `search`, as mteb.evaluate does.")
        options = SearchOptions.of(self.settings.options, k=min(top_k, len(self.retriever.snapshot)))
        results: dict[str, dict[str, float]] = {}
        for batch in queries.iter(_BATCH_ROWS):
            ids, texts = [str(name) for name in batch["id"]], _query_texts(batch)
            if top_ranked is None:
                lists = self.retriever.search(texts, options=options)
            else:
                lists = [
                    self.retriever.search(text, options=SearchOptions.of(options, allow=list(top_ranked[name])))
                    for name, text in zip(ids, texts, strict=True)
                ]
            for name, hits in zip(ids, lists, strict=True):
                results[name] = {hit.item: float(hit.score) for hit in hits}
        return results

    def _key(self, corpus: Any) -> str:
        """Name of the folder of a corpus: a hash of it and of all settings."""
        digest = hashlib.sha256(self.mteb_model_meta.revision.encode())
        if self.settings.judgments is not None:
            digest.update(hash_file(find_table(self.settings.judgments, "judgments")).encode())
        for batch in _items(corpus):
            digest.update(hash_json(batch.to_pylist()).encode())
        return digest.hexdigest()[:16]

    def _source(self, corpus: Any) -> Source:
        judgments = self.settings.judgments
        if judgments is None:
            return Source("mteb", {"judgments": "drawn"}, lambda: _items(corpus), lambda: _drawn_queries(corpus))
        table = read_judgments(judgments).select(JUDGMENTS.names).cast(JUDGMENTS)
        return Source("mteb", {"judgments": "given"}, lambda: _items(corpus), lambda: iter(table.to_batches()))


def _default_training(model: ModelConfig, *, pseudo: bool) -> TrainConfig:
    usual = default_training(model.body, continued=False)
    return TrainConfig(**{**usual, "pseudo_queries": PSEUDO_QUERIES if pseudo else usual["pseudo_queries"]})


def _items(corpus: Any) -> Iterator[pa.RecordBatch]:
    if missing := {"id", "text"}.difference(corpus.column_names):
        raise DataError(
            f"Expected a corpus of texts with the columns id and text, got {', '.join(corpus.column_names)}: "
            f"{' and '.join(sorted(missing))} is missing. Choose a task of the modality text."
        )
    for batch in corpus.iter(_BATCH_ROWS):
        titles = batch.get("title") or [""] * len(batch["id"])
        rows = {
            "id": [str(name) for name in batch["id"]],
            "title": [title or "" for title in titles],
            "category": [[]] * len(titles),
            "text": [text or "" for text in batch["text"]],
        }
        yield pa.RecordBatch.from_pydict(rows, schema=ITEMS)


def _drawn_queries(corpus: Any) -> Iterator[pa.RecordBatch]:
    """Queries to validate with, from the words of some documents; training draws its own."""
    count = len(corpus)
    rows = np.sort(np.random.default_rng(0).choice(count, min(_VALIDATION, count), replace=False))
    some = pa.Table.from_batches(list(_items(corpus.select(rows))))
    ids, titles, texts = (some[name].to_pylist() for name in ("id", "title", "text"))
    queries, places = make_pseudo_queries(titles, texts, per_item=1, seed=count)
    judged = [
        {"query_id": query, "query": query, "item": ids[place], "grade": 1.0, "split": "valid"}
        for query, place in zip(queries, places.tolist(), strict=True)
    ]
    yield pa.RecordBatch.from_pylist(judged, schema=JUDGMENTS)


def _query_texts(batch: Mapping[str, Sequence[Any]]) -> list[str]:
    """Texts of queries, with their instructions where a task has any."""
    for text in batch["text"]:
        if not isinstance(text, str):
            raise DataError(
                f"Expected queries as texts, got {type(text).__name__}. Choose a task without conversations."
            )
    instructions = batch.get("instruction") or [""] * len(batch["text"])
    return [f"{text} {extra}" if extra else text for text, extra in zip(batch["text"], instructions, strict=True)]
