"""What the documents show runs."""

import re
import sys
from pathlib import Path

import pytest

from restd.registry import Registry

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    if page.name != "serving.md"  # its examples need a service: test_serving_docs.py
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_of_the_documents_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    added, add = [], Registry.add

    def record(registry, entry):
        if sys._getframe(1).f_code.co_filename == "document":  # not what an import registers
            added.append((registry, entry.name))
        return add(registry, entry)

    monkeypatch.setattr(Registry, "add", record)
    try:
        exec(compile(block, "document", "exec"), {})
    finally:  # other tests list the registries
        for registry, name in added:
            registry.remove(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
