"""Making a dual encoder: everything it needs is read, encoded and trained, or a finished one is opened again."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor

from restd.artifacts import Artifact, hash_json, open_artifact, refuse_foreign_files, sole_writer
from restd.artifacts.manifest import MANIFEST
from restd.config import plain
from restd.encode import Encoder, SentenceTransformerEncoder, states_dim
from restd.errors import ArtifactError, ConfigError
from restd.models.contract import seeded
from restd.models.store import FOLDER
from restd.quantize import fit_level
from restd.quantize.known_pairs import KnownPairs
from restd.rankers.dual_data import Examples, ExplicitView, TextReader, Texts, hard_negatives, unwrapped
from restd.rankers.dual_encoder import KIND, SCHEMA, DualEncoder, LaserEncoder
from restd.rankers.dual_network import DualNetwork
from restd.rankers.dual_settings import DprConfig, DualConfig, LaserConfig
from restd.rankers.dual_training import BEST, CHECKPOINT, DualRun, Lessons
from restd.rankers.registry import RankerContext
from restd.train.log import LOG

_STATES = "states"
"""Token states of frozen encoders, beside the runs that read them."""
_OURS = (FOLDER, CHECKPOINT, BEST, LOG)


def make_dual_encoder(context: RankerContext, config: DualConfig) -> DualEncoder:
    """Train a dual encoder over the context's encoder, resume a run that was killed, or open a finished one."""
    name = config.section
    if context.trained is None:
        raise ConfigError(f"The ranker {name!r} is trained before it ranks. Pass --out: the folder to keep it in.")
    examples = Examples.read(context, config)
    queries, items = _encoders(context)
    if isinstance(config, DprConfig) and config.tune_encoder:
        _refuse_untrainable(queries, items)
    identity = hash_json(
        {
            "name": name,
            "config": plain(config),
            "encoders": [queries.identity, items.identity],
            "ids": hash_json(context.snapshot.ids.to_pylist()),
            **examples.identity(),
        }
    )
    out, states = context.trained / f"{name}-{identity[:12]}", context.trained / _STATES
    refuse_foreign_files(out, ours=_OURS, command=f"the training of {name}")
    with sole_writer(out):
        artifact = finished_run(out, identity)
        vectors = None if artifact is not None else context.item_vectors()
        model = _untrained(context, config, (queries, items), vectors)
        if artifact is None:
            texts = model.readers[1].read(examples.items, vectors=vectors, cache=states)
            lessons = _lessons(context, config, examples, model.readers[0], texts, states)
            context.notify(
                f"Training {name}: {len(lessons.pairs):,} pairs of {len(lessons.queries):,} queries, "
                f"{len(lessons.valid):,} queries to validate, {len(lessons.items):,} items"
            )
            DualRun(model, lessons, out, identity, context.notify).train()
            artifact = finished_run(out, identity)
            assert artifact is not None
        else:
            context.notify(f"Kept {name} in {out / FOLDER}: nothing has changed since it was trained")
        return model.restored(artifact, context.snapshot)


def finished_run(out: Path, identity: str) -> Artifact | None:
    """The artefact of a finished run; one of another identity is refused."""
    folder = out / FOLDER
    if not (folder / MANIFEST).is_file():
        return None
    artifact = open_artifact(folder, kind=KIND, schema=SCHEMA)
    if artifact.manifest.settings["identity"] != identity:
        raise ArtifactError(
            f"{folder} was trained with other settings, judgments or items; choose another folder, or delete it first."
        )
    return artifact


def describe_dual_encoder(context: RankerContext, config: DualConfig) -> dict[str, Any]:
    """What a protocol card says of it: every setting, and the encoder where it is not the index's."""
    encoder = {} if context.argument is None else context.other_encoder().describe()
    return {**encoder, "settings": plain(config)}


def _encoders(context: RankerContext) -> tuple[Encoder, Encoder]:
    """The encoders of queries and of items, without what remembers vectors."""
    if context.argument is None:
        encoder = unwrapped(context.encoder())
        return encoder, encoder
    other = context.other_encoder()
    queries = unwrapped(other.queries)
    return queries, queries if isinstance(other.items, str) else other.items


def _refuse_untrainable(*encoders: Encoder) -> None:
    for encoder in encoders:
        if not isinstance(encoder, SentenceTransformerEncoder):
            raise ConfigError(
                f"The encoder {encoder.identity['name']!r} cannot be trained; name a sentence-transformers model, as "
                "in dpr:minilm, or leave dpr.tune_encoder out."
            )


def _untrained(
    context: RankerContext,
    config: DualConfig,
    encoders: tuple[Encoder, Encoder],
    vectors: Float[np.ndarray, "item dim"] | None,
) -> DualEncoder:
    """The ranker with its first weights; prototypes are zero where trained ones will replace them."""
    queries, items = encoders
    live = isinstance(config, DprConfig) and config.tune_encoder
    of_queries, of_items = config.reads_tokens
    readers = TextReader(queries, config, of_queries, live), TextReader(items, config, of_items, live)
    trainable = None
    if isinstance(queries, SentenceTransformerEncoder) and isinstance(items, SentenceTransformerEncoder):
        trainable = (queries, items)
    prototypes = None
    if isinstance(config, LaserConfig) and config.steps:
        prototypes = _prototypes(config, context.snapshot.ids, queries.dim, vectors)
    with seeded(config.seed):
        network = DualNetwork(queries.dim, states_dim(queries), config, prototypes=prototypes, encoders=trainable)
    kind = LaserEncoder if isinstance(config, LaserConfig) else DualEncoder
    return kind(network, readers, config, context.snapshot.ids, None, {}, context.snapshot.hash)


def _prototypes(
    config: LaserConfig, ids: pa.StringArray, dim: int, vectors: Float[np.ndarray, "item dim"] | None
) -> Float[Tensor, "prototype dim"]:
    """Centroids of the items: what soft tokens mix at first. There are no more than items."""
    count = min(config.prototypes, len(ids))
    if vectors is None:
        return torch.zeros(count, dim)
    points = torch.nn.functional.normalize(torch.from_numpy(vectors), dim=-1).numpy()
    return torch.from_numpy(fit_level(points, count, seed=config.seed))


def _lessons(
    context: RankerContext,
    config: DualConfig,
    examples: Examples,
    reader: TextReader,
    items: Texts,
    states: Path,
) -> Lessons:
    train, valid = examples.train, examples.valid
    known = KnownPairs.of(train.text, train.item, items=len(items))
    negatives = hard_negatives(context.with_texts(), train, known, config) if config.hard_negatives else None
    texts = [reader.read(list(map(str, part.texts)), cache=states) for part in (train, valid)]
    explicit = None
    if examples.explicit is not None:
        explicit = ExplicitView.of(reader, examples.explicit, states)
    return Lessons(train, texts[0], items, known, negatives, explicit, valid, texts[1])
