"""The explanations of the mutation check are about code that is there."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
SURVIVORS = tomllib.loads((ROOT / "tools" / "survivors.toml").read_text(encoding="utf-8"))["survivor"]


def in_one_line(text):
    return " ".join(text.split())


def test_every_explained_line_is_in_its_module():
    stale = [
        f"{entry['module']}: {entry['line']}"
        for entry in SURVIVORS
        if in_one_line(entry["line"]) not in in_one_line((ROOT / entry["module"]).read_text(encoding="utf-8"))
    ]
    assert not stale, "remove these from tools/survivors.toml, or write them as the code is now"


def test_no_change_is_explained_twice():
    changes = [
        (entry["module"], entry["line"], becomes)
        for entry in SURVIVORS
        for becomes in entry.get("becomes", ["anything"])
    ]
    assert len(set(changes)) == len(changes)
