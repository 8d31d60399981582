"""`restd fit`: choose the weights of a hybrid search on validation queries."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.console import notify, show, show_json, show_table
from restd.cli.device import use_device
from restd.cli.options import Beam, Json, Model, OptionalIndex, SearchDevice, search_options
from restd.errors import ConfigError, RestdError

if TYPE_CHECKING:
    from restd.search import Fusion, Retriever


def fit(
    model: Model,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with items and judgments. Default: the one the model was trained with."),
    ] = None,
    index: OptionalIndex = None,
    parts: Annotated[
        str,
        typer.Option(
            help="Parts to choose from, separated by commas: generator (the model), heads, bm25, dense, latent, "
            "popularity, match. Default: all that can be made here."
        ),
    ] = "",
    beam: Beam = None,
    device: SearchDevice = None,
    as_json: Json = False,
) -> None:
    """Fit a hybrid search: choose weights for the model, BM25, dense search and others on validation queries.

    The weights are stored beside the model. restd search then uses them, unless --mode generative is passed.
    """
    from restd.search import Retriever

    device = use_device(device)
    retriever = Retriever.load(model, index, data, device=device)
    fusion = fit_retriever(retriever, names=[name for name in parts.split(",") if name], beam=beam)
    if as_json:
        show_json({"weights": dict(fusion.weights), "fitted": fusion.is_fitted, **fusion.report})
        return
    show_fusion(fusion)


def fit_retriever(retriever: "Retriever", *, names: list[str] | None = None, beam: int | None = None) -> "Fusion":
    """Fit a loaded retriever's hybrid search on the validation queries of its data, and keep the weights."""
    from restd.evaluate import fit_fusion, fitting_queries
    from restd.search.fusion import FOLDER

    if retriever.data is None or retriever.source is None:
        raise ConfigError("A hybrid search is fitted on judged queries; pass --data, the folder that has them.")
    tests = fitting_queries(retriever.data, retriever.snapshot)
    notify(f"Fitting the hybrid search on {len(tests):,} validation queries")
    add_parts(retriever, names or [])
    fusion = fit_fusion(retriever, tests, options=search_options(beam=beam), notify=notify)
    fusion.save(retriever.source.parent / FOLDER)
    retriever.fusion = fusion
    return fusion


def add_parts(retriever: "Retriever", names: list[str]) -> None:
    """Give a retriever the companions by these names, or all that can be made here; says which cannot, and why."""
    from restd.distill.heads import FOLDER as HEADS_FOLDER
    from restd.rankers import COMPANIONS
    from restd.search import KeptHeads
    from restd.search.candidates import GENERATOR, HEADS

    known = (GENERATOR, HEADS, *COMPANIONS)
    for name in names:
        if name not in known:
            raise ConfigError(f"Unknown part {name!r} of a hybrid search. Known: {', '.join(known)}.")
    assert retriever.source is not None
    folder = retriever.source.parent
    if HEADS in names or (not names and (folder / HEADS_FOLDER).is_dir()):
        retriever.heads = KeptHeads.load(folder, retriever.snapshot)
    made: list[Any] = []
    for name in COMPANIONS:
        if names and name not in names:
            continue
        try:
            retriever.set_companions([name])
        except RestdError as error:
            if names:
                raise
            notify(f"Without {name}: {error}")
            continue
        made += retriever.snapshot.companions
    retriever.set_companions(made)


def show_fusion(fusion: "Fusion") -> None:
    """Print the weights, and what they are worth."""
    total = sum(fusion.weights.values())
    alone = fusion.report.get("parts", {})
    rows = [
        (part, f"{weight / total:.0%}", f"{alone[part]:.2f}" if part in alone else "–")
        for part, weight in sorted(fusion.weights.items(), key=lambda pair: -pair[1])
    ]
    show_table("Hybrid search", ("part", "share of the weights", "NDCG@10 alone"), rows)
    if not fusion.is_fitted:
        show("Fixed weights: there were no validation queries to fit them on.")
        return
    report = fusion.report
    show(
        f"{report['measure']} of {report['queries']:,} validation queries: {report['cross_validated']:.2f}, each "
        f"judged with weights that other queries chose ({report['folds']} folds)."
    )
    if report["dropped"]:
        show(f"Left out, since rankings lose nothing without: {', '.join(report['dropped'])}.")
