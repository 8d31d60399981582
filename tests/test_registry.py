"""One kind of registry: complete or an error, whoever reads it first."""

import sys
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from restd import registry as registries
from restd.cli.listing import REGISTRIES, registry
from restd.errors import ConfigError
from restd.registry import Registry


@dataclass(frozen=True)
class Colour:
    name: str
    summary: str = "A colour."


@pytest.fixture
def colours(tmp_path, monkeypatch):
    """A registry whose home is slow to import, and reads the registry itself before it adds to it."""
    made = Registry("colour", group="colours", homes=("slow_colours",))
    code = """import time
from tests import test_registry as tests
time.sleep(0.2)
assert "red" not in tests.NOW
tests.NOW.add(tests.Colour("red"))
"""
    (tmp_path / "slow_colours.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "NOW", made, raising=False)
    yield made
    sys.modules.pop("slow_colours", None)


def test_threads_that_read_at_once_see_all_entries(colours):
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(list(colours))) for _ in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert seen == [["red"]] * 4


def test_an_entry_point_that_fails_is_told_every_time(colours, monkeypatch):
    """The first error must not leave a registry behind that lacks entries without a word."""

    def broken():
        raise ImportError("no module named paint")

    point = SimpleNamespace(name="paint", value="paint:add", load=broken)
    monkeypatch.setattr(registries, "entry_points", lambda group: [point])
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"'paint' \(paint:add\) of group restd\.colours cannot be loaded"):
            list(colours)
    monkeypatch.setattr(registries, "entry_points", lambda group: [])
    assert list(colours) == ["red"]


@pytest.mark.parametrize("name", list(REGISTRIES))
def test_every_registry_is_open_to_other_packages_and_has_one_error(name, monkeypatch):
    ours = registry(name)
    assert ours.group == name
    assert all(summary.endswith(".") for summary in ours.describe().values())
    with pytest.raises(ConfigError, match=rf"Unknown {ours.kind} \'no-such-name\'\. Known: {next(iter(ours))}"):
        ours["no-such-name"]
    groups = []
    monkeypatch.setattr(registries, "entry_points", lambda group: groups.append(group) or [])
    monkeypatch.setattr(ours, "_complete", False)
    assert len(ours) > 0
    assert groups == [f"restd.{name}"]
