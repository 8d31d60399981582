"""Draws figures of analyses as PNG and SVG, with one function per kind of figure."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from restd.analyses import Figure
from restd.report.style import COLOURS, LINES, MARKERS, add_legend, new_figure, remove_box

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

_DPI = 130
# without these, the bytes of the same figure would differ from run to run
_SVG_OPTIONS: Any = {"svg.hashsalt": "restd", "svg.fonttype": "path"}
_MAX_TICK_LABELS = 12
"""Approximate number of tick labels of an axis."""
_MAX_LEGEND_INSIDE = 3
"""Number of entries up to which a legend fits inside the axes."""


def draw(figure: Figure) -> "MatplotlibFigure":
    """Draw a figure with matplotlib."""
    return _KINDS[figure.kind](figure)


def to_svg(figure: Figure) -> bytes:
    """Return the figure as SVG. The same data always give the same bytes."""
    plot = draw(figure)
    from matplotlib import rc_context

    stream = io.BytesIO()
    with rc_context(_SVG_OPTIONS):
        plot.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


def save_figure(figure: Figure, folder: Path) -> tuple[Path, Path]:
    """Write `NAME.png` and `NAME.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{figure.name}.png", folder / f"{figure.name}.svg"
    draw(figure).savefig(png, dpi=_DPI)
    svg.write_bytes(to_svg(figure))
    return png, svg


def _bars(figure: Figure) -> "MatplotlibFigure":
    data = figure.data
    labels, series = data["labels"], data["series"]
    plot = new_figure(7, 3.6)
    axis = plot.subplots()
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        positions = np.arange(len(labels)) - 0.4 + width * (number + 0.5)
        bars = axis.bar(positions, values, width * 0.92, color=COLOURS[number % len(COLOURS)], label=name)
        if not data.get("sparse"):
            axis.bar_label(bars, [f"{value:.2f}" for value in values], fontsize=8, padding=1)
    axis.axhline(0, color="black", linewidth=0.8)
    _set_tick_labels(axis, labels)
    _label_axes(axis, data)
    if len(series) > _MAX_LEGEND_INSIDE:  # so many bars leave no corner free
        add_legend(axis, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=_MAX_LEGEND_INSIDE)
    elif len(series) > 1:
        add_legend(axis)
    return plot


def _lines(figure: Figure) -> "MatplotlibFigure":
    data = figure.data
    plot = new_figure(7, 3.6)
    axis = plot.subplots()
    for number, (name, values) in enumerate(data["series"].items()):
        axis.plot(
            range(len(values)),
            values,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=LINES[number % len(LINES)],
            label=name,
        )
    _set_tick_labels(axis, data["labels"])
    _label_axes(axis, data)
    add_legend(axis)
    return plot


def _heatmap(figure: Figure) -> "MatplotlibFigure":
    data = figure.data
    values = np.array([[np.nan if value is None else value for value in row] for row in data["values"]], float)
    plot = new_figure(1.1 * values.shape[1] + 2.2, 0.75 * values.shape[0] + 1.4)
    axis = plot.subplots()
    limit = max(float(np.nanmax(np.abs(values))), 1e-9)
    image = axis.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    for row, column in np.argwhere(np.isfinite(values)):
        value = values[row, column]
        colour = "white" if abs(value) > 0.6 * limit else "black"
        axis.text(column, row, f"{value:+.1f}", ha="center", va="center", fontsize=10, color=colour)
    axis.set_xticks(range(values.shape[1]), data["columns"])
    axis.set_yticks(range(values.shape[0]), data["rows"])
    axis.spines[:].set_visible(False)
    plot.colorbar(image, ax=axis, label=data.get("unit", ""), shrink=0.85)
    return plot


def _intervals(figure: Figure) -> "MatplotlibFigure":
    """Draw means with intervals, one panel per measure, with shared labels."""
    data = figure.data
    series = data["series"]
    rows = max(len(entries) for entries in series.values())
    plot = new_figure(2.6 + 3.4 * len(series), 1.1 + 0.34 * rows)
    axes = plot.subplots(1, len(series), sharey=True, squeeze=False)[0]
    for number, (axis, (name, entries)) in enumerate(zip(axes, series.items(), strict=True)):
        positions = np.arange(len(entries))[::-1]
        means = np.array([entry["mean"] for entry in entries])
        low, high = (np.array([entry[end] for entry in entries]) for end in ("low", "high"))
        if data.get("line", True):
            axis.axvline(0, color="black", linewidth=0.8)
        axis.errorbar(
            means,
            positions,
            xerr=np.stack([means - low, high - means]),
            fmt=MARKERS[number],
            color=COLOURS[number % len(COLOURS)],
            capsize=3,
        )
        axis.set_title(name, fontsize=10)
        axis.grid(axis="x", alpha=0.3)
        remove_box(axis)
        if number == 0:
            axis.set_yticks(positions, [entry["label"] for entry in entries])
            axis.set_ylabel(data.get("ylabel", ""))
    plot.supxlabel(data["xlabel"], fontsize=10)
    return plot


def _trace(figure: Figure) -> "MatplotlibFigure":
    """Draw the rank of one prefix at every level; a cross marks where it fell out of the beam."""
    data = figure.data
    plot = new_figure(7, 3.2)
    from matplotlib.ticker import LogLocator, NullFormatter

    axis = plot.subplots()
    levels = len(data["codes"])
    for number, (name, entries) in enumerate(data["series"].items()):
        ranks = [(level + 1, entry["rank"]) for level, entry in enumerate(entries) if entry["rank"] is not None]
        colour = COLOURS[number % len(COLOURS)]
        axis.plot(*zip(*ranks, strict=True), color=colour, marker=MARKERS[number], linestyle=LINES[number], label=name)
        pruned_at = next(((level + 1, entry["rank"]) for level, entry in enumerate(entries) if not entry["kept"]), None)
        if pruned_at is not None and pruned_at[1] is not None:
            axis.plot(*pruned_at, marker="x", color=colour, markersize=14, markeredgewidth=3, linestyle="none")
    axis.axhline(data["width"] + 0.5, color="black", linewidth=0.8, linestyle=":")
    axis.text(levels, data["width"] + 0.6, f"beam of {data['width']}", ha="right", va="bottom", fontsize=8)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.invert_yaxis()
    labels = [f"level {level}\ncode {code}" for level, code in enumerate(data["codes"], start=1)]
    axis.set_xticks(range(1, levels + 1), labels)
    axis.set_ylabel("rank among candidates")
    remove_box(axis)
    add_legend(axis)
    return plot


def _set_tick_labels(axis: Any, labels: Sequence[str]) -> None:
    """Set the tick labels of the x axis, only some of them if there are many."""
    step = max(1, len(labels) // _MAX_TICK_LABELS)
    axis.set_xticks(np.arange(len(labels))[::step], labels[::step])


def _label_axes(axis: Any, data: Any) -> None:
    axis.set(xlabel=data.get("xlabel", ""), ylabel=data.get("ylabel", ""))
    remove_box(axis)


_KINDS: dict[str, Callable[[Figure], "MatplotlibFigure"]] = {
    "bars": _bars,
    "lines": _lines,
    "heatmap": _heatmap,
    "intervals": _intervals,
    "trace": _trace,
}
