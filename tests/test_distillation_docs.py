"""The table of docs/distillation.md is true, its figure is there, and the example runs."""

import ast
import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import restd.distill

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "distillation.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "own_training_loop.py"
ROWS = re.findall(r"^\| ([^|`]+) \| `(restd\.[\w.]+)` \| `(tests/\w+\.py)::(\w+)` \|$", PAGE, re.MULTILINE)
LABELS = {label for row in ROWS for label in row[0].split(", ")}


def resolve(dotted):
    """Import the longest prefix that is a module, then take attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


def test_every_row_of_the_table_was_read():
    table = PAGE.partition("| equation | function | test |\n|---|---|---|\n")[2]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert len(lines) == len(ROWS) > 20


@pytest.mark.parametrize("dotted", sorted({row[1] for row in ROWS}))
def test_functions_of_the_table_exist(dotted):
    assert callable(resolve(dotted))


@pytest.mark.parametrize(("file", "name"), sorted({row[2:] for row in ROWS}))
def test_tests_of_the_table_exist(file, name):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def docstrings():
    for file in sorted(Path(restd.distill.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield file.name, ast.get_docstring(node) or ""


def test_every_equation_of_a_docstring_is_in_the_table():
    named = {(label, file) for file, text in docstrings() for label in re.findall(r"\beqs?\.\s+([\w-]+)", text)}
    assert len(named) > 15
    assert {(label, file) for label, file in named if label not in LABELS} == set()


def test_the_figure_is_there_and_is_drawn_alike_every_time(tmp_path):
    assert "](distillation.svg)" in PAGE
    assert (ROOT / "docs" / "distillation.svg").read_text(encoding="utf-8").startswith("<?xml")
    pytest.importorskip("matplotlib")
    draw = runpy.run_path(str(ROOT / "docs" / "make_figures.py"))["main"]
    drawn = []
    for _ in range(2):
        draw(tmp_path)
        drawn.append((tmp_path / "distillation.svg").read_bytes())
    assert drawn[0] == drawn[1]


def test_the_example_adds_three_lines_and_learns():
    assert re.findall(r"# ResTD, line (\d)$", EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE) == ["1", "2", "3"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps", "20"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    for name in ("loss", "KL"):
        values = [float(value) for value in re.findall(rf"{name} ([\d.]+)", done.stdout)]
        assert len(values) >= 10
        assert values[-1] < 0.8 * values[0]
    assert "; 0 extra ones at inference" in done.stdout
    assert " finds " in done.stdout
