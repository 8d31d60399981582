"""One page that holds a whole study and needs nothing else; and every table and figure as a file of its own."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from restd.data.trec import write_atomically
from restd.errors import MissingExtraError
from restd.report.figures import save_figure, to_svg
from restd.report.tables import to_csv, to_latex, to_markdown
from restd.study import Finding, comparison_finding, comparison_identity, read_comparison

ANALYSES = "analyses"
PAGE, TEXT = "report.html", "report.md"
_WORDY = ("cases",)
"""Tables of words, which stand at the left."""
_ORDER = (
    "comparison",
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


def write_finding(finding: Finding, folder: Path) -> list[Path]:
    """Write a finding as JSON, its tables as Markdown, CSV and LaTeX, its figures as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for figure in finding.figures:
        written += save_figure(figure, folder)
    for table in finding.tables:
        for suffix, render in (("md", to_markdown), ("csv", to_csv), ("tex", to_latex)):
            path = folder / f"{finding.name}-{table.name}.{suffix}"
            text = render(table)
            write_atomically(path, [(text if text.endswith("\n") else text + "\n").encode()])
            written.append(path)
    # last: what cannot be drawn must not be found by the next report
    held = json.dumps(finding.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    written.append(folder / f"{finding.name}.json")
    write_atomically(written[-1], [held.encode() + b"\n"])
    return written


def read_findings(study: Path) -> list[Finding]:
    """The comparison of a study, and the analyses that were made of it, in the order of the page."""
    held = read_comparison(study)
    found = [comparison_finding(held), *(entry for entry in _analyses(study) if entry.of == comparison_identity(held))]
    return sorted(found, key=lambda finding: _ORDER.index(finding.name) if finding.name in _ORDER else len(_ORDER))


def _analyses(study: Path) -> list[Finding]:
    paths = sorted((study / ANALYSES).glob("*.json"))
    return [Finding.from_dict(json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def stale_analyses(study: Path) -> list[str]:
    """Analyses that were made of another comparison than the one that is there now: other queries, rules or seeds."""
    wanted = comparison_identity(read_comparison(study))
    return [entry.name for entry in _analyses(study) if entry.of != wanted]


def write_report(study: Path, out: Path, *, title: str = "") -> list[Path]:
    """Write `report.html` (self-contained), `report.md`, and every table and figure beside them."""
    findings, held = read_findings(study), read_comparison(study)
    out.mkdir(parents=True, exist_ok=True)
    title = title or f"ResTD: {study.resolve().name}"
    written = [out / PAGE, out / TEXT]
    write_atomically(written[0], [make_page(findings, held, title=title).encode()])
    write_atomically(written[1], [make_text(findings, held, title=title).encode()])
    for finding in findings:
        written += write_finding(finding, out / "parts")
    return written


def make_page(findings: Sequence[Finding], held: Mapping[str, Any], *, title: str) -> str:
    """The page as HTML; pictures are inside it, and it asks nobody for anything."""
    try:
        from jinja2 import Environment, PackageLoader
    except ModuleNotFoundError as error:
        raise MissingExtraError("jinja2", extra="report", purpose="A report") from error
    template = Environment(loader=PackageLoader("restd", "report"), autoescape=True).get_template("page.html.j2")
    drawn = {
        f"{finding.name}/{figure.name}": base64.b64encode(to_svg(figure)).decode()
        for finding in findings
        for figure in finding.figures
    }
    return template.render(
        title=title,
        lead=findings[0].says,
        findings=findings,
        drawn=drawn,
        wordy=_WORDY,
        card=list(card_lines(held["card"])),
        settings=json.dumps(held["settings"], indent=2, ensure_ascii=False),
    )


def make_text(findings: Sequence[Finding], held: Mapping[str, Any], *, title: str) -> str:
    """The same as Markdown, figures by reference."""
    lines = [f"# {title}", ""]
    for finding in findings:
        lines += [f"## {finding.title}", "", finding.says, ""]
        for table in finding.tables:
            lines += [f"**{table.title}**", "", to_markdown(table), ""]
        for figure in finding.figures:
            lines += [f"![{figure.title}](parts/{figure.name}.png)", ""]
    lines += ["## Protocol card", "", *(f"* {name}: {value}" for name, value in card_lines(held["card"]))]
    return "\n".join(lines) + "\n"


def card_lines(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A protocol card as names and sentences."""
    for name, value in card.items():
        if isinstance(value, Mapping):
            said = ", ".join(f"{key} {held}" for key, held in value.items())
        elif isinstance(value, (list, tuple)):
            said = ", ".join(map(str, value))
        else:
            said = value[:16] if name in ("judgments", "index") else str(value)
        yield name, said
