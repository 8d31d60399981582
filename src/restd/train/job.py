"""What a run is made of: where everything is, the backbone it trains, and the texts as that backbone reads them."""

from collections.abc import Callable, Iterator
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
from restd.data.dataset import find_table
from restd.encode import Ragged, default_encoder, encode_texts, fit_tfidf_svd, load_encoder
from restd.encode.encoders import TFIDF_SVD
from restd.encode.tokens import texts_hash
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.index.sid_index import FOLDER as INDEX_FOLDER
from restd.models import (
    AnyBackbone,
    CalirBackbone,
    Categories,
    ModelConfig,
    induce,
    make_backbone,
    open_model,
    prepare_queries,
    refuse_other_layout,
    task_of,
)
from restd.models.store import model_folder
from restd.train.config import RunConfig
from restd.train.examples import Pairs, item_texts

Tell = Callable[[str], None]
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
        model: which backbone; a run that goes on from `init` has that one's.
        config: objective and settings.
        init: a trained model to go on from, as the paper's continuation does.
        cache: where states of a frozen encoder are kept; by default with the run, or with the run of `init`.
    """

    index: Path
    data: Path
    out: Path
    model: ModelConfig = field(default_factory=ModelConfig)
    config: RunConfig = field(default_factory=RunConfig)
    init: Path | None = None
    cache: Path | None = None

    @property
    def task(self) -> Task:
        """What the model will be asked."""
        if self.init is None:
            return self.model.task
        return task_of(read_manifest(model_folder(self.init)).settings["backbone"]["body"])

    def parents(self) -> dict[str, str]:
        """Hashes of what the run is made from."""
        folder = self.index if (self.index / MANIFEST).is_file() else self.index / INDEX_FOLDER
        evidence = EVIDENCE[self.task]
        found = {"index": read_manifest(folder).content, evidence: hash_file(find_table(self.data, evidence))}
        if self.init is not None:
            found["init"] = read_manifest(model_folder(self.init)).content
        return found

    def told(self) -> dict[str, Any]:
        """Everything the run was told, as plain values."""
        model = {} if self.init is not None else self.model.used
        return {"model": model, **plain(self.config)}

    def identity(self, *, processes: int) -> str:
        """Hash of all that decides the result."""
        return hash_json({"told": self.told(), "parents": self.parents(), "processes": processes})

    def cache_folder(self) -> Path:
        """Where states of a frozen encoder are kept."""
        if self.cache is not None:
            return self.cache
        beside = None if self.init is None else self.init / CACHE
        return beside if beside is not None and beside.is_dir() else self.out / CACHE


def open_catalog(data: Path, index: SidIndex) -> Catalog:
    """The items of a data set, read the way the index read them."""
    return Catalog.read_as(data, index.origin.get("reading"))


def find_backbone(job: Job, index: SidIndex, pairs: Pairs, tell: Tell) -> AnyBackbone:
    """The backbone to train: the one of `init` with its category heads frozen, or a new one."""
    if job.init is not None:
        backbone, artifact = open_model(job.init)
        refuse_other_layout(artifact, index)
        if isinstance(backbone, CalirBackbone):
            backbone.heads.requires_grad_(False)
        return backbone
    catalog = None
    texts: list[str] = []
    categories = None
    if job.model.body == "t5" and job.model.t5.model == "fresh":
        catalog = open_catalog(job.data, index)
        texts = [*map(str, pairs.texts), *islice(_texts(catalog), _TOKENIZER_TEXTS)]
    if job.model.backbone == "calir":
        catalog = catalog or open_catalog(job.data, index)
        categories = find_categories(catalog, index, job.model, seed=job.config.train.seed, tell=tell)
    seed = job.config.train.seed
    return make_backbone(job.model, index, folder=job.index, texts=texts, categories=categories, seed=seed)


def find_categories(catalog: Catalog, index: SidIndex, model: ModelConfig, *, seed: int, tell: Tell) -> Categories:
    """The catalogue's categories; where it has none, clusters of another view of its items than the index's."""
    depth = model.calir.depth
    paths: dict[str, list[str]] = {}
    for batch in catalog.batches():
        if "category" in batch.schema.names:
            held = batch.column("category").to_pylist()
            paths.update(zip(batch.column("id").to_pylist(), ([*(path or [])] for path in held), strict=True))
    ids = index.table.ids.to_pylist()
    if any(paths.get(item) for item in ids):
        return Categories.of_paths([paths.get(item, []) for item in ids], depth=depth)
    branching = model.calir.branching[:depth]
    tell(f"The catalogue has no categories: inducing {' × '.join(map(str, branching))} from its texts")
    return induce(_other_view(catalog, index, seed=seed), branching=branching, seed=seed)


def _other_view(catalog: Catalog, index: SidIndex, *, seed: int) -> Float[np.ndarray, "item dim"]:
    """Vectors of the index's items from another encoder than the one its codes came from."""
    found, rows = item_texts(catalog, index, what="text")
    used = index.origin.get("encoder", {}).get("name")
    if used == TFIDF_SVD:
        encoder = load_encoder(default_encoder(found[:1_000]))
    else:
        encoder = fit_tfidf_svd(found[:_FIT_TEXTS], seed=seed)
    vectors = np.zeros((len(index), encoder.dim), np.float32)
    vectors[rows] = encode_texts(encoder, found)
    return vectors


def _texts(catalog: Catalog) -> Iterator[str]:
    return (text for batch in catalog.batches() for text in catalog.texts(batch).to_pylist())


def prepare_texts(job: Job, backbone: AnyBackbone, pairs: Pairs, index: SidIndex, tell: Tell) -> Ragged:
    """The pairs' texts or histories as the backbone reads them, queries first; what was cut is told."""
    if job.task == "recommend":
        held = prepare_queries(backbone, pairs.texts, index)
        if held.cut:
            tell(f"{held.cut:,} of {len(held):,} histories are longer than the model reads and lost their beginning")
        return held
    found = []
    for task, texts in (("query", pairs.texts[: pairs.queries]), ("item", pairs.texts[pairs.queries :])):
        if not texts:
            continue
        cache = job.cache_folder() / texts_hash([task, *map(str, texts)])[:16]
        held = prepare_queries(backbone, texts, index, task=task, cache=cache)
        if held.cut:
            whose = "queries" if task == "query" else "items"
            tell(f"{held.cut:,} of {len(texts):,} {whose} are longer than the model's limit and lost their end")
        found.append(held)
    if not found:
        raise ConfigError("There are no texts to train on.")
    return Ragged.joined(found)
