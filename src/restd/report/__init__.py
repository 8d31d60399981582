"""Results of analyses as tables, figures and pages."""

from restd.report.figures import draw, save_figure, to_svg
from restd.report.index_figure import draw_index
from restd.report.page import ANALYSES, make_page, make_text, read_results, stale_analyses, write_report, write_result
from restd.report.tables import to_csv, to_latex, to_markdown

__all__ = [
    "ANALYSES",
    "draw",
    "draw_index",
    "make_page",
    "make_text",
    "read_results",
    "save_figure",
    "stale_analyses",
    "to_csv",
    "to_latex",
    "to_markdown",
    "to_svg",
    "write_report",
    "write_result",
]
