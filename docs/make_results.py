"""Fill the tables and figures of docs/results.md from results/*.json; run it as python docs/make_results.py.

A block starts with `<!-- table: FILE NAME -->`, `<!-- says: FILE -->` or `<!-- figure: FILE NAME -->` and ends with
`<!-- end -->`; what stands between is made from results/FILE.json and nothing else. `<!-- made: NAME -->` is a table
over many files, which search_results.py makes. A test makes all of it again and compares.
"""

import json
import re
import runpy
from pathlib import Path
from typing import Any

from restd.analyses import AnalysisResult, comparison_result
from restd.report import save_figure, to_markdown

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
PAGE = HERE / "results.md"
PICTURES = HERE / "results"
MADE: dict[str, Any] = runpy.run_path(str(HERE / "search_results.py"))
BLOCK = re.compile(r"<!-- (table|figure|says|made): (\S+)(?: (\S+))? -->\n.*?<!-- end -->", re.DOTALL)


def finding(name: str) -> AnalysisResult:
    """A result: a comparison as `restd compare` wrote it, or a finding as `restd analyze` did."""
    held = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return comparison_result(held, name=name) if held.get("kind") == "comparison" else AnalysisResult.from_dict(held)


def filled(block: re.Match[str]) -> str:
    """A block with what belongs into it."""
    kind, name, part = block.groups()
    if kind == "made":
        inside = MADE["BLOCKS"][name]()
    elif kind == "says":
        inside = finding(name).says
    elif kind == "table":
        inside = to_markdown(next(table for table in finding(name).tables if table.name == part))
    else:
        figure = next(figure for figure in finding(name).figures if figure.name == part)
        inside = f"![{figure.title}](results/{name}-{part}.svg)"
    head = f"<!-- {kind}: {name} {part} -->" if part else f"<!-- {kind}: {name} -->"
    return f"{head}\n{inside}\n<!-- end -->"


def rebuilt(text: str) -> str:
    """The page with every block made anew."""
    return BLOCK.sub(filled, text)


def figures(text: str) -> list[tuple[str, str]]:
    """Results and names of the page's figures."""
    return [(found[2], found[3]) for found in BLOCK.finditer(text) if found[1] == "figure"]


def main() -> None:
    """Write page and pictures."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(rebuilt(text), encoding="utf-8")
    for name, part in figures(text):
        figure = next(figure for figure in finding(name).figures if figure.name == part)
        for path in save_figure(figure, PICTURES):
            path.rename(PICTURES / f"{name}-{path.name}") if path.suffix == ".svg" else path.unlink()


if __name__ == "__main__":
    main()
