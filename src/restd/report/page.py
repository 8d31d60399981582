"""The report of a study: one self-contained HTML page, the same as Markdown, and files of all tables and figures."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from restd.analyses import AnalysisResult, study_result
from restd.artifacts import write_atomically
from restd.errors import MissingExtraError
from restd.experiments import comparison_identity, read_comparison
from restd.experiments.summary import COMPARISON_FILE
from restd.report.figures import save_figure, to_svg
from restd.report.tables import to_csv, to_latex, to_markdown

ANALYSES = "analyses"
PAGE, TEXT = "report.html", "report.md"
_TEXT_TABLES = ("cases", "what")
"""Tables with text instead of numbers, whose cells are left-aligned."""
_ORDER = (
    "systems",
    "comparison",
    "parts",
    "cold-start",
    "slices",
    "learning",
    "probes",
    "disagreement",
    "beam",
    "cases",
    "conflicts",
    "variation",
    "correction",
    "sensitivity",
)


def write_result(result: AnalysisResult, folder: Path) -> list[Path]:
    """Write a result as JSON, its tables as Markdown, CSV and LaTeX, and its figures as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for figure in result.figures:
        written += save_figure(figure, folder)
    for table in result.tables:
        for suffix, render in (("md", to_markdown), ("csv", to_csv), ("tex", to_latex)):
            path = folder / f"{result.name}-{table.name}.{suffix}"
            text = render(table)
            write_atomically(path, [(text if text.endswith("\n") else text + "\n").encode()])
            written.append(path)
    # The JSON file comes last: the next report must not find a result whose figures failed.
    document = json.dumps(result.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    written.append(folder / f"{result.name}.json")
    write_atomically(written[-1], [document.encode() + b"\n"])
    return written


def read_results(study: Path) -> list[AnalysisResult]:
    """Read the comparison of a study and the analyses of this comparison, in the order of the page."""
    comparison = read_comparison(study)
    identity = comparison_identity(comparison)
    results = [study_result(comparison), *(entry for entry in _read_analyses(study) if entry.of == identity)]
    return sorted(results, key=lambda result: _ORDER.index(result.name) if result.name in _ORDER else len(_ORDER))


def _read_analyses(study: Path) -> list[AnalysisResult]:
    paths = sorted((study / ANALYSES).glob("*.json"))
    return [AnalysisResult.from_dict(json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def read_run_results(run: Path) -> list[AnalysisResult]:
    """Read the analyses of a single run, which belong to no comparison; none where the folder is a study."""
    return [] if (run / COMPARISON_FILE).is_file() else [entry for entry in _read_analyses(run) if not entry.of]


def stale_analyses(study: Path) -> list[str]:
    """Return the names of analyses of another comparison than the current one: other queries, rules or seeds."""
    identity = comparison_identity(read_comparison(study))
    return [entry.name for entry in _read_analyses(study) if entry.of != identity]


def write_report(study: Path, out: Path, *, title: str = "") -> list[Path]:
    """Write `report.html` (self-contained), `report.md`, and every table and figure under `parts`."""
    results, comparison = read_results(study), read_comparison(study)
    out.mkdir(parents=True, exist_ok=True)
    title = title or f"ResTD: {study.resolve().name}"
    written = [out / PAGE, out / TEXT]
    write_atomically(written[0], [make_page(results, comparison, title=title).encode()])
    write_atomically(written[1], [make_text(results, comparison, title=title).encode()])
    for result in results:
        written += write_result(result, out / "parts")
    return written


def write_page(results: Sequence[AnalysisResult], out: Path, *, title: str) -> Path:
    """Write a page of results that belong to no study, with their tables and figures under `parts`."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / PAGE, [make_page(results, {}, title=title).encode()])
    for result in results:
        write_result(result, out / "parts")
    return out / PAGE


def make_page(results: Sequence[AnalysisResult], comparison: Mapping[str, Any], *, title: str) -> str:
    """Return the page as HTML with embedded figures; it loads nothing from elsewhere.

    Args:
        results: what it shows, in this order.
        comparison: card and settings of the study; empty where the results belong to none.
        title: of the page.
    """
    try:
        from jinja2 import Environment, PackageLoader
    except ModuleNotFoundError as error:
        raise MissingExtraError("jinja2", extra="report", purpose="A report") from error
    template = Environment(loader=PackageLoader("restd", "report"), autoescape=True).get_template("page.html.j2")
    images = {
        f"{result.name}/{figure.name}": base64.b64encode(to_svg(figure)).decode()
        for result in results
        for figure in result.figures
    }
    return template.render(
        title=title,
        lead=results[0].says,
        results=results,
        images=images,
        text_tables=_TEXT_TABLES,
        card=list(card_lines(comparison.get("card", {}))),
        settings=json.dumps(comparison["settings"], indent=2, ensure_ascii=False) if comparison else "",
    )


def make_text(results: Sequence[AnalysisResult], comparison: Mapping[str, Any], *, title: str) -> str:
    """Return the report as Markdown with links to the figures."""
    lines = [f"# {title}", ""]
    for result in results:
        lines += [f"## {result.title}", "", result.says, ""]
        for table in result.tables:
            lines += [f"**{table.title}**", "", to_markdown(table), ""]
        for figure in result.figures:
            lines += [f"![{figure.title}](parts/{figure.name}.png)", ""]
    lines += ["## Protocol card", "", *(f"* {name}: {value}" for name, value in card_lines(comparison["card"]))]
    return "\n".join(lines) + "\n"


def card_lines(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the entries of a protocol card as pairs of name and text."""
    for name, value in card.items():
        if isinstance(value, Mapping):
            text = ", ".join(f"{key} {entry}" for key, entry in value.items())
        elif isinstance(value, (list, tuple)):
            text = ", ".join(map(str, value))
        else:
            text = value[:16] if name in ("judgments", "index") else str(value)
        yield name, text
