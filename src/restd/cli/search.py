"""`restd search`: query a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.console import notify, show, show_json, show_table
from restd.cli.device import use_device
from restd.cli.options import (
    HEAD_WEIGHT,
    Allow,
    Beam,
    CategoryWidth,
    Deny,
    Explain,
    HeadMode,
    HeadWeight,
    Hits,
    Json,
    Model,
    OptionalIndex,
    OptionalItems,
    ScoreNorm,
    SearchDevice,
    Where,
    search_options,
)
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.search import Explanation, Hit


def search(
    model: Model,
    query: Annotated[str | None, typer.Argument(help="Text to search for.")] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="Many queries: a text file with one per line, or a table with a column 'query'."),
    ] = None,
    k: Hits = 10,
    where: Where = None,
    deny: Deny = None,
    allow: Allow = None,
    explain: Explain = None,
    beam: Beam = None,
    score_norm: ScoreNorm = "full_vocab",
    category_width: CategoryWidth = 3,
    mode: Annotated[
        str | None,
        typer.Option(
            help="generative: the model alone, as in the paper; or hybrid: together with BM25, dense search, …. "
            "Default: hybrid if restd fit has fitted it, otherwise generative."
        ),
    ] = None,
    head_mode: HeadMode = None,
    head_weight: HeadWeight = HEAD_WEIGHT,
    index: OptionalIndex = None,
    catalog: OptionalItems = None,
    device: SearchDevice = None,
    as_json: Json = False,
) -> None:
    """Search a catalogue with a trained model, or explain why an item was found or lost."""
    from restd.search import Retriever

    device = use_device(device)
    if (query is None) == (queries is None):
        raise ConfigError("Pass either a query or --queries FILE.")
    mode = mode or _default_mode(model, head_mode)
    options = search_options(
        k=k,
        beam=beam,
        score_norm=score_norm,
        where=where,
        allow=allow,
        deny=deny,
        category_width=category_width,
        mode=mode,
        head_mode=head_mode,
        head_weight=head_weight,
    )
    retriever = Retriever.load(model, index, catalog, keep_heads=head_mode is not None, device=device)
    if mode == "hybrid":
        notify("Preparing the parts of the hybrid search")
        retriever.load_fusion()
    explanation = None
    if explain is not None:
        if query is None:
            raise ConfigError("--explain needs a single query, not --queries.")
        explanation = retriever.explain(query, explain, options=options)
        if as_json:
            show_json(explanation.to_dict())
            return
    texts = [query] if query is not None else _read_queries(queries)
    results = retriever.search(texts, options=options)
    if as_json:
        records = [
            {"query": text, "hits": [hit_record(hit) for hit in hits]}
            for text, hits in zip(texts, results, strict=True)
        ]
        show_json(records[0] if query is not None else records)
        return
    for text, hits in zip(texts, results, strict=True):
        show_hits(text[:100], hits)
    if explanation is not None:
        show_explanation(explanation)


def hit_record(hit: "Hit") -> dict[str, Any]:
    """A result as JSON-able values."""
    return {"item": hit.item, "title": hit.title, "score": hit.score, "sid": list(hit.sid)}


def show_hits(title: str, hits: "list[Hit]") -> None:
    """Print results as a table."""
    rows = [(hit.title, f"{hit.score:.3f}", hit.item, "-".join(map(str, hit.sid))) for hit in hits]
    show_table(title, ("title", "score", "item", "Semantic ID"), rows)


def _read_queries(path: Path | None) -> list[str]:
    assert path is not None
    if path.suffix in ("", ".txt"):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        queries = [line for line in lines if line]
    else:
        from restd.data.readers import column_names, read_batches

        if "query" not in column_names(path):
            raise ConfigError(f"{path} has no column 'query'. Its columns: {', '.join(column_names(path))}.")
        values = [value for batch in read_batches(path, rows=1 << 16, columns=["query"]) for value in batch.column(0)]
        queries = list(dict.fromkeys(str(value.as_py()) for value in values))
    if not queries:
        raise ConfigError(f"{path} contains no queries.")
    return queries


def _default_mode(model: Path, head_mode: str | None) -> str:
    """Hybrid where its weights were fitted; heads at inference are an option of the model alone."""
    from restd.models.store import model_folder
    from restd.search.fusion import FOLDER

    fitted = (model_folder(model).parent / FOLDER).is_dir()
    return "hybrid" if fitted and head_mode is None else "generative"


def show_explanation(explanation: "Explanation") -> None:
    """Print where an item stood at every level."""
    show(f"{explanation.title} ({explanation.item}), Semantic ID {'-'.join(map(str, explanation.sid))}")
    rows = [
        (
            str(level.level + 1),
            str(level.code),
            f"{level.candidates:,}",
            f"{level.survivors:,}",
            "–" if level.rank is None else f"{level.rank:,}",
            "–" if level.score is None else f"{level.score:.3f}",
            "–" if level.gap is None else f"{level.gap:+.3f}",
            "kept" if level.kept else "lost",
        )
        for level in explanation.levels
    ]
    columns = ("level", "code", "candidates", "kept", "its rank", "its score", "margin to the cut", "")
    show_table(f"{explanation.query!r}, beam {explanation.beam}", columns, rows)
    if explanation.parts is not None:
        parts = sorted(explanation.parts.items(), key=lambda part: -part[1].share)
        rows = [
            (name, "–" if one.score is None else f"{one.score:.3f}", *map(_three, (one.scaled, one.weight, one.share)))
            for name, one in parts
        ]
        total = sum(one.share for _, one in parts)
        title = f"Parts of its score in the hybrid search, {total:.3f}"
        show_table(title, ("part", "its own score", "scaled", "weight", "share"), rows)
    show(explanation.sentence())
    if explanation.exact_rank is not None:
        show(f"Scored exactly, its Semantic ID ranks {explanation.exact_rank:,} of all.")


def _three(value: float) -> str:
    return f"{value:.3f}"
