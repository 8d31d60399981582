"""How our figures look: readable in print, told apart by the colour-blind."""

from typing import TYPE_CHECKING, Any

from restd.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart by the colour-blind, and by their lightness in print
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")


def new_figure(width: float | int, height: float | int) -> "Figure":
    """An empty figure; an error that names the extra where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError("matplotlib", extra="report", purpose="Drawing a figure") from error
    return Figure(figsize=(width, height), layout="constrained")


def bare(axis: "Axes") -> None:
    """No box around the data."""
    axis.spines[["top", "right"]].set_visible(False)


def legend(axis: "Axes", **options: Any) -> None:
    """A legend without a frame."""
    axis.legend(frameon=False, fontsize=9, **options)
