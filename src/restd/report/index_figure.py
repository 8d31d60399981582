"""One figure about an index: code usage, error and prefixes per level, changes by collision repair, what is kept."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from restd.errors import ConfigError
from restd.index import IndexQuality, SidIndex
from restd.report.style import COLOURS, add_legend, new_figure, remove_box

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ABOVE_LEGEND = 22
"""Space between axes and title, in points, where a legend stands between them."""


def draw_index(
    index: SidIndex,
    quality: IndexQuality,
    path: Path,
    *,
    kept: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Write the figure to `path` in the format of its suffix, such as `.png` or `.svg`.

    Args:
        index: what is drawn.
        quality: its figures.
        path: of the picture.
        kept: by what ranks and by two measures, in percent, as `measure_kept` gives it; drawn as a row of its own.
    """
    figure = new_figure(11, 7.5 if kept is None else 9.4)
    from matplotlib.ticker import FuncFormatter

    rows = 2 if kept is None else 3
    usage, errors, prefixes, changes, *last = figure.subplots(rows, 2, height_ratios=(3, 3, 1.6)[:rows]).ravel()
    levels = [level.level for level in quality.levels]

    for number, level in enumerate(quality.levels):
        counts = np.sort(index.code_counts(number))[::-1]
        usage.plot(
            np.linspace(0, 100, len(counts)),
            counts / len(index),
            color=COLOURS[number % len(COLOURS)],
            label=f"level {level.level}: perplexity {level.perplexity:.0f} of {level.codes}",
        )
    usage.set(xlabel="codes, most used first (% of the codebook)", ylabel="share of items", ylim=(0, None))
    usage.set_title("Code usage")
    add_legend(usage, loc="upper right")  # the best place takes long to find among many codes

    _bars(errors, levels, {"error left": [level.error for level in quality.levels]})
    errors.set(ylabel="share of the latents' mean square", ylim=(0, 1))
    errors.set_title("Quantisation error after each level")

    _bars(
        prefixes,
        levels,
        {
            "neighbours that share the prefix": [level.neighbour_hits for level in quality.levels],
            "prefixes before it with one child": [level.single_child for level in quality.levels],
        },
    )
    prefixes.set(ylabel="share", ylim=(0, 1.06))
    prefixes.set_title("Prefixes", pad=_ABOVE_LEGEND)

    _bars(
        changes,
        levels,
        {
            "edited by collision repair": [level.edited for level in quality.levels],
            "stored code is not the nearest": [level.conflict for level in quality.levels],
        },
    )
    changes.set(ylabel="share of items")
    changes.set_title(
        f"Collisions: {quality.colliding_before:.1%} of items before, {quality.colliding_after:.1%} after",
        pad=_ABOVE_LEGEND,
    )

    for axis in (errors, prefixes, changes):
        axis.set(xlabel="level", xticks=levels)
    for axis in (usage, errors, prefixes, changes):
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
        remove_box(axis)
    if kept is not None:
        for axis, measure in zip(last, next(iter(kept.values())), strict=True):
            _kept_bars(axis, measure, {label: values[measure] for label, values in kept.items()})
    figure.suptitle(f"{quality.items:,} items, {'×'.join(str(level.codes) for level in quality.levels)} codes")
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:  # an unknown suffix
        raise ConfigError(f"Cannot write a figure to {path}: {str(error).splitlines()[0]}.") from error


def _bars(axis: "Axes", levels: list[int], series: dict[str, list[float | None]]) -> None:
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        heights = [0.0 if value is None else value for value in values]
        positions = np.array(levels) - 0.4 + width * (number + 0.5)
        bars = axis.bar(positions, heights, width * 0.92, color=COLOURS[number], label=label)
        bar_labels = ["" if value is None else _percent(value) for value in values]
        axis.bar_label(bars, bar_labels, fontsize=8 if len(levels) * len(series) <= 10 else 6.5, padding=1)
    if len(series) > 1:  # above the bars: among many levels there is no free place
        add_legend(axis, loc="lower center", bbox_to_anchor=(0.5, 0.98), ncols=2, columnspacing=1.2, handlelength=1.2)


def _kept_bars(axis: "Axes", measure: str, values: Mapping[str, float]) -> None:
    """What ranks validation queries, from the whole embedding down to the codes alone."""
    labels = list(values)
    bars = axis.barh(labels, list(values.values()), 0.68, color=COLOURS[0])
    axis.bar_label(bars, [f"{value:.1f}" for value in values.values()], fontsize=9, padding=3)
    axis.invert_yaxis()
    axis.set(xlim=(0, 1.12 * max(*values.values(), 1.0)), xlabel="% on validation queries, without any model")
    axis.tick_params(axis="y", length=0)
    axis.set_title(f"What is kept: {measure}")
    remove_box(axis)


def _percent(value: float) -> str:
    digits = 0 if value >= 0.1 or value == 0 else 1 if value >= 0.001 else 2
    return f"{value:.{digits}%}"
