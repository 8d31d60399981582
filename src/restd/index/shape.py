"""Width, levels and codes by measurement: shapes are tried on validation queries, and the cheapest good one is taken.

An index forgets, and a generator ends where its Semantic IDs end. How much they keep can be measured without training
anything: the nearest reconstruction from codes alone ranks the items for validation queries.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from restd.artifacts import create, hash_file, open_artifact
from restd.artifacts.manifest import MANIFEST
from restd.codes import Codebooks, as_tensor, assign
from restd.codes.keys import refuse_too_many
from restd.config import plain
from restd.data import Catalog
from restd.data.dataset import find_table
from restd.encode import Embeddings
from restd.errors import ArtifactError, ConfigError
from restd.index.align import AlignmentQueries, embed_pairs, is_aligned, query_pairs, within_memory
from restd.index.collisions import CollisionProblem
from restd.index.config import IndexConfig, with_shape
from restd.index.policies import POLICIES
from restd.progress import Notify, hidden, progress
from restd.quantize import QUANTIZERS, assign_balanced, check_latents
from restd.quantize.alignment import QueryPairs, fit_alignment, mean_reciprocal_rank
from restd.quantize.quantizer import unit_length

FOLDER = "shape"
KIND = "shape"
SCHEMA = 1
BEAM = 100
"""The paper's beam for texts, to state what a shape costs to decode."""
_ITEMS_PER_CODE = 4
_MOST_ADDRESSES = 2**56
"""SIDs are looked up as keys of 64 bits; this leaves room for a suffix."""
_EXPLICIT = "set the shape with --dim, --levels and --codes"


@dataclass(frozen=True, slots=True)
class Trial:
    """A shape that was tried; figures are mean reciprocal ranks of validation queries.

    >>> Trial(dim=64, levels=4, codes=128, latents=0.5, sids=0.4).decoder_steps
    400
    """

    dim: int
    levels: int
    codes: int
    latents: float
    """What latents of this width rank before they are quantised."""
    sids: float
    """What the stored codes alone rank, after collision repair."""

    @property
    def decoder_steps(self) -> int:
        """Steps of the decoder for one query: a row for each level and each prefix of the beam."""
        return self.levels * BEAM

    @property
    def cost(self) -> tuple[int, int, int]:
        """Order of cheapness: steps of the decoder, then codes per level, then width."""
        return self.decoder_steps, self.codes, self.dim


@dataclass(frozen=True, slots=True)
class ShapeReport:
    """Every shape that was tried, and the chosen one.

    Args:
        embeddings: mean reciprocal rank of the whole embeddings.
        queries: number of validation queries.
        judged: whether queries are judged, or drawn from items' own words.
        items: number of items that shapes were tried on.
        of_items: number of items in the catalogue.
        tolerance: share below the best figure that was allowed.
        trials: in the order of widths, codes, levels.
        chosen: one of them.
    """

    embeddings: float
    queries: int
    judged: bool
    items: int
    of_items: int
    tolerance: float
    trials: tuple[Trial, ...]
    chosen: Trial

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return plain(self)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> "ShapeReport":
        """Restore what `to_dict` gave."""
        trials = tuple(Trial(**trial) for trial in values["trials"])
        return cls(**{**values, "trials": trials, "chosen": Trial(**values["chosen"])})

    @classmethod
    def load(cls, out: Path) -> "ShapeReport":
        """Read the report in the folder of an index."""
        return cls.of_dict(open_artifact(out / FOLDER, kind=KIND, schema=SCHEMA).manifest.settings["report"])


class Measured(NamedTuple):
    """Explicit settings after the choice, and the queries that were encoded for it, where they were."""

    config: IndexConfig
    queries: AlignmentQueries | None


def refuse_unmeasurable(config: IndexConfig, judgments: Path | None, *, vectors: bool) -> None:
    """Refuse, before anything is encoded, what no shape can be measured for."""
    if not QUANTIZERS[config.quantizer].nested:
        nested = ", ".join(entry.name for entry in QUANTIZERS.entries() if entry.nested)
        raise ConfigError(
            f"Shapes are measured with a quantiser whose first levels are a fit of fewer levels ({nested}), but "
            f"{config.quantizer} would have to be trained for every shape. Choose --quantizer {nested}, or {_EXPLICIT}."
        )
    if vectors:
        raise ConfigError(
            "Shapes are measured on validation queries, but vectors brought from elsewhere have no encoder for "
            f"queries. Leave --vectors out, or {_EXPLICIT}."
        )
    if judgments is None and not is_aligned(config.align, judgments):
        raise ConfigError(
            "Shapes are measured on validation queries, but there are no judgments. Pass --judgments, or let queries "
            f"be made of the items' own words with --set align.enabled=on, or {_EXPLICIT}."
        )


def measure_shape(
    catalog: Catalog, embeddings: Embeddings, judgments: Path | None, out: Path, config: IndexConfig, *, notify: Notify
) -> Measured:
    """Try the shapes of the section [shape], or keep the choice in `out`, and make it explicit in the configuration.

    Args:
        catalog: the items.
        embeddings: of the same items.
        judgments: folder or table of judged queries; without them the held-out pseudo-queries measure.
        out: folder of the index; the report is kept there.
        config: what is tried, and how the index is made.
        notify: receives progress messages.
    """
    target = out / FOLDER
    aligned = is_aligned(config.align, judgments)
    parents = {"embeddings": embeddings.artifact.content}
    if judgments is not None:
        parents["judgments"] = hash_file(find_table(judgments, "judgments"))
    fit = {name: value for name, value in plain(config.fit).items() if name not in ("dim", "levels", "codes")}
    wanted = {
        **{"shape": plain(config.shape), "align": plain(config.align) if aligned else None},
        **{"quantizer": config.quantizer, "fit": fit, "policy": config.policy, "balanced": config.balanced},
    }
    if (target / MANIFEST).is_file():
        try:
            artifact = open_artifact(target, kind=KIND, schema=SCHEMA)
        except ArtifactError as error:
            raise ArtifactError(f"{error} It only saves time: delete {target} and run the command again.") from error
        manifest = artifact.manifest
        if manifest.parents == parents and {name: manifest.settings[name] for name in wanted} == wanted:
            report = ShapeReport.of_dict(manifest.settings["report"])
            notify(f"Kept the shape: {describe(report.chosen)}")
            return Measured(_explicit(config, report.chosen), None)
    pairs = query_pairs(catalog, judgments, config.align)
    if aligned:
        queries = AlignmentQueries(*embed_pairs(embeddings, pairs, notify=notify))
    else:
        (valid,) = embed_pairs(embeddings, pairs[1:], notify=notify)
        queries = AlignmentQueries(valid, valid)
    vectors, train, valid = within_memory(embeddings, *queries, most=config.shape.sample, seed=config.fit.seed)
    valid = _answered(valid)
    some = "" if len(vectors) == embeddings.items else f" of {embeddings.items:,}"
    notify(f"Trying shapes on {len(vectors):,}{some} items with {len(valid.vectors):,} validation queries")
    trials = try_shapes(vectors, train if aligned else None, valid, config, items=embeddings.items)
    report = ShapeReport(
        embeddings=mean_reciprocal_rank(unit_length(valid.vectors) @ unit_length(vectors).T, valid),
        queries=len(valid.vectors),
        judged=judgments is not None,
        items=len(vectors),
        of_items=embeddings.items,
        tolerance=config.shape.tolerance,
        trials=trials,
        chosen=choose(trials, tolerance=config.shape.tolerance),
    )
    notify(f"Chose {describe(report.chosen)}")
    with create(target, kind=KIND, schema=SCHEMA, settings={**wanted, "report": report.to_dict()}, parents=parents):
        pass  # the manifest says it all
    return Measured(_explicit(config, report.chosen), queries if aligned else None)


def describe(trial: Trial) -> str:
    """A shape in words.

    >>> describe(Trial(dim=64, levels=4, codes=128, latents=0.5, sids=0.4))
    'width 64, 4 levels of 128 codes'
    """
    return f"width {trial.dim}, {trial.levels} levels of {trial.codes} codes"


def choose(trials: Sequence[Trial], *, tolerance: float) -> Trial:
    """The cheapest shape whose SIDs rank almost as well as the best; ties go to fewer levels, then fewer codes.

    >>> small, large = Trial(32, 4, 64, 0.5, 0.39), Trial(32, 8, 64, 0.5, 0.40)
    >>> choose([large, small], tolerance=0.03) == small, choose([large, small], tolerance=0.01) == large
    (True, True)
    """
    best = max(trial.sids for trial in trials)
    if best == 0:
        raise ConfigError(
            f"None of {len(trials)} shapes ranks an item that answers a validation query among the first ten, so they "
            f"cannot be compared. Check that judgments and catalogue belong together, or {_EXPLICIT}."
        )
    return min((trial for trial in trials if trial.sids >= (1 - tolerance) * best), key=lambda trial: trial.cost)


def try_shapes(
    vectors: Float[np.ndarray, "item input"],
    train: QueryPairs | None,
    valid: QueryPairs,
    config: IndexConfig,
    *,
    items: int,
) -> tuple[Trial, ...]:
    """Measure every shape of the section [shape] that embeddings and catalogue allow.

    Args:
        vectors: embeddings of the items to try on.
        train: pairs that the alignment of each width learns from; None to project queries as items are.
        valid: pairs to measure by.
        config: what is tried, and how items are aligned, quantised and kept apart.
        items: number of items in the whole catalogue, all of which need an address.
    """
    widths, codes = allowed_widths(config, vectors.shape[1]), allowed_codes(config, len(vectors))
    depths = {count: _depths(config, count, items=items) for count in codes}
    if not any(depths.values()):
        refuse_too_many(items, (codes[-1],) * max(config.shape.levels))
        raise ConfigError(
            f"{codes[0]} codes at {min(config.shape.levels)} levels are more addresses than keys of 64 bits can hold. "
            "Lower shape.levels or shape.codes."
        )
    trials: list[Trial] = []
    with progress("Trying shapes", total=len(widths) * len(codes)) as advance, hidden():
        for dim in widths:
            points, asked = vectors, valid.vectors
            if train is not None:
                alignment = fit_alignment(vectors, train, valid, config.align, dim=dim).alignment
                points, asked = alignment.items(vectors), alignment.queries(valid.vectors)
            for count in codes:
                if depths[count]:
                    deepest = with_shape(config, dim=dim, codes=count, levels=max(depths[count]))
                    trials += _try_depths(points, asked, valid, deepest, depths[count])
                advance(1)
    return tuple(trials)


def _try_depths(
    points: Float[np.ndarray, "item input"],
    asked: Float[np.ndarray, "query input"],
    valid: QueryPairs,
    config: IndexConfig,
    depths: Sequence[int],
) -> Iterator[Trial]:
    """One fit of the most levels, measured after each of these numbers of levels."""
    fit = config.fit
    assert isinstance(fit.codes, int)
    sample = points
    if fit.sample < len(points):
        sample = points[np.sort(np.random.default_rng(fit.seed).choice(len(points), fit.sample, replace=False))]
    kind = QUANTIZERS[config.quantizer]
    assert kind.fit is not None
    quantizer = kind.fit(sample, fit, items=len(points))
    latents = quantizer.latents(points)
    check_latents(latents)
    queries = quantizer.latents(asked).astype(np.float32)
    whole = mean_reciprocal_rank(nearness(queries, latents.astype(np.float32)), valid)
    for levels in depths:
        books = Codebooks.of([quantizer.codebooks.level(level) for level in range(levels)])
        if config.balanced:
            raw = assign_balanced(latents, books, seed=fit.seed)
        else:
            raw = assign(as_tensor(latents), books).numpy()
        problem = CollisionProblem(latents, raw, books, capacity=config.room)
        stored = POLICIES[config.policy].resolve(problem).sids
        kept = mean_reciprocal_rank(nearness(queries, reconstructed(stored, books)), valid)
        yield Trial(quantizer.codebooks.dim, levels, fit.codes, latents=whole, sids=kept)


def nearness(
    queries: Float[np.ndarray, "query dim"], points: Float[np.ndarray, "item dim"]
) -> Float[np.ndarray, "query item"]:
    """Scores in the order of the squared distance between queries and points.

    >>> nearness(np.array([[1.0, 0.0]]), np.array([[1.0, 1.0], [3.0, 0.0]])).tolist()
    [[0.0, -3.0]]
    """
    return 2 * queries @ points.T - np.square(points).sum(axis=1)


def reconstructed(sids: Int[np.ndarray, "item stored_level"], codebooks: Codebooks) -> Float[np.ndarray, "item dim"]:
    """Sums of the items' codewords; a suffix has no codebook and adds nothing.

    >>> reconstructed(np.array([[1, 0, 7]]), Codebooks.of([np.eye(2), np.ones((2, 2))])).tolist()
    [[1.0, 2.0]]
    """
    books = codebooks.values.numpy()
    return np.sum([books[level][sids[:, level]] for level in range(codebooks.levels)], axis=0)


def allowed_widths(config: IndexConfig, dim: int) -> list[int]:
    """Widths to try: none wider than the embeddings.

    >>> allowed_widths(IndexConfig(), 384), allowed_widths(IndexConfig(), 48)
    ([32, 64, 128], [32, 48])
    """
    return sorted({min(width, dim) for width in config.shape.widths})


def allowed_codes(config: IndexConfig, items: int) -> list[int]:
    """Codes per level to try: a codebook needs several items per code.

    >>> allowed_codes(IndexConfig(), 20_000), allowed_codes(IndexConfig(), 300)
    ([32, 64, 128, 256], [32, 64])
    """
    most = 1 << (max(items // _ITEMS_PER_CODE, 1).bit_length() - 1)
    return sorted({min(count, most) for count in config.shape.codes})


def _depths(config: IndexConfig, codes: int, *, items: int) -> list[int]:
    """Numbers of levels whose addresses are enough for the catalogue, and not more than keys can hold."""
    least = items if POLICIES[config.policy].unique_within else -(-items // config.room) if config.room else 1
    return sorted(levels for levels in set(config.shape.levels) if least <= codes**levels <= _MOST_ADDRESSES)


def _answered(pairs: QueryPairs) -> QueryPairs:
    """Without the queries whose items are all outside the sample."""
    numbers, query = np.unique(pairs.query, return_inverse=True)
    return QueryPairs(pairs.vectors[numbers], query, pairs.item)


def _explicit(config: IndexConfig, chosen: Trial) -> IndexConfig:
    return with_shape(config, levels=chosen.levels, codes=chosen.codes, dim=chosen.dim)
