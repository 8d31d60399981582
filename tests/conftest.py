"""Shapes and types are checked in tests: every annotated function of the package goes through beartype."""

import sys

import numpy as np
import pytest
from hypothesis import Phase, settings
from jaxtyping import install_import_hook

ROOMS = ("artifacts", "data", "encode", "quantize", "index", "distill", "models", "train", "search", "evaluate")
ROOMS += ("codes", "shop", "snapshot", "rankers", "systems", "experiments", "analyses", "report", "bench")
install_import_hook([f"restd.{room}" for room in ROOMS], "beartype.beartype")

# Shared machines pause for longer than hypothesis's default patience. The same examples at every run, so that a change
# is judged by what it changed; `make fuzz` draws new ones and many more.
settings.register_profile("restd", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=1500)
# the first failure of a mutant is enough: nobody reads the smallest one
found = (Phase.explicit, Phase.generate)
settings.register_profile(
    "mutants", deadline=None, max_examples=15, derandomize=True, database=None, phases=found, report_multiple_bugs=False
)
settings.load_profile("restd")


@pytest.fixture
def command(monkeypatch, capfd):
    """Run `restd` with these words; returns exit code, standard output and standard error."""

    def command(*words):
        from restd.cli import main

        monkeypatch.setattr(sys, "argv", ["restd", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return command


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Walks through a tiny catalogue, and a TIGER that knows them."""
    from tests.walks import made

    return made(tmp_path_factory.mktemp("walks"))


@pytest.fixture(scope="session")
def served_run(tmp_path_factory):
    """A tiny run with heads and a hybrid search, for the service."""
    from tests.serving import write_run

    return write_run(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def explored(served_run, tmp_path_factory):
    """A service for the explorer: two models, keys, and an item whose title would be a script."""
    from tests.browser import HOSTILE, need_chromium
    from tests.serving import WRITE, service, write_keys
    from tests.training import run

    need_chromium()
    folder = tmp_path_factory.mktemp("explored")
    plain = run(served_run.parent / "index", served_run.parent / "data", folder / "plain", updates=5).folder.parent
    words = [
        "--model",
        served_run,
        "--beside",
        plain,
        "--api-key-file",
        write_keys(folder),
        "--state",
        folder / "state",
    ]
    with service(*words, "--state", folder / "state") as running:
        with running.client(WRITE) as client:
            item = {"id": 'a"<b>/1', "title": HOSTILE, "category": ["Home", "desk"]}
            response = client.put("/v1/items", json={"items": [item]})
            assert response.status_code == 200, response.text
        yield running


@pytest.fixture(scope="module")
def browser():
    """A Chromium; not for the whole session, as it has an event loop that other tests would meet."""
    from tests.browser import launched

    with launched() as browser:
        yield browser


@pytest.fixture
def visit(browser, explored):
    """Open the page; in the end there was no error on the console and no request to another host."""
    from tests.browser import Visit

    visit = Visit(browser, explored.url)
    yield visit
    visit.close()
    assert not visit.ran, "a title was run"
    assert visit.faults == []


@pytest.fixture(scope="module")
def reader(explored):
    """Reads from the explorer's service."""
    from tests.serving import READ

    with explored.client(READ) as client:
        yield client


@pytest.fixture(scope="session")
def sentence_encoder(tmp_path_factory):
    """A tiny sentence-transformers model of random weights; nobody trains it."""
    from restd.encode import load_encoder
    from tests.models import tiny_sentence_model

    return load_encoder(tiny_sentence_model(tmp_path_factory.mktemp("sentence")), device="cpu")


@pytest.fixture
def items_csv(tmp_path):
    """Three hundred items with texts that differ."""
    words = ["red", "blue", "steel", "kettle", "mug", "lamp", "desk", "small", "large", "oak", "glass", "cable"]
    rng = np.random.default_rng(7)
    lines = ["id,title,description"]
    for number in range(300):
        title = " ".join(rng.choice(words, 3))
        lines.append(f"i{number},{title},{' '.join(rng.choice(words, 6))} no {number}")
    path = tmp_path / "items.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
