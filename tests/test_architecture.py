"""Data flows one way: a room imports only from rooms before it, and loads only those, however long the chain."""

import ast
from pathlib import Path

import pytest

import restd
from tests.imports import Sources, room_of

FOUNDATIONS = ("_version", "_arrow", "_splitmix", "errors", "config", "progress", "memory", "timing", "registry")
FOUNDATIONS += ("artifacts",)
ROOMS = ("codes", "data", "shop", "encode", "quantize", "index", "distill", "models", "train", "snapshot", "rankers")
ROOMS += ("search", "client", "evaluate", "systems", "experiments", "analyses", "report", "serve", "bench", "cli")
PLACE = dict.fromkeys(FOUNDATIONS, 0) | {room: number for number, room in enumerate(ROOMS, start=1)}
BLIND = {
    "errors": {"errors"},
    "registry": {"registry"},
    "_splitmix": {"_splitmix"},
    "codes": {"codes", "registry"},
    "distill": {"distill", "codes", "registry", "_splitmix"},
}
"""Rooms that see less than all rooms before them: all that they see, beside what the package opens with."""
DOORS = ("restd", "restd.__main__")
"""They only open rooms: the names they hand on are imported when first used."""
OPENED = ("_version", "errors")
"""Loaded with the package itself."""
ROOT = Path(restd.__file__).parent


def may_see(room, other):
    if room in BLIND:
        return other in BLIND[room] or other in OPENED
    return PLACE[other] <= PLACE[room]


def direct_faults(sources):
    """Imports, wherever they are written, of a room that the importing room may not see."""
    for module, path in sorted(sources.paths.items()):
        if module in DOORS:
            continue
        for target in sources.anywhere(module):
            if (other := room_of(target)) and not may_see(room_of(module), other):
                yield f"{path.name} of {room_of(module)} imports {target}"


def chain_faults(sources):
    """Chains of imports at module level that load a room which the first module's room may not see."""
    for module in sorted(sources.paths):
        if module in DOORS:
            continue
        for target, chain in sources.loads(module).items():
            if (other := room_of(target)) and not may_see(room_of(module), other):
                yield f"{module} loads {' > '.join(chain)}"


def test_every_room_has_its_place():
    assert {room_of(module) for module in Sources.under(ROOT).paths} - {None, "__main__"} <= set(PLACE)


def test_no_room_imports_what_it_may_not_see():
    sources = Sources.under(ROOT)
    assert len(sources.paths) > 100
    assert list(direct_faults(sources)) == []


def test_no_room_loads_what_it_may_not_see_through_others():
    assert list(chain_faults(Sources.under(ROOT))) == []


def planted(root, files):
    """A package of these files; every room has an `__init__`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for folder in {root, path.parent}:
            (folder / "__init__.py").touch()
    return Sources.under(root)


def test_a_planted_back_edge_is_seen_even_inside_a_function(tmp_path):
    sources = planted(
        tmp_path, {"data/bad.py": "def f():\n    from restd.index import SidIndex\n", "index/table.py": ""}
    )
    assert list(direct_faults(sources)) == ["bad.py of data imports restd.index"]
    assert list(chain_faults(sources)) == [], "nothing is loaded before f is called"


def test_a_planted_chain_is_seen_where_every_single_import_is_allowed(tmp_path):
    sources = planted(
        tmp_path,
        {
            "registry.py": "from restd.errors import E",
            "errors.py": "E = 1",
            "distill/heads.py": "from restd.registry import E",
            "artifacts/store.py": "",
        },
    )
    assert list(chain_faults(sources)) == []
    (tmp_path / "registry.py").write_text("import restd.artifacts.store", encoding="utf-8")
    assert list(chain_faults(Sources.under(tmp_path))) == [
        "restd.distill.heads loads restd.distill.heads > restd.registry > restd.artifacts",
        "restd.distill.heads loads restd.distill.heads > restd.registry > restd.artifacts.store",
        "restd.registry loads restd.registry > restd.artifacts",
        "restd.registry loads restd.registry > restd.artifacts.store",
    ]


def test_the_packages_above_a_module_are_part_of_the_chain(tmp_path):
    """As it once was: a trie in the index room made the distillation load encoders and tables."""
    sources = planted(
        tmp_path,
        {
            "distill/beyond.py": "from restd.codes.trie import Trie",
            "codes/trie.py": "Trie = 1",
            "codes/__init__.py": "from restd.codes.build import build",
            "codes/build.py": "from restd.encode import vectors",
            "encode/__init__.py": "from restd.data import tables\nvectors = 1",
            "data/tables.py": "",
        },
    )
    loaded = [fault for fault in chain_faults(sources) if fault.startswith("restd.distill")]
    assert loaded[-1] == (
        "restd.distill.beyond loads restd.distill.beyond > restd.codes > restd.codes.build > restd.encode > "
        "restd.data.tables"
    )


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("import restd.models.t5", True),
        ("from restd import models", True),
        ("from restd.models import t5", True),
        ("try:\n    import restd.models\nexcept ImportError:\n    pass", True),
        ("class A:\n    from restd.models import t5", True),
        ("if TYPE_CHECKING:\n    import restd.models", False),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import restd.models", True),
        ("def f():\n    import restd.models", False),
        ("from restd.errors import E", False),
    ],
)
def test_what_runs_at_import_is_told_from_what_does_not(tmp_path, text, faults):
    sources = planted(tmp_path, {"codes/x.py": text, "models/t5.py": "", "errors.py": "E = 1"})
    assert bool(list(chain_faults(sources))) == faults


def test_names_that_a_package_imports_when_used_are_followed(tmp_path):
    lazy = '_HOMES = {"Index": "restd.index.sid_index"}'
    files = {"codes/x.py": "from restd.index import Index", "index/__init__.py": lazy, "index/sid_index.py": ""}
    sources = planted(tmp_path, files)
    assert any(fault.endswith("restd.index.sid_index") for fault in chain_faults(sources))


def test_files_stay_small():
    assert {path.name: n for path in ROOT.rglob("*.py") if (n := path.read_text().count("\n")) > 400} == {}


def test_only_the_command_line_prints():
    for module, path in Sources.under(ROOT).paths.items():
        if room_of(module) == "cli":
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"], path
