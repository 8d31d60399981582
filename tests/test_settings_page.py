"""docs/settings.md has every setting of the code, its default and what it does."""

import runpy
from pathlib import Path

from restd.config import parse_settings
from restd.train import TrainConfig

ROOT = Path(__file__).parent.parent
MADE = runpy.run_path(str(ROOT / "docs" / "make_settings.py"))


def test_the_page_is_made_from_the_code():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert MADE["made"]() == page, "run python docs/make_settings.py"


def test_defaults_are_written_as_set_reads_them():
    fields = {field.name: field for field in MADE["fields"](TrainConfig)}
    for name in ("updates", "lr", "keep", "compile", "pseudo_kinds"):
        default = MADE["shown"](fields[name]).strip("`")
        value = parse_settings([f"train.{name}={default}"])["train"][name]
        assert (tuple(value) if isinstance(value, list) else value) == fields[name].default
