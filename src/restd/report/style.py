"""Style of all figures: readable in print and with colour vision deficiency."""

from typing import TYPE_CHECKING, Any

from restd.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The Okabe-Ito palette: distinguishable with colour vision deficiency and, by lightness, in print
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")


def new_figure(width: float | int, height: float | int) -> "Figure":
    """Return an empty figure. Without matplotlib, the error names the extra to install."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError("matplotlib", extra="report", purpose="Drawing a figure") from error
    return Figure(figsize=(width, height), layout="constrained")


def remove_box(axis: "Axes") -> None:
    """Hide the upper and the right border of the axes."""
    axis.spines[["top", "right"]].set_visible(False)


def add_legend(axis: "Axes", **options: Any) -> None:
    """Add a legend without a frame."""
    axis.legend(frameon=False, fontsize=9, **options)
