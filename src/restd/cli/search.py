"""`restd search`: ask a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.console import show, show_json, show_table, tell
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.search import Explanation, Hit, Ranker, Retriever

Where = Annotated[
    list[str] | None, typer.Option(help="Only items that meet this: category=Home, price<=50 (repeatable).")
]
Deny = Annotated[list[str] | None, typer.Option(help="An item that must not come back (repeatable).")]
Allow = Annotated[list[str] | None, typer.Option(help="Only these items (repeatable).")]
Explain = Annotated[str | None, typer.Option(help="Also say what became of this item, level by level.")]
Index = Annotated[Path | None, typer.Option(help="The index, where the run does not know it any more.")]
Items = Annotated[Path | None, typer.Option(help="The items, likewise.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def search(
    model: Annotated[Path, typer.Option(help="A run of restd train, or a folder Retriever.save wrote.")],
    query: Annotated[str | None, typer.Argument(help="What to look for.")] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Many queries: a text file, one a line, or a table with a column 'query'.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Items wanted.")] = 10,
    where: Where = None,
    deny: Deny = None,
    allow: Allow = None,
    explain: Explain = None,
    width: Annotated[int, typer.Option(help="Prefixes kept at every level.")] = 100,
    score_norm: Annotated[
        str, typer.Option(help="Over what probabilities sum to one: full_vocab, level_codes or trie_children.")
    ] = "full_vocab",
    category_width: Annotated[
        int, typer.Option(help="Categories a CaLIR model searches; 0 for the whole catalogue.")
    ] = 3,
    mode: Annotated[
        str, typer.Option(help="generative, or hybrid: fused with dense and lexical search.")
    ] = "generative",
    keep_heads: Annotated[
        str | None,
        typer.Option(help="Use the heads a ResTD run left: rerank, fuse, look-ahead or one-shot (beyond the paper)."),
    ] = None,
    head_weight: Annotated[float, typer.Option(help="How much the heads weigh.")] = 0.4,
    index: Index = None,
    catalog: Items = None,
    as_json: Json = False,
) -> None:
    """Search a catalogue with a trained model; or explain why an item was found or lost."""
    from restd.search import HeadUse, Retriever
    from restd.search.heads import USES

    if (query is None) == (queries is None):
        raise ConfigError("Either a query or --queries FILE is wanted.")
    retriever = Retriever.load(model, index, catalog, keep_heads=keep_heads is not None)
    options: dict[str, Any] = {
        "where": where or (),
        "deny": deny or (),
        "allow": allow,
        "width": width,
        "score_norm": score_norm,
        "category_width": category_width,
    }
    found = None
    if explain is not None:
        if query is None:
            raise ConfigError("--explain wants one query.")
        found = retriever.explain(query, explain, **options)
        if as_json:
            show_json(found.to_dict())
            return
    if keep_heads is not None:
        if keep_heads not in USES:
            raise ConfigError(f"--keep-heads {keep_heads!r} is unknown; wanted one of {', '.join(USES)}.")
        options["heads"] = HeadUse(keep_heads, head_weight)
    if mode == "hybrid":
        retriever.companions = _companions(retriever, model, index)
    texts = [query] if query is not None else _read_queries(queries)
    answers = retriever.search(texts, k, mode=mode, **options)
    if as_json:
        said = [
            {"query": text, "hits": [plain_hit(hit) for hit in hits]} for text, hits in zip(texts, answers, strict=True)
        ]
        show_json(said[0] if query is not None else said)
        return
    for text, hits in zip(texts, answers, strict=True):
        rows = [(hit.title, f"{hit.score:.3f}", hit.item, "-".join(map(str, hit.sid))) for hit in hits]
        show_table(text[:100], ("title", "score", "item", "Semantic ID"), rows)
    if found is not None:
        show_explanation(found)


def plain_hit(hit: "Hit") -> dict[str, Any]:
    """An answer as plain values."""
    return {"item": hit.item, "title": hit.title, "score": hit.score, "sid": list(hit.sid)}


def _read_queries(path: Path | None) -> list[str]:
    assert path is not None
    if path.suffix in ("", ".txt"):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        found = [line for line in lines if line]
    else:
        from restd.data.readers import column_names, read_batches

        if "query" not in column_names(path):
            raise ConfigError(f"{path} has no column 'query'; it has: {', '.join(column_names(path))}.")
        values = [value for batch in read_batches(path, rows=1 << 16, columns=["query"]) for value in batch.column(0)]
        found = list(dict.fromkeys(str(value.as_py()) for value in values))
    if not found:
        raise ConfigError(f"{path} holds no queries.")
    return found


def _companions(retriever: "Retriever", model: Path, index: Path | None) -> "tuple[Ranker, ...]":
    """Lexical and dense rankers over the same items, row for row."""
    from restd.baselines import Bm25, Dense
    from restd.encode import Embeddings
    from restd.search.places import places

    tell("Preparing lexical and dense search")
    lexical = Bm25.of_texts(retriever.texts())
    home = index or places(model)["index"]
    if not (home / "embeddings").is_dir():
        tell("No embeddings beside the index: fusing with lexical search alone")
        return (lexical,)
    dense = Dense.of(Embeddings.open(home / "embeddings"))
    if dense.items != len(retriever.index):
        tell("Items came or went since the embeddings were made: fusing with lexical search alone")
        return (lexical,)
    return (lexical, dense)


def show_explanation(found: "Explanation") -> None:
    """Print where an item stood at every level."""
    show(f"{found.title} ({found.item}), Semantic ID {'-'.join(map(str, found.sid))}")
    rows = []
    for held in found.levels:
        rank = "–" if held.rank is None else f"{held.rank:,}"
        score = "–" if held.score is None else f"{held.score:.3f}"
        gap = "–" if held.gap is None else f"{held.gap:+.3f}"
        state = "kept" if held.kept else "lost"
        rows.append(
            (
                str(held.level + 1),
                str(held.code),
                f"{held.candidates:,}",
                f"{held.survivors:,}",
                rank,
                score,
                gap,
                state,
            )
        )
    columns = ("level", "code", "candidates", "kept", "its rank", "its score", "over the edge", "")
    show_table(f"{found.query!r}, beam {found.width}", columns, rows)
    show(found.sentence())
    if found.exact_rank is not None:
        show(f"Scored exactly, its Semantic ID is number {found.exact_rank:,} of all.")
