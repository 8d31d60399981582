"""Figures from data: each kind of figure a function, each figure PNG and SVG."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from restd.report.style import COLOURS, LINES, MARKERS, bare, legend, new_figure
from restd.study import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

_DPI = 130
# without these, the same data would give other bytes at every run
_SVG: Any = {"svg.hashsalt": "restd", "svg.fonttype": "path"}
_LABELS = 12
"""Places of an axis that are named, about."""
_INSIDE = 3
"""Names that a legend inside the axes has room for."""


def draw(figure: Figure) -> "Drawn":
    """Draw a figure of a study."""
    return _KINDS[figure.kind](figure)


def to_svg(figure: Figure) -> bytes:
    """The figure as SVG; the same data give the same bytes."""
    drawn = draw(figure)
    from matplotlib import rc_context

    stream = io.BytesIO()
    with rc_context(_SVG):
        drawn.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


def save_figure(figure: Figure, folder: Path) -> tuple[Path, Path]:
    """Write `NAME.png` and `NAME.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{figure.name}.png", folder / f"{figure.name}.svg"
    draw(figure).savefig(png, dpi=_DPI)
    svg.write_bytes(to_svg(figure))
    return png, svg


def _bars(figure: Figure) -> "Drawn":
    data = figure.data
    labels, series = data["labels"], data["series"]
    drawn = new_figure(7, 3.6)
    axis = drawn.subplots()
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = np.arange(len(labels)) - 0.4 + width * (number + 0.5)
        bars = axis.bar(places, values, width * 0.92, color=COLOURS[number % len(COLOURS)], label=name)
        if not data.get("sparse"):
            axis.bar_label(bars, [f"{value:.2f}" for value in values], fontsize=8, padding=1)
    axis.axhline(0, color="black", linewidth=0.8)
    _ticks(axis, labels)
    _named(axis, data)
    if len(series) > _INSIDE:  # there is no corner that so many bars leave free
        legend(axis, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=_INSIDE)
    elif len(series) > 1:
        legend(axis)
    return drawn


def _lines(figure: Figure) -> "Drawn":
    data = figure.data
    drawn = new_figure(7, 3.6)
    axis = drawn.subplots()
    for number, (name, values) in enumerate(data["series"].items()):
        axis.plot(
            range(len(values)),
            values,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=LINES[number % len(LINES)],
            label=name,
        )
    _ticks(axis, data["labels"])
    _named(axis, data)
    legend(axis)
    return drawn


def _heatmap(figure: Figure) -> "Drawn":
    data = figure.data
    values = np.array([[np.nan if value is None else value for value in row] for row in data["values"]], float)
    drawn = new_figure(1.1 * values.shape[1] + 2.2, 0.75 * values.shape[0] + 1.4)
    axis = drawn.subplots()
    reach = max(float(np.nanmax(np.abs(values))), 1e-9)
    image = axis.imshow(values, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
    for row, column in np.argwhere(np.isfinite(values)):
        value = values[row, column]
        colour = "white" if abs(value) > 0.6 * reach else "black"
        axis.text(column, row, f"{value:+.1f}", ha="center", va="center", fontsize=10, color=colour)
    axis.set_xticks(range(values.shape[1]), data["columns"])
    axis.set_yticks(range(values.shape[0]), data["rows"])
    axis.spines[:].set_visible(False)
    drawn.colorbar(image, ax=axis, label=data.get("unit", ""), shrink=0.85)
    return drawn


def _intervals(figure: Figure) -> "Drawn":
    """Means with intervals, a panel a measure, labels shared."""
    data = figure.data
    series = data["series"]
    rows = max(len(entries) for entries in series.values())
    drawn = new_figure(2.6 + 3.4 * len(series), 1.1 + 0.34 * rows)
    axes = drawn.subplots(1, len(series), sharey=True, squeeze=False)[0]
    for number, (axis, (name, entries)) in enumerate(zip(axes, series.items(), strict=True)):
        places = np.arange(len(entries))[::-1]
        means = np.array([entry["mean"] for entry in entries])
        low, high = (np.array([entry[end] for entry in entries]) for end in ("low", "high"))
        axis.axvline(0, color="black", linewidth=0.8)
        axis.errorbar(
            means,
            places,
            xerr=np.stack([means - low, high - means]),
            fmt=MARKERS[number],
            color=COLOURS[number % len(COLOURS)],
            capsize=3,
        )
        axis.set_title(name, fontsize=10)
        axis.grid(axis="x", alpha=0.3)
        bare(axis)
        if number == 0:
            axis.set_yticks(places, [entry["label"] for entry in entries])
            axis.set_ylabel(data.get("ylabel", ""))
    drawn.supxlabel(data["xlabel"], fontsize=10)
    return drawn


def _trace(figure: Figure) -> "Drawn":
    """Rank of one prefix at every level; below the line it survives, a cross is where it was lost."""
    data = figure.data
    drawn = new_figure(7, 3.2)
    from matplotlib.ticker import LogLocator, NullFormatter

    axis = drawn.subplots()
    levels = len(data["codes"])
    for number, (name, entries) in enumerate(data["series"].items()):
        seen = [(level + 1, entry["rank"]) for level, entry in enumerate(entries) if entry["rank"] is not None]
        colour = COLOURS[number % len(COLOURS)]
        axis.plot(*zip(*seen, strict=True), color=colour, marker=MARKERS[number], linestyle=LINES[number], label=name)
        lost = next(((level + 1, entry["rank"]) for level, entry in enumerate(entries) if not entry["kept"]), None)
        if lost is not None and lost[1] is not None:
            axis.plot(*lost, marker="x", color=colour, markersize=14, markeredgewidth=3, linestyle="none")
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
    bare(axis)
    legend(axis)
    return drawn


def _ticks(axis: Any, labels: Sequence[str]) -> None:
    """Name the places of an axis; where they are many, only some."""
    step = max(1, len(labels) // _LABELS)
    axis.set_xticks(np.arange(len(labels))[::step], labels[::step])


def _named(axis: Any, data: Any) -> None:
    axis.set(xlabel=data.get("xlabel", ""), ylabel=data.get("ylabel", ""))
    bare(axis)


_KINDS: dict[str, Callable[[Figure], "Drawn"]] = {
    "bars": _bars,
    "lines": _lines,
    "heatmap": _heatmap,
    "intervals": _intervals,
    "trace": _trace,
}
