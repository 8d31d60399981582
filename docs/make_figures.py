"""Draw `docs/distillation.svg`: an item's residual trajectory, and the cells that a decoder is taught in.

    python docs/make_figures.py [FOLDER]

The same file comes out every time: no date, no random ids. Colours are Okabe and Ito's, and each comes with a shape or
a number, so that the figure also reads in grey. The bars are the teachers of the trajectory that is drawn.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

BLUE, SKY, ORANGE, YELLOW, VERMILION = "#0072B2", "#56B4E9", "#E69F00", "#F0E442", "#D55E00"
OFFSETS = (BLUE, SKY, ORANGE, YELLOW)
INK = ("white", "black", "black", "black")
DISCOUNT = 0.7
STORED = {"arrowstyle": "-|>", "color": BLUE, "lw": 2.0}
STYLE = {"svg.hashsalt": "restd", "svg.fonttype": "path", "font.size": 9}

ITEM = np.array([3.6, 2.2])
BOOKS = (  # the first of each level is the stored one
    np.array([[2.2, 0.5], [1.2, 2.0], [-0.3, 0.9], [1.5, -0.75]]),
    np.array([[0.1, 1.25], [0.95, 0.15], [0.75, -0.7], [-0.75, 0.5]]),
    np.array([[0.55, 0.55], [0.6, -0.3], [-0.5, 0.35], [0.05, -0.6]]),
    np.array([[0.4, 0.15], [0.3, -0.35], [-0.25, 0.35], [-0.1, -0.4]]),
)
FLOOR = 0.1


def residuals() -> list[np.ndarray]:
    """r_0 .. r_3 along the stored SID."""
    steps = [ITEM]
    for book in BOOKS[:-1]:
        steps.append(steps[-1] - book[0])
    return steps


def teacher(residual: np.ndarray, book: np.ndarray) -> np.ndarray:
    """Softmax of negative squared distances, mixed with the stored code (which leads already: only the floor acts)."""
    tau = np.square(book).sum(axis=1).mean()
    scores = np.exp(-np.square(residual - book).sum(axis=1) / tau)
    return (1 - FLOOR) * scores / scores.sum() + FLOOR * np.eye(len(book))[0]


def draw_trajectory(axis: Axes) -> None:
    """The plane: stored codewords head to tail, the others of each level, and what is left over to the item."""
    for book, residual in zip(BOOKS, residuals(), strict=True):
        start = ITEM - residual
        for number, word in enumerate(book):
            look = {"arrowstyle": "->", "color": "#9A9A9A", "lw": 0.8} if number else STORED
            ends = {"shrinkA": 0, "shrinkB": 0}
            axis.annotate("", tuple(start + word), tuple(start), arrowprops=look | ends, zorder=1 if number else 3)
        axis.plot(*zip(start, ITEM, strict=True), color=VERMILION, lw=1.1, ls=(0, (4, 2)), zorder=2)
        axis.scatter(*start, s=16, color="black", zorder=5)
    for level, place in enumerate([(1.3, 0.1), (2.0, 0.94), (2.36, 2.2), (2.98, 2.62)], start=1):
        axis.text(*place, f"$c_{{{level},y_{level}}}$", color=BLUE, ha="center", va="center")
    for level, place in enumerate([(1.05, 0.642), (2.72, 1.131), (2.95, 1.975), (3.27, 2.244)]):
        behind = {"fc": "white", "ec": "none", "pad": 0.6}
        axis.text(*place, f"$r_{level}$", color=VERMILION, ha="center", va="center", bbox=behind, zorder=4)
    axis.scatter(*ITEM, s=150, marker="*", color=VERMILION, ec="black", lw=0.6, zorder=6)
    axis.text(ITEM[0] + 0.13, ITEM[1] + 0.02, "item $x$", ha="left", va="center")
    axis.set_xlim(-0.75, 4.35)
    axis.set_ylim(-1.6, 2.8)
    axis.set_aspect("equal", anchor="NW")
    axis.set_axis_off()
    axis.set_title("a  The trajectory along the stored SID", loc="left", fontsize=10, fontweight="bold")
    words = {
        "thick: stored codewords, head to tail": BLUE,
        "thin: the other codewords of each level": "#555555",
        "dashed: the residual that each level quantises": VERMILION,
    }
    for line, (text, colour) in enumerate(words.items()):
        axis.text(-0.7, -1.0 - 0.23 * line, text, color=colour, va="center", fontsize=8.5)


def draw_cells(axis: Axes) -> None:
    """Teachers on top, one per level; below them the states that learn from each, with the weight of their cells."""
    levels = len(BOOKS)
    for level, (book, residual) in enumerate(zip(BOOKS, residuals(), strict=True)):
        for number, share in enumerate(teacher(residual, book)):
            left, colour = level + 0.14 + 0.19 * number, "#BDBDBD" if number else BLUE
            axis.add_patch(Rectangle((left, 0.22), 0.15, share, fc=colour, ec="black", lw=0.6))
        axis.plot([level + 0.08, level + 0.92], [0.22, 0.22], color="black", lw=0.8)
        axis.text(level + 0.5, 0.04, f"$\\widetilde{{Q}}_{level + 1}$", ha="center", va="center")
        axis.text(level + 0.5, 1.18, f"level {level + 1}", ha="center", va="center", fontsize=8.5)
    for state in range(levels):
        axis.text(-0.1, -state - 0.6, f"state $h_{state + 1}$", ha="right", va="center")
        for target in range(state, levels):
            offset = target - state
            cell = Rectangle((target + 0.04, -state - 0.98), 0.92, 0.8, fc=OFFSETS[offset], ec="black", lw=0.8)
            axis.add_patch(cell)
            weight = "1" if not offset else f"{DISCOUNT**offset:.2g}"
            axis.text(
                target + 0.5,
                -state - 0.58,
                f"$\\rho^{offset}$ = {weight}\nhead $g_{offset}$",
                ha="center",
                va="center",
                color=INK[offset],
                fontsize=8.5,
            )
    axis.set_xlim(-0.95, levels + 0.05)
    axis.set_ylim(-levels - 0.05, 1.35)
    axis.set_axis_off()
    axis.set_title("b  What each state learns: a cell for each level", loc="left", fontsize=10, fontweight="bold")
    notes = "one teacher per column, for all its states\none head per offset $s$\nweight $\\rho^s$, here ρ = 0.7"
    axis.text(0.06, -3.2, notes, va="top", fontsize=8.5, linespacing=1.5)


def draw() -> Figure:
    """Both panels."""
    figure = Figure(figsize=(9.6, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.1))
    draw_trajectory(left)
    draw_cells(right)
    return figure


def main(folder: Path) -> None:
    """Write the figure."""
    with mpl.rc_context(STYLE):
        draw().savefig(folder / "distillation.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
