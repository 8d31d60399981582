"""docs/systems.md has every system of the registry, with its settings."""

import re
import runpy
from pathlib import Path

from restd.systems import SYSTEMS

ROOT = Path(__file__).parent.parent
MADE = runpy.run_path(str(ROOT / "docs" / "make_systems.py"))


def test_the_page_is_made_from_the_registry():
    page = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
    assert MADE["made"]() == page, "run python docs/make_systems.py"
    assert re.findall(r"^### `([\w-]+)`: ", page, re.MULTILINE) == list(SYSTEMS)


def test_every_system_has_a_remark_or_is_plain():
    without = {name for name in SYSTEMS if not MADE["remarks"](SYSTEMS[name])}
    assert without <= {"bm25", "dense"}


def test_settings_are_written_as_set_takes_them():
    from restd.config import parse_settings

    for spec in SYSTEMS.entries():
        text = MADE["flat"](spec.index)
        assert parse_settings(setting.strip("`") for setting in text.split(", ") if setting) == spec.index
