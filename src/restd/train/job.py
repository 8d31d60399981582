"""A training job: where everything is, the backbone it trains, and the texts as that backbone reads them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from restd.artifacts import hash_file, hash_json, read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.config import plain
from restd.data import EVIDENCE, Catalog, Task
from restd.data.categories import Categories, read_category_paths
from restd.data.dataset import find_table, items_hash
from restd.data.pairs import Pairs, item_texts
from restd.encode import Ragged, default_encoder, encode_texts, fit_tfidf_svd, load_encoder
from restd.encode.encoders import TFIDF_SVD
from restd.encode.tokens import texts_hash
from restd.errors import ConfigError, DataError
from restd.index import SidIndex
from restd.index.sid_index import FOLDER as INDEX_FOLDER
from restd.models import (
    Backbone,
    BuildContext,
    ModelConfig,
    induce,
    make_backbone,
    open_model,
    refuse_other_layout,
    task_of,
)
from restd.models.store import model_folder
from restd.progress import Notify
from restd.train.config import RunConfig
from restd.train.objectives import OBJECTIVES

CACHE = "cache"
_TOKENIZER_TEXTS = 200_000
_FIT_TEXTS = 100_000


@dataclass(frozen=True, slots=True)
class Job:
    """A run: where everything is, and how to train.

    Args:
        index: the folder `restd index` made, or the index itself.
        data: judgments or histories, and the items they were made for.
        out: folder of the run.
        model: which backbone; a run that continues from `init` has that one's.
        config: objective and settings.
        init: a trained model to continue from, as the paper's continuation does.
        cache: folder for the states of a frozen encoder; by default in the run's, or in that of `init`'s run.
        device: where to train, such as `cpu` or `cuda:1`; by default Accelerate chooses. Not a part of the identity.
    """

    index: Path
    data: Path
    out: Path
    model: ModelConfig = field(default_factory=ModelConfig)
    config: RunConfig = field(default_factory=RunConfig)
    init: Path | None = None
    cache: Path | None = None
    device: str | None = None

    @property
    def task(self) -> Task:
        """What the model answers: texts (`search`) or histories (`recommend`)."""
        return self.model.task if self.init is None else task_of(self.init)

    def parents(self) -> dict[str, str]:
        """Hashes of what the run is made from."""
        folder = self.index if (self.index / MANIFEST).is_file() else self.index / INDEX_FOLDER
        evidence = EVIDENCE[self.task]
        parents = {"index": read_manifest(folder).content, evidence: hash_file(find_table(self.data, evidence))}
        if (items := items_hash(self.data)) is not None:  # titles, categories and tokenizers are made from it
            parents["items"] = items
        if table := self.config.train.pseudo_table:
            if not Path(table).is_file():
                raise DataError(f"train.pseudo_table = {table} does not exist, or is not a file; check the path.")
            parents["pseudo_table"] = hash_file(Path(table))
        if self.init is not None:
            parents["init"] = read_manifest(model_folder(self.init)).content
        return parents

    def settings(self) -> dict[str, Any]:
        """All settings of the run, as plain values; those of [rank] where the objective reads them."""
        model = {} if self.init is not None else self.model.used
        settings = plain(self.config)
        if OBJECTIVES[self.config.objective].refresh is None:
            del settings["rank"]
        return {"model": model, **settings}

    def identity(self, *, processes: int) -> str:
        """Hash of all that decides the result; of a table of pseudo-queries its content, not where it is."""
        settings = self.settings()
        settings["train"]["pseudo_table"] = ""
        return hash_json({"told": settings, "parents": self.parents(), "processes": processes})

    def cache_folder(self) -> Path:
        """Folder for the states of a frozen encoder."""
        if self.cache is not None:
            return self.cache
        beside = None if self.init is None else self.init / CACHE
        return beside if beside is not None and beside.is_dir() else self.out / CACHE


def open_catalog(data: Path, index: SidIndex) -> Catalog:
    """The items of a data set, read the way the index read them."""
    return Catalog.read_as(data, index.origin.get("reading"))


def find_backbone(job: Job, index: SidIndex, pairs: Pairs, notify: Notify) -> Backbone:
    """The backbone to train: the one of `init`, or a new one."""
    if job.init is not None:
        backbone, artifact = open_model(job.init)
        refuse_other_layout(artifact, index)
        backbone.start_continuation()
        return backbone
    seed = job.config.train.seed

    def texts() -> list[str]:
        catalog = open_catalog(job.data, index)
        return [*map(str, pairs.texts), *islice(_texts(catalog), _TOKENIZER_TEXTS)]

    def categories(depth: int, branching: tuple[int, ...]) -> Categories:
        catalog = open_catalog(job.data, index)
        return find_categories(catalog, index, depth=depth, branching=branching, seed=seed, notify=notify)

    return make_backbone(job.model, BuildContext(index, seed, job.index, texts, categories))


def find_categories(
    catalog: Catalog, index: SidIndex, *, depth: int, branching: tuple[int, ...], seed: int, notify: Notify
) -> Categories:
    """The catalogue's categories; where it has none, clusters of another view of its items than the index's."""
    paths = read_category_paths(catalog, index.table.ids)
    if paths is not None:
        return Categories.of_paths(paths, depth=depth)
    notify(f"The catalogue has no categories: inducing {' × '.join(map(str, branching))} from its texts")
    return induce(_other_view(catalog, index, seed=seed), branching=branching, seed=seed)


def _other_view(catalog: Catalog, index: SidIndex, *, seed: int) -> Float[np.ndarray, "item dim"]:
    """Vectors of the index's items from another encoder than the one its codes came from."""
    texts, rows = item_texts(catalog, index.table.ids, field="text")
    used = index.origin.get("encoder", {}).get("name")
    if used == TFIDF_SVD:
        encoder = load_encoder(default_encoder(texts[:1_000]))
    else:
        encoder = fit_tfidf_svd(texts[:_FIT_TEXTS], seed=seed)
    vectors = np.zeros((len(index), encoder.dim), np.float32)
    vectors[rows] = encode_texts(encoder, texts)
    return vectors


def _texts(catalog: Catalog) -> Iterator[str]:
    return (text for batch in catalog.batches() for text in catalog.texts(batch).to_pylist())


def prepare_texts(job: Job, backbone: Backbone, pairs: Pairs, index: SidIndex, notify: Notify) -> Ragged:
    """The pairs' texts or histories as the backbone reads them, queries first; reports how many were cut."""
    if job.task == "recommend":
        histories = backbone.prepare_queries(pairs.texts, index)
        if histories.cut:
            notify(
                f"{histories.cut:,} of {len(histories):,} histories are longer than the model reads and lost their "
                "beginning"
            )
        return histories
    prepared = []
    for role, texts in (("query", pairs.texts[: pairs.queries]), ("item", pairs.texts[pairs.queries :])):
        if not texts:
            continue
        cache = job.cache_folder() / texts_hash([role, *map(str, texts)])[:16]
        part = backbone.prepare_queries(texts, index, role=role, cache=cache)
        if part.cut:
            whose = "queries" if role == "query" else "items"
            notify(f"{part.cut:,} of {len(texts):,} {whose} are longer than the model's limit and lost their end")
        prepared.append(part)
    if not prepared:
        raise ConfigError("There are no texts to train on.")
    return Ragged.joined(prepared)
