"""The quality report of an index: a table, JSON, or a picture."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from restd.cli.console import notify, show, show_json, show_table, warn
from restd.errors import ArtifactError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from restd.index import IndexQuality, ShapeReport, SidIndex


def report_quality(
    index: "SidIndex",
    folder: Path,
    *,
    as_json: bool,
    png: Path | None = None,
    write: bool = True,
    kept: "Mapping[str, Mapping[str, float]] | None" = None,
    shapes: "ShapeReport | None" = None,
) -> None:
    """Measure an index and print the report; `write` also keeps it as `quality.json` and `quality.png`.

    `kept` is what `measure_kept` says, where it was measured; `shapes` are those that were tried, where they were.
    """
    from restd.artifacts.store import explain_full_disk
    from restd.encode import Embeddings
    from restd.index import measure_quality
    from restd.report import draw_index

    embeddings = None
    if index.quantizer is not None and (folder / "embeddings").is_dir():
        try:
            embeddings = Embeddings.open(folder / "embeddings")
        except ArtifactError as error:  # only the error of embeddings goes unmeasured: the index itself is intact
            warn(str(error))
    notify("Measuring quality")
    quality = measure_quality(index, embeddings=embeddings)
    report = quality.to_dict() if kept is None else {**quality.to_dict(), "kept": kept}
    if write:
        with explain_full_disk(folder):
            (folder / "quality.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        png = folder / "quality.png"
    if png is not None:
        try:
            with explain_full_disk(png):
                draw_index(index, quality, png, kept=kept)
            notify(f"Picture: {png}")
        except MissingExtraError as error:
            if not write:
                raise
            notify(f"No picture: {error}")
    if as_json:
        show_json(report if shapes is None else {**report, "shapes": shapes.to_dict()})
        return
    if shapes is not None:
        _show_shapes(shapes)
    _show_quality(quality)
    if kept is not None:
        columns = list(next(iter(kept.values())))
        rows = [(label, *(f"{values[name]:.1f}" for name in columns)) for label, values in kept.items()]
        show_table("What is kept, by validation queries without any model (%)", ("", *columns), rows)


def _show_shapes(shapes: "ShapeReport") -> None:
    from restd.index.shape import BEAM, describe

    best = max(trial.sids for trial in shapes.trials)
    rows = []
    for trial in shapes.trials:
        close = trial.sids >= (1 - shapes.tolerance) * best
        remark = "chosen" if trial == shapes.chosen else f"within {shapes.tolerance:.0%}" if close else ""
        shape = (str(trial.dim), str(trial.levels), str(trial.codes), str(trial.decoder_steps))
        rows.append((*shape, f"{trial.latents:.1%}", f"{trial.sids:.1%}", remark))
    columns = ("width", "levels", "codes", f"decoder steps, beam of {BEAM}", "latents", "Semantic IDs", "")
    show_table("Shapes, by mean reciprocal rank of validation queries", columns, rows)
    some = f"{shapes.items:,} items" if shapes.items == shapes.of_items else f"{shapes.items:,} of {shapes.of_items:,}"
    queries = "validation queries" if shapes.judged else "held-out queries made of the items' own words"
    show(
        f"{shapes.queries:,} {queries}, {some}. Whole embeddings rank at {shapes.embeddings:.1%}. "
        f"Chosen: {describe(shapes.chosen)}, the cheapest within {shapes.tolerance:.0%} of the best."
    )


def _show_quality(quality: "IndexQuality") -> None:
    def percent(value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}"

    levels = quality.levels
    rows = [
        ("codes", *(str(level.codes) for level in levels)),
        ("codes used", *(str(level.used) for level in levels)),
        ("perplexity", *(f"{level.perplexity:.1f}" for level in levels)),
        ("Gini", *(f"{level.gini:.2f}" for level in levels)),
        ("prefixes", *(f"{level.prefixes:,}" for level in levels)),
        ("items per prefix", *(f"{level.items_per_prefix:,.1f}" for level in levels)),
        ("parent prefixes with one child", *(percent(level.single_child) for level in levels)),
        ("error left", *(percent(level.error) for level in levels)),
        ("neighbours with the same prefix", *(percent(level.neighbour_hits) for level in levels)),
        ("edited by collision repair", *(percent(level.edited) for level in levels)),
        ("stored code is not the nearest", *(percent(level.conflict) for level in levels)),
    ]
    show_table("Quality", ("level", *(str(level.level) for level in levels)), rows)
    show(
        f"{quality.items:,} items, {quality.unique:.2%} unique SIDs. Before repair ({quality.policy}) "
        f"{quality.colliding_before:.1%} of items collided, in groups of up to {quality.largest_group_before:,}; "
        f"{quality.edited:.1%} were moved, {quality.colliding_after:.1%} still collide."
    )
    if quality.error_raw is not None:
        show(f"Quantisation error: {percent(quality.error_raw)} raw, {percent(quality.error_stored)} stored.")
    if quality.embedding_error is not None:
        show(f"Error of embeddings rebuilt from their codes: {percent(quality.embedding_error)} of their variance.")
    for sentence in quality.warnings:
        warn(sentence)
