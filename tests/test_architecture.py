"""Data flows one way: a room imports only from rooms before it."""

import ast
from pathlib import Path

import restd

ORDER = (
    ("_version", "_arrow", "errors", "config", "progress", "memory", "artifacts"),
    *[
        (room,)
        for room in (
            *("data", "encode", "quantize", "index", "distill", "models", "train", "search", "evaluate", "baselines"),
            *("study", "report", "serve", "bench", "cli"),
        )
    ],
)
PLACE = {room: number for number, rooms in enumerate(ORDER) for room in rooms}
BLIND = {"distill": {"data", "encode", "models", "train"}}
ROOT = Path(restd.__file__).parent


def room_of(path):
    part = path.relative_to(ROOT).parts[0]
    return part.removesuffix(".py")


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "restd" else [node.module]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "restd" and len(parts) > 1:
                yield parts[1]


def back_edges(files):
    for path in files:
        room = room_of(path)
        for target in imported_rooms(path):
            if PLACE[target] > PLACE[room] or target in BLIND.get(room, ()):
                yield f"{path.relative_to(ROOT)} imports restd.{target}"


def test_no_room_imports_a_later_one():
    doors = {ROOT / "__init__.py", ROOT / "__main__.py"}  # they only open the last rooms
    files = [path for path in ROOT.rglob("*.py") if path not in doors]
    assert len(files) > 20
    assert list(back_edges(files)) == []


def test_the_walk_would_notice_a_back_edge(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "data").mkdir()
    bad = tmp_path / "data" / "bad.py"
    bad.write_text("def f():\n    from restd.index import SidIndex\n", encoding="utf-8")
    assert list(back_edges([bad])) == ["data/bad.py imports restd.index"]


def test_files_stay_small():
    assert {path.name: n for path in ROOT.rglob("*.py") if (n := path.read_text().count("\n")) > 400} == {}


def test_only_the_command_line_prints():
    for path in ROOT.rglob("*.py"):
        if room_of(path) == "cli":
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"], path
