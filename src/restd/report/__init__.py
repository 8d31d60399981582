"""Tables and figures of what was measured."""

from restd.report.index_figure import draw_index

__all__ = ["draw_index"]
