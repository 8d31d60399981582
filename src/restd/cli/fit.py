"""`restd fit`: choose the weights of a hybrid search on validation queries."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restd.cli.console import notify, show, show_json, show_table
from restd.cli.device import use_device
from restd.cli.options import Beam, Json, Model, OptionalIndex, SearchDevice, search_options
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.evaluate import FittingSet
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
    return fit_and_collect(retriever, names=names, beam=beam)[0]


def fit_and_collect(
    retriever: "Retriever", *, names: list[str] | None = None, beam: int | None = None
) -> "tuple[Fusion, FittingSet | None]":
    """Fit and keep the weights; also returns the validation queries with their candidates, where there are any."""
    from restd.evaluate import collect, fitting_queries
    from restd.evaluate.fitting import available_parts, fit_collected
    from restd.search import Fusion
    from restd.search.fusion import FOLDER

    if retriever.data is None or retriever.source is None:
        raise ConfigError("A hybrid search is fitted on judged queries; pass --data, the folder that has them.")
    tests = fitting_queries(retriever.data, retriever.snapshot)
    add_parts(retriever, names or [])
    parts, valid = available_parts(retriever), None
    if len(tests):
        notify(f"Fitting the hybrid search on {len(tests):,} validation queries")
        valid = collect(retriever, tests, parts=parts, options=search_options(beam=beam))
        fusion = fit_collected(retriever, valid, notify=notify)
    else:
        notify("There are no validation queries to choose weights by; fixed ones are used")
        fusion = Fusion.fixed(parts)
    fusion.save(retriever.source.parent / FOLDER)
    retriever.fusion = fusion
    return fusion, valid


def add_parts(retriever: "Retriever", names: list[str]) -> None:
    """Give a retriever the companions by these names, or all that can be made here; says which cannot, and why."""
    from restd.evaluate.fitting import add_parts as add_named_parts

    add_named_parts(retriever, names, notify=notify)


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
