"""BM25 over stems finds other forms of a word, in the language of the items."""

import sys

import numpy as np
import pytest

from restd.data import Catalog
from restd.errors import MissingExtraError
from restd.rankers import Bm25, RankerContext, StemmedBm25, decoding_of, make_companion
from restd.rankers.bm25_stemmed import language_of, stems
from restd.snapshot import Snapshot

pytest.importorskip("Stemmer", reason="needs PyStemmer, of the extra bm25")
ENGLISH = ["the kettles are boiling water", "a garden hose for the watering of plants", "oak desks with drawers"]
SPANISH = ["teteras eléctricas para la cocina", "mangueras de riego para el jardín", "el jardín"]


def snapshot_of(folder, texts, name="items"):
    path = folder / f"{name}.csv"
    path.write_text("id,title\n" + "".join(f"i{row},{text}\n" for row, text in enumerate(texts)), encoding="utf-8")
    catalog = Catalog(path)
    return Snapshot.numbered(catalog.ids(), catalog)


def test_other_forms_of_a_word_are_found(tmp_path):
    snapshot = snapshot_of(tmp_path, ENGLISH)
    queries = ["kettle", "Desk drawer", "boiled"]
    rows, scores = StemmedBm25.of(snapshot).rank(queries, 1)
    assert rows.tolist() == [[0], [2], [0]]
    assert (scores > 0).all()
    assert Bm25.of(snapshot).rank(queries, 1)[0].tolist() == [[-1], [-1], [-1]]


def test_the_language_is_that_of_the_items(tmp_path):
    spanish = StemmedBm25.of(snapshot_of(tmp_path, SPANISH))
    assert spanish.language == "spanish"
    assert spanish.rank(["tetera electrica", "manguera"], 1)[0].tolist() == [[0], [1]]
    japanese = StemmedBm25.of(snapshot_of(tmp_path, ["電気ケトル 白", "ガーデンホース"], "jp"))
    assert japanese.language is None
    plain = Bm25.of(snapshot_of(tmp_path, ["電気ケトル 白", "ガーデンホース"], "jp"))
    for own, other in zip(japanese.rank(["ケトル"], 2), plain.rank(["ケトル"], 2), strict=True):
        assert np.array_equal(own, other)
    assert language_of(["Kessel mit Deckel für die Küche und den Garten"]) == "german"
    assert language_of([]) is None
    assert stems("Kettles", None) == ["kettles"]


def test_it_is_a_part_of_a_hybrid_search_that_keeps_its_language(tmp_path):
    snapshot = snapshot_of(tmp_path, ENGLISH)
    companion = make_companion("bm25-stemmed", RankerContext(snapshot, tmp_path / "items.csv", tmp_path))
    assert companion.name == "bm25-stemmed"
    rows, scores = companion.rank(["kettle watering"], 3)
    assert np.allclose(companion.scores(["kettle watering"], rows[:, :2]), scores[:, :2])
    other = companion.following(snapshot_of(tmp_path, SPANISH, "other"), np.arange(3), None)
    assert other.language == "english"
    assert decoding_of("bm25-stemmed", RankerContext(snapshot, tmp_path, tmp_path))["words"].startswith("Snowball")


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    snapshot = snapshot_of(tmp_path, ENGLISH)
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with pytest.raises(MissingExtraError, match=r"BM25 over word stems needs .*restd-retrieval\[bm25\]"):
        StemmedBm25.of(snapshot)
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingExtraError, match="'bm25s'"):
        Bm25.of(snapshot)
