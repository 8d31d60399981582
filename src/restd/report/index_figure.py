"""One picture of an index: how codes are used, what each level adds, and what collision repair changed."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from restd.errors import ConfigError, MissingExtraError
from restd.index import IndexQuality, SidIndex

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours: told apart by the colour-blind, and by their lightness in print
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


def draw_index(index: SidIndex, quality: IndexQuality, path: Path) -> None:
    """Write the picture as PNG (or whatever the suffix says)."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import PercentFormatter
    except ModuleNotFoundError as error:
        raise MissingExtraError("matplotlib", extra="report", purpose="Drawing a figure") from error
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    usage, errors, prefixes, changes = figure.subplots(2, 2).ravel()
    levels = [level.level for level in quality.levels]

    for number, level in enumerate(quality.levels):
        counts = np.sort(np.bincount(index.sids[:, number], minlength=level.codes))[::-1]
        usage.plot(
            np.linspace(0, 100, len(counts)),
            counts / len(index),
            color=_COLOURS[number % len(_COLOURS)],
            label=f"level {level.level}: perplexity {level.perplexity:.0f} of {level.codes}",
        )
    usage.set(xlabel="codes, most used first (% of the codebook)", ylabel="items on the code", ylim=(0, None))
    usage.set_title("Use of codes")
    usage.legend(frameon=False, fontsize=9)

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
    prefixes.set(ylabel="share", ylim=(0, 1))
    prefixes.set_title("What a prefix says")

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
        f"Collisions: {quality.colliding_before:.1%} of items before, {quality.colliding_after:.1%} after"
    )

    for axis in (errors, prefixes, changes):
        axis.set(xlabel="level", xticks=levels)
    for axis in (usage, errors, prefixes, changes):
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{quality.items:,} items, {'×'.join(str(level.codes) for level in quality.levels)} codes")
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:  # an unknown suffix
        raise ConfigError(f"{path} cannot be drawn: {str(error).splitlines()[0]}.") from error


def _bars(axis: "Axes", levels: list[int], series: dict[str, list[float | None]]) -> None:
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        heights = [0.0 if value is None else value for value in values]
        places = np.array(levels) - 0.4 + width * (number + 0.5)
        bars = axis.bar(places, heights, width * 0.92, color=_COLOURS[number], label=label)
        said = ["" if value is None else _percent(value) for value in values]
        axis.bar_label(bars, said, fontsize=8, padding=1)
    if len(series) > 1:
        axis.legend(frameon=False, fontsize=9)


def _percent(value: float) -> str:
    digits = 0 if value >= 0.1 or value == 0 else 1 if value >= 0.001 else 2
    return f"{value:.{digits}%}"
