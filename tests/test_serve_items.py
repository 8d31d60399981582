"""Item updates: whole or absent, durable before they are acknowledged, found at once, and the same after a restart."""

import json
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restd.data import Catalog
from restd.errors import ArtifactError, ConfigError
from restd.serve.item_fields import ItemLimits, item_text
from restd.serve.item_updates import ItemUpdates
from restd.serve.journal import FILE, Journal
from restd.serve.model_state import ModelSource
from restd.serve.problems import InvalidError, NotFoundError, NotReadyError, StorageError
from restd.snapshot import Condition
from tests.item_batches import SOFA, after, opened_updates, titles_of, write_model, write_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return write_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def served(shop):
    """The model as it is loaded, with every companion that follows; nobody changes it."""
    served = ModelSource(shop).load()
    served.retriever.set_companions(["bm25", "dense", "latent"])
    return served


def everything(served, query="red oak desk", **options):
    """All items in the order of a search, with their scores."""
    return served.retriever.search(query, k=1_000, beam=500, **options)


def columns_of(served):
    items = served.snapshot.items
    return {name: items.column(name).to_pylist() for name in sorted(items.names())}


changes = st.one_of(
    st.tuples(st.just("delete"), st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)),
    st.tuples(
        st.just("put"),
        st.lists(
            st.builds(
                lambda item, title, others: {"id": item, "title": title, **others},
                st.sampled_from([*"abcd", "red-oak-desk", "blue-steel-mug"]),
                st.sampled_from(["green oak desk", "a chair", "nothing known", "red red lamp"]),
                st.fixed_dictionaries(
                    {},
                    optional={
                        "price": st.integers(0, 9) | st.floats(0, 9),
                        "category": st.just(["Home", "lamp"]) | st.just("Home > mug"),
                        "weight": st.floats(0, 1),
                        "note": st.text("xyz é", min_size=1, max_size=5),
                    },
                ),
            ),
            min_size=1,
            max_size=3,
            unique_by=lambda item: item["id"],
        ),
    ),
)


@settings(max_examples=15)
@given(sequence=st.lists(changes, min_size=1, max_size=6), fold_above=st.sampled_from([500, 3_000, 1 << 20]))
def test_a_restart_gives_what_was_served_and_a_dict_says_the_same(served, tmp_path_factory, sequence, fold_above):
    folder = tmp_path_factory.mktemp("served")
    titles, count = titles_of(served), 0
    with opened_updates(served, folder, fold_above=fold_above) as updates:
        for kind, what in sequence:
            if kind == "delete" and not set(what) <= set(titles):
                with pytest.raises(NotFoundError):
                    updates.delete(what)
                continue
            update = updates.put(what) if kind == "put" else updates.delete(what)
            count += 1
            titles = after((kind, what), titles)
            assert update.sequence == updates.sequence == count
            assert update.snapshot == updates.served.hash
        assert list(titles_of(updates.served).items()) == list(titles.items())
    with opened_updates(served, folder) as again:
        assert again.served.hash == updates.served.hash
        assert again.sequence == count
        assert list(titles_of(again.served).items()) == list(titles.items())
        assert columns_of(again.served) == columns_of(updates.served)
        assert again.served.snapshot.items.texts() == updates.served.snapshot.items.texts()
        live, later = updates.served.snapshot.index, again.served.snapshot.index
        assert later.generation == live.generation
        assert later.item_generations.tolist() == live.item_generations.tolist()
        for mode in ("generative", "hybrid"):
            assert everything(again.served, mode=mode) == everything(updates.served, mode=mode)
    assert titles_of(served).keys() == set(served.snapshot.ids.to_pylist()), "what was loaded is as it was"


def test_a_restart_encodes_nothing(served, tmp_path, monkeypatch):
    with opened_updates(served, tmp_path) as updates:
        updates.put([SOFA])
    monkeypatch.setattr("restd.search.retriever.encode_texts", None)
    with opened_updates(served, tmp_path) as again:
        assert again.served.hash == updates.served.hash


def test_new_items_are_found_at_once_by_every_part_and_filter(served, tmp_path):
    before = served.hash
    with opened_updates(served, tmp_path) as updates:
        update = updates.put([SOFA, {"id": "red-oak-desk", "title": "crimson oak desk"}])
        assert (update.added, update.replaced, update.sequence) == (1, 1, 1)
        now = updates.served
        for mode in ("generative", "hybrid"):
            assert {"sofa", "red-oak-desk"} <= {hit.item for hit in everything(now, mode=mode)}
            found = now.retriever.search("sofa", k=5, mode=mode, where=["price=99.5", "category=sofa"])
            assert [(hit.item, hit.title) for hit in found] == [("sofa", "purple glass sofa")]
        for companion in now.snapshot.companions:
            rows, _ = companion.rank(["purple glass sofa"], 3)
            assert now.snapshot.ids[int(rows[0, 0])].as_py() == "sofa", companion.name
        assert updates.delete(["sofa"]).removed == 1
        assert "sofa" not in {hit.item for hit in everything(updates.served)}
        assert "sofa" in {hit.item for hit in everything(now)}, "a search under way keeps its snapshot"
    assert served.hash == before


def test_a_replaced_item_is_what_was_put_and_nothing_of_the_old_one(served, tmp_path):
    with opened_updates(served, tmp_path) as updates:
        updates.put([{"id": "red-oak-desk", "title": "crimson oak desk"}])
        items = updates.served.snapshot.items
        row = int(items.rows(["red-oak-desk"], what="test")[0])
        assert row == len(items.ids) - 1
        assert {name: values[row] for name, values in columns_of(updates.served).items()} == {
            "id": "red-oak-desk",
            "title": "crimson oak desk",
            "category": None,
            "price": None,
            "stock": None,
        }
        assert items.texts()[row] == "crimson oak desk"


def test_an_item_that_keeps_its_semantic_id_is_not_new_to_the_model(served, tmp_path):
    ids = served.snapshot.ids.to_pylist()
    known = served.snapshot.items.titles().to_pylist()[7]
    with opened_updates(served, tmp_path) as updates:
        updates.put([{"id": ids[7], "title": known, "price": 1.0}, SOFA])
        index = updates.served.snapshot.index
        assert index.table.sid(ids[7]) == served.snapshot.index.table.sid(ids[7])
        assert index.item_generations.tolist()[-2:] == [0, 1]


def test_the_whole_catalogue_can_be_replaced_but_not_removed(served, tmp_path):
    ids = served.snapshot.ids.to_pylist()
    with opened_updates(served, tmp_path) as updates:
        with pytest.raises(ConfigError, match="would leave nothing to search"):
            updates.delete(ids)
        assert updates.sequence == 0
        assert updates.put([{"id": item, "title": "one of many"} for item in ids]).replaced == len(ids)
        assert set(titles_of(updates.served).values()) == {"one of many"}


def test_a_column_that_only_updates_have_comes_and_goes(served, tmp_path):
    with opened_updates(served, tmp_path) as updates:
        updates.put([SOFA, {"id": "rug", "title": "red rug", "weight": 3, "tags": ["soft", "round"]}])
        items = updates.served.snapshot.items
        assert items.matching([Condition.parse("weight>=2.5")]).nonzero()[0].tolist() == [len(items.ids) - 1]
        assert updates.served.retriever.search("rug", where=["tags=round"])[0].item == "rug"
        with pytest.raises(InvalidError, match=r"items\.0\.weight: expected a finite number, found 'heavy'"):
            updates.put([{"id": "mat", "title": "mat", "weight": "heavy"}])
        updates.delete(["rug"])
        assert "weight" not in updates.served.snapshot.items.names()
        updates.put([{"id": "mat", "title": "mat", "weight": "heavy"}])
        assert updates.served.retriever.search("mat", where=["weight=heavy"])[0].item == "mat"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], r"items: expected 1 to 5 per request, found 0"),
        ([{**SOFA, "id": str(number)} for number in range(6)], r"expected 1 to 5 per request, found 6"),
        ([{"title": "sofa"}], r"items\.0: expected an id.* found None"),
        ([{**SOFA, "id": 7}], r"items\.0: expected an id.* found 7"),
        ([{**SOFA, "id": ""}], r"items\.0: expected an id.* found ''"),
        ([{**SOFA, "id": " sofa"}], r"without spaces around it, found ' sofa'"),
        ([{**SOFA, "id": "x" * 513}], r"a text of 1 to 512 characters"),
        ([{**SOFA, "id": "so\x00fa"}], r"'so\\x00fa' has control characters"),
        ([{**SOFA, "id": "so\ud800"}], r"'so\\ud800' has control characters"),
        ([SOFA, SOFA], r"items\.1: the id 'sofa' is already at items\.0"),
        ([SOFA, {"id": "bare"}], r"items\.1: the item 'bare' has a text of 0 characters"),
        ([{"id": "sofa", "title": "  "}], r"items\.0: the item 'sofa' has a text of 0 characters"),
        ([{**SOFA, "title": "x" * 101}], r"items\.0\.title: the text has 101 characters; expected at most 100"),
        ([{**SOFA, "title": None, "a": "x" * 60, "b": "y" * 60}], r"a text of 135 characters"),
        ([{**SOFA, "title": "\x00"}], r"items\.0\.title: the text has a null character"),
        ([{**SOFA, "title": "\udc00"}], r"items\.0\.title: the text has .* half of a surrogate pair"),
        ([{**SOFA, "title": ["a"]}], r"items\.0\.title: expected a text, found \['a'\]"),
        ([{**SOFA, "title": {"a": 1}}], r"items\.0\.title: expected a text, found \{'a': 1\}"),
        ([{**SOFA, "price": "cheap"}], r"items\.0\.price: expected a finite number, found 'cheap'"),
        ([{**SOFA, "price": float("nan")}], r"items\.0\.price: expected a finite number, found nan"),
        ([{**SOFA, "price": -float("inf")}], r"items\.0\.price: expected a finite number, found -inf"),
        ([{**SOFA, "price": 10**400}], r"items\.0\.price: expected a finite number, found 1000"),
        ([{**SOFA, "price": True}], r"items\.0\.price: expected a finite number, found True"),
        ([{**SOFA, "stock": 2.5}], r"items\.0\.stock: expected a whole number, found 2\.5"),
        ([{**SOFA, "stock": 2**63}], r"items\.0\.stock: expected a whole number, found 9223372036854775808"),
        ([{**SOFA, "category": 5}], r"items\.0\.category: expected a list of at most 3 texts, found 5"),
        ([{**SOFA, "category": ["a", 5]}], r"items\.0\.category: expected a list of at most 3 texts"),
        ([{**SOFA, "category": list("abcd")}], r"items\.0\.category: expected a list of at most 3 texts"),
        (
            [{**SOFA, "new": "text"}, {**SOFA, "id": "two", "new": 5.5}, {**SOFA, "id": "x", "new": [1]}],
            r"items\.2\.new",
        ),
        ([{**SOFA, "": 1}], r"items\.0: '' cannot be a column"),
        ([{**SOFA, "a\nb": 1}], r"items\.0: 'a\\nb' cannot be a column"),
        ([{**SOFA, **{f"c{number}": 1 for number in range(60)}}], r"there would be 65 columns; at most 64 are kept"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place_and_changes_nothing(served, tmp_path, items, message):
    limits = ItemLimits(items=5, text_chars=100, list_values=3)
    with opened_updates(served, tmp_path, limits=limits) as updates:
        with pytest.raises(InvalidError, match=message) as refusal:
            updates.put(items)
        assert refusal.value.field is not None
        assert (updates.sequence, updates.served) == (0, served)


def test_texts_take_the_place_of_the_items_own(served, tmp_path):
    with opened_updates(served, tmp_path) as updates:
        updates.put([SOFA], ["a red lamp"])
        assert updates.served.snapshot.items.texts()[-1] == "a red lamp"
        for texts in ([], ["a", "b"], [" "], ["\x00"]):
            with pytest.raises(InvalidError, match="texts"):
                updates.put([SOFA], texts)
        assert updates.sequence == 1


def test_deleting_what_is_not_there_names_it_and_changes_nothing(served, tmp_path):
    with opened_updates(served, tmp_path) as updates:
        with pytest.raises(NotFoundError, match="There is no item 'nobody', so nothing was removed") as refusal:
            updates.delete(["red-oak-desk", "nobody"])
        assert refusal.value.field == "ids.1"
        with pytest.raises(InvalidError, match=r"ids\.1: the id 'red-oak-desk' is already at ids\.0"):
            updates.delete(["red-oak-desk", "red-oak-desk"])
        assert (updates.sequence, updates.served) == (0, served)


def test_an_item_has_the_text_that_the_catalogue_would_give_it(tmp_path, items_csv):
    for catalog in (Catalog(items_csv), Catalog(items_csv, text=("description", "title"))):
        rows = [row for part in catalog.batches() for row in part.to_pylist()]
        texts = catalog.texts_of([row["id"] for row in rows])
        assert [item_text(row, catalog.text_columns) for row in rows] == texts


def test_writers_take_turns(served, tmp_path):
    def write(number):
        for turn in range(3):
            updates.put([{"id": f"{number}-{turn}", "title": "steel mug"}])

    with opened_updates(served, tmp_path) as updates:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert updates.sequence == 12
        assert {f"{number}-{turn}" for number in range(4) for turn in range(3)} <= titles_of(updates.served).keys()
    with opened_updates(served, tmp_path) as again:
        assert again.served.hash == updates.served.hash
    with pytest.raises(NotReadyError, match="is stopping"):
        updates.put([SOFA])


def test_an_update_is_on_disk_before_it_is_served(served, tmp_path):
    order = []

    class Watched(Journal):
        def append(self, payload):
            order.append("on disk")
            return super().append(payload)

    updates = ItemUpdates(served, tmp_path, publish=lambda _: order.append("served"))
    with closing(updates):
        updates._journal.__class__ = Watched
        updates.put([SOFA])
    assert order == ["on disk", "served"]


def test_a_journal_that_gives_another_snapshot_is_refused(served, tmp_path):
    with opened_updates(served, tmp_path) as updates:
        updates.put([SOFA])
    other = replace(served, retriever=served.retriever.with_snapshot(served.snapshot.remove(["red-oak-desk"])))
    with pytest.raises(ArtifactError, match=r"for another index .*choose another --state DIR"):
        ItemUpdates(other, tmp_path, publish=lambda _: None)


def test_a_reload_brings_the_updates_of_the_other_model(served, shop, tmp_path):
    other = ModelSource(write_model(tmp_path, shop, seed=1)).load()
    with opened_updates(other, tmp_path / "second") as updates:
        updates.put([{"id": "rug", "title": "red rug"}])
    with opened_updates(served, tmp_path / "first") as updates:
        updates.put([SOFA])
        assert updates.move_to(other, tmp_path / "second") is updates.served
        assert "rug" in titles_of(updates.served)
        assert "sofa" not in titles_of(updates.served)
        updates.put([{"id": "mat", "title": "blue mat"}])
        with opened_updates(served, tmp_path / "first") as first:  # its folder is free again
            assert "sofa" in titles_of(first.served)
        updates.move_to(served, tmp_path / "first")
        assert "sofa" in titles_of(updates.served)
        with pytest.raises(ArtifactError, match="for another model"):
            updates.move_to(other, tmp_path / "first")
        (tmp_path / "second" / FILE).write_bytes(b"damage")
        with pytest.raises(ArtifactError, match="damaged"):
            updates.move_to(other, tmp_path / "second")
        updates.put([{"id": "cup", "title": "red cup"}])
        assert {"sofa", "cup"} <= titles_of(updates.served).keys()
    with opened_updates(served, tmp_path / "first") as again:
        assert again.served.hash == updates.served.hash


def test_a_failed_write_changes_nothing(served, tmp_path, monkeypatch):
    def failing(handle, *arguments):
        raise OSError(5, "Input/output error")

    with opened_updates(served, tmp_path) as updates:
        with monkeypatch.context() as patched:
            patched.setattr("restd.serve.journal.os.pwrite", failing)
            with pytest.raises(StorageError, match="Input/output error"):
                updates.put([SOFA])
        assert (updates.sequence, updates.served) == (0, served)
        updates.put([SOFA])
    with opened_updates(served, tmp_path) as again:
        assert again.sequence == 1


def test_twenty_one_killed_writers_lose_nothing_and_make_nothing_up(shop, tmp_path):
    """Eighteen bare writers and three servers, killed at random moments of an update."""
    words = [sys.executable, "-m", "tests.killed_item_writers", shop, tmp_path / "state", 18, 3, 5]
    made = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, check=True)
    outcome = json.loads(made.stdout)
    assert len(outcome) == 21
    assert all(there in (acknowledged, acknowledged + 1) for acknowledged, there in outcome)
    assert outcome[-1][1] > 30
