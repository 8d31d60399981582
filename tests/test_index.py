"""The index: saved, reloaded, grown, imported, measured."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from restd.artifacts import open_artifact, read_manifest
from restd.artifacts.manifest import FileEntry, hash_file
from restd.codes import as_tensor, nearest, trajectory
from restd.data import Catalog
from restd.encode import Embeddings
from restd.errors import ArtifactError, ConfigError, DataError
from restd.index import (
    POLICIES,
    IndexConfig,
    SidIndex,
    SidTable,
    build_index,
    import_index,
    measure_quality,
    with_shape,
)
from restd.index.quality import gini
from restd.quantize import RqVaeConfig

CONFIG = with_shape(IndexConfig(encoder="tfidf-svd"), levels=3, codes=8, dim=8)


@pytest.fixture
def built(items_csv, tmp_path):
    return build_index(Catalog(items_csv), tmp_path / "out", CONFIG)


def same(first, second):
    assert first.table.ids.to_pylist() == second.table.ids.to_pylist()
    for name in ("sids", "raw", "latents", "edited"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
    assert first.layout() == second.layout()


def test_reload_and_rerun_give_the_same_sids(built, items_csv, tmp_path):
    same(built, SidIndex.load(tmp_path / "out"))
    same(built, SidIndex.load(tmp_path / "out" / "index"))
    lines = []
    same(built, build_index(Catalog(items_csv), tmp_path / "out", CONFIG, notify=lines.append))
    assert [line.split()[0] for line in lines] == ["Encoding", "Kept", "Kept", "Kept"]
    same(built, build_index(Catalog(items_csv), tmp_path / "fresh", CONFIG))
    assert built.table.unique == 300


def test_only_the_stages_that_changed_run_again(built, items_csv, tmp_path):
    lines = []
    build_index(Catalog(items_csv), tmp_path / "out", replace(CONFIG, policy="suffix"), notify=lines.append)
    assert [line.split()[0] for line in lines] == ["Encoding", "Kept", "Kept", "Assigning", "Resolving"]
    lines.clear()
    build_index(Catalog(items_csv), tmp_path / "out", with_shape(CONFIG, codes=16), notify=lines.append)
    assert "Fitting kmeans codebooks" in lines
    assert "Kept" in lines[1]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_builds_saves_and_loads(items_csv, tmp_path, policy):
    built = build_index(Catalog(items_csv), tmp_path / "out", replace(CONFIG, policy=policy))
    same(built, SidIndex.load(tmp_path / "out"))
    assert built.sids.shape[1] == (4 if policy == "suffix" else 3)
    assert built.trie.leaves == built.table.unique


def test_rqvae_and_balanced_indexes_build_and_load(items_csv, tmp_path):
    vae = RqVaeConfig(levels=3, codes=8, dim=8, hidden=(16,), epochs=3, batch=64)
    built = build_index(Catalog(items_csv), tmp_path / "vae", IndexConfig("tfidf-svd", "rqvae", rqvae=vae))
    same(built, SidIndex.load(tmp_path / "vae"))
    plain = build_index(Catalog(items_csv), tmp_path / "plain", CONFIG)
    even = build_index(Catalog(items_csv), tmp_path / "even", replace(CONFIG, balanced=True))
    counts = [np.bincount(index.sids[:, 0], minlength=8) for index in (plain, even)]
    assert gini(counts[1]) < gini(counts[0])
    assert (even.raw != plain.raw).any()
    assert even.edited.mean() < 0.2, "what balancing changed is no edit"


def test_level_one_invariant(built):
    latents, books = built.latents_and_codebooks()
    first = nearest(as_tensor(latents.astype(np.float32)), books.level(0)).numpy()
    assert (first != built.sids[:, 0]).mean() == built.edited[:, 0].mean()
    quality = measure_quality(built)
    assert quality.levels[0].conflict == quality.levels[0].edited


def test_trajectory_follows_stored_codes(built):
    rows = np.array([0, 5, 299])
    latents, books = built.latents_and_codebooks()
    steps = built.trajectory(rows)
    assert np.array_equal(steps, trajectory(as_tensor(latents[rows]), as_tensor(built.sids[rows]), books))
    assert np.allclose(steps[:, 1], steps[:, 0] - books.level(0).numpy()[built.sids[rows, 0]])


def test_table_looks_up_both_ways(built):
    for row, item in enumerate(built.table.ids.to_pylist()):
        assert built.table.sid(item) == tuple(built.sids[row].tolist())
        assert built.table.items(built.table.sid(item)) == [item]
    assert built.table.items((0, 0)) == []
    assert built.table.items((99, 0, 0)) == []
    with pytest.raises(DataError, match="'nobody' is not in this index of 300 items"):
        built.table.sid("nobody")


@pytest.mark.parametrize("policy", list(POLICIES))
def test_add_then_remove_gives_the_same_index(items_csv, tmp_path, rng, policy):
    built = build_index(Catalog(items_csv), tmp_path / "out", replace(CONFIG, policy=policy))
    old = Embeddings.open(tmp_path / "out" / "embeddings").sample(300, seed=0)
    vectors = np.concatenate([old[:10], old[:10] + 0.1 * rng.normal(size=(10, old.shape[1])).astype(np.float32)])
    ids = [f"new{number}" for number in range(20)]
    grown, drift = built.add(ids, vectors)
    assert len(grown) == 320
    assert np.array_equal(grown.sids[:300], built.sids)
    assert drift.added == 20
    assert drift.collisions_new >= 0.5, "ten of the new items are copies of old ones"
    if policy in ("single_substitution", "min_distortion", "suffix"):
        assert grown.table.unique == 320
    same(grown.remove(ids), built)
    grown.save(tmp_path / "grown")
    same(SidIndex.load(tmp_path / "grown"), grown)
    assert grown.layout() == built.layout()


def test_drift_is_seen(built, rng):
    width = built.quantizer.reconstruct(built.latents[:1]).shape[1]
    _, drift = built.add(["x", "y"], rng.normal(size=(2, width)).astype(np.float32))
    assert drift.drifted
    assert "consider a new index" in drift.sentence()


def test_bad_growth(built):
    width = built.quantizer.reconstruct(built.latents[:1]).shape[1]
    good = np.ones((1, width), np.float32)
    with pytest.raises(DataError, match="'i0' is in the index already"):
        built.add(["i0"], good)
    with pytest.raises(DataError, match="'z' is in the index already, or twice"):
        built.add(["z", "z"], np.repeat(good, 2, axis=0))
    with pytest.raises(DataError, match=r"Expected vectors of shape \(1, "):
        built.add(["z"], good[:, :-1])
    with pytest.raises(DataError, match="vector of item 'z' has NaN"):
        built.add(["z"], good * np.nan)
    with pytest.raises(DataError, match="'nobody' is not in this index"):
        built.remove(["nobody"])
    with pytest.raises(ConfigError, match="leave the index empty"):
        built.remove(built.table.ids.to_pylist())


def test_added_vectors_beyond_float16_are_refused(items_csv, tmp_path):
    config = replace(CONFIG, sections={"kmeans": replace(CONFIG.fit, normalize=False)})
    built = build_index(Catalog(items_csv), tmp_path / "out", config)
    width = built.quantizer.reconstruct(built.latents[:1]).shape[1]
    with pytest.raises(ConfigError, match="range of float16"):
        built.add(["z"], np.full((1, width), 1e6, np.float32))


def test_damage_is_refused(built, tmp_path):
    path = tmp_path / "out" / "index" / "latents.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"latents.safetensors was changed"):
        SidIndex.load(tmp_path / "out")


def test_a_folder_with_something_else_is_left_alone(items_csv, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    with pytest.raises(ArtifactError, match=r"already contains 'thesis\.tex'"):
        build_index(Catalog(items_csv), tmp_path / "out", CONFIG)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "precious"


# -- import ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(built, tmp_path):
    """The built index as somebody else would have written it."""
    rows = {"asin": built.table.ids}
    rows |= {f"c{level}": built.sids[:, level] for level in range(3)}
    pq.write_table(pa.table(rows), tmp_path / "codes.parquet")
    np.save(tmp_path / "codebooks.npy", built.codebooks.values.numpy())
    np.save(tmp_path / "latents.npy", built.latents)
    return tmp_path


def test_import_columns_lists_and_strings(built, exported):
    sids = built.sids.tolist()
    pq.write_table(pa.table({"id": built.table.ids, "sid": sids}), exported / "lists.parquet")
    pairs = zip(built.table.ids.to_pylist(), sids, strict=True)
    text = "\n".join(f"{item}\t{'-'.join(map(str, sid))}" for item, sid in pairs)
    (exported / "strings.tsv").write_text("id\tsid\n" + text + "\n")
    for name, columns in (("codes.parquet", {"id": "asin"}), ("lists.parquet", {}), ("strings.tsv", {})):
        found = import_index(
            exported / name, codebooks=exported / "codebooks.npy", latents=exported / "latents.npy", columns=columns
        )
        assert np.array_equal(found.sids, built.sids)
        assert np.array_equal(found.raw, built.raw)
        assert np.array_equal(found.trajectory([3, 4]), built.trajectory([3, 4]))


def test_an_imported_index_is_saved_and_measured(built, exported, tmp_path):
    bare = import_index(exported / "codes.parquet", columns={"id": "asin"})
    bare.save(tmp_path / "bare")
    loaded = SidIndex.load(tmp_path / "bare")
    assert np.array_equal(loaded.sids, built.sids)
    assert measure_quality(loaded).levels[0].error is None
    with pytest.raises(ConfigError, match="imported without latents or codebooks"):
        loaded.trajectory([0])
    with pytest.raises(ConfigError, match="without a quantiser"):
        loaded.add(["z"], np.ones((1, 8), np.float32))


def test_codebooks_of_unequal_size_and_a_suffix(built, exported):
    save_file({f"level{n}": built.codebooks.level(n).numpy() for n in range(2)}, exported / "two.safetensors")
    found = import_index(exported / "codes.parquet", codebooks=exported / "two.safetensors", columns={"id": "asin"})
    assert found.raw.shape[1] == 2
    assert len(found.sizes) == 3


@pytest.fixture
def unequal(items_csv, tmp_path):
    """An index whose levels differ in size, and the table of its codes."""
    index = build_index(Catalog(items_csv), tmp_path / "unequal", with_shape(CONFIG, codes=(4, 16, 8)))
    pq.write_table(pa.table({"id": index.table.ids, "sid": index.sids.tolist()}), tmp_path / "codes.parquet")
    return index


def test_importing_our_own_unequal_codebooks_keeps_their_sizes(unequal, tmp_path):
    np.save(tmp_path / "latents.npy", unequal.latents)
    np.save(tmp_path / "padded.npy", unequal.codebooks.values.numpy())
    save_file({"codebooks": unequal.codebooks.values.numpy()}, tmp_path / "old.safetensors")  # no sizes beside them
    own = tmp_path / "unequal" / "index" / "codebooks.safetensors"
    for books in (own, tmp_path / "padded.npy", tmp_path / "old.safetensors"):
        imported = import_index(tmp_path / "codes.parquet", codebooks=books, latents=tmp_path / "latents.npy")
        assert imported.sizes == unequal.sizes == (4, 16, 8)
        assert np.array_equal(imported.raw, unequal.raw), "padding is not a codeword at the origin"
        assert imported.layout() == unequal.layout()


def test_sizes_stored_beside_codebooks_decide_whatever_the_codewords_are(tmp_path):
    pq.write_table(pa.table({"id": ["a", "b"], "sid": [[0, 1], [1, 0]]}), tmp_path / "codes.parquet")
    books = np.ones((2, 4, 2), np.float32)
    books[:, 2:] = 0.0  # level 1 has a codeword at the origin that no item uses, level 2 has padding
    save_file({"codebooks": books, "codebook_sizes": np.array([3, 2])}, tmp_path / "books.safetensors")
    assert import_index(tmp_path / "codes.parquet", codebooks=tmp_path / "books.safetensors").sizes == (3, 2)


def test_a_row_of_zeros_that_an_item_uses_is_a_codeword(tmp_path):
    pq.write_table(pa.table({"id": ["a", "b"], "sid": [[0, 1], [2, 0]]}), tmp_path / "codes.parquet")
    books = np.zeros((2, 4, 2), np.float32)
    books[:, 0] = 1.0
    np.save(tmp_path / "books.npy", books)
    assert import_index(tmp_path / "codes.parquet", codebooks=tmp_path / "books.npy").sizes == (3, 2)


def test_folders_without_stored_sizes_still_load(unequal, tmp_path):
    for name in ("index/codebooks", "quantizer/quantizer"):
        _drop_tensor(tmp_path / "unequal" / f"{name}.safetensors", "codebook_sizes")
    same(unequal, SidIndex.load(tmp_path / "unequal"))
    assert SidIndex.load(tmp_path / "unequal").codebooks.sizes == (4, 16, 8)
    quantizer = open_artifact(tmp_path / "unequal" / "quantizer", kind="quantizer", schema=1)
    assert "codebook_sizes" not in quantizer.tensors("quantizer")


def _drop_tensor(path, name):
    """Write an artefact's file as it was before, manifest included."""
    arrays = load_file(path)
    del arrays[name]
    save_file(arrays, path)
    manifest = read_manifest(path.parent)
    entry = FileEntry(path.stat().st_size, hash_file(path))
    changed = replace(manifest, files={**manifest.files, path.name: entry})
    (path.parent / "manifest.json").write_bytes(changed.to_bytes())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes": pa.table({"id": ["a", "a"], "c": [0, 1]})}, "repeats an id"),
        ({"codes": pa.table({"id": ["a", "b"]})}, "has no codes"),
        ({"codes": pa.table({"id": ["a", "b"], "sid": [[0], [0, 1]]})}, r"lengths \[1, 2\]"),
        ({"codes": pa.table({"id": ["a", "b"], "c": ["0", "x"]})}, "row 2 has a code that is not a whole number"),
        ({"codes": pa.table({"id": ["a", "b"], "c": [0, -1]})}, "codes from -1"),
        ({"books": np.zeros((3, 4, 2), np.float32)}, "have 1 codes, but there are 3 codebooks"),
        ({"books": np.zeros((1, 1, 2), np.float32)}, "whose codebook has codes 0 to 0"),
        ({"books": np.zeros((1, 4), np.float32)}, "in 3 axes"),
        ({"latents": np.zeros((3, 2), np.float32)}, r"Expected \(2, 2\)"),
        ({"latents": np.full((2, 2), np.nan, np.float32)}, "NaN, infinite or outside"),
    ],
)
def test_bad_imports(tmp_path, change, message):
    good = {
        "codes": pa.table({"id": ["a", "b"], "c": [0, 1]}),
        "books": np.zeros((1, 4, 2), np.float32),
        "latents": np.zeros((2, 2), np.float32),
    } | change
    pq.write_table(good["codes"], tmp_path / "codes.parquet")
    np.save(tmp_path / "books.npy", good["books"])
    np.save(tmp_path / "latents.npy", good["latents"])
    with pytest.raises((DataError, ConfigError), match=message):
        import_index(tmp_path / "codes.parquet", codebooks=tmp_path / "books.npy", latents=tmp_path / "latents.npy")


# -- quality --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000))
def test_quality_against_plain_counting(seed):
    rng = np.random.default_rng(seed)
    sids = rng.integers(0, 4, (30, 2)).astype(np.int16)
    index = SidIndex(
        SidTable(pa.array([str(n) for n in range(30)]), sids, (4, 4)), sids.copy(), None, None, None, "none"
    )
    quality = measure_quality(index)
    stored = [tuple(sid) for sid in sids.tolist()]
    assert quality.unique == len(set(stored)) / 30
    assert quality.colliding_after == sum(stored.count(sid) > 1 for sid in stored) / 30
    assert quality.largest_group_before == max(stored.count(sid) for sid in stored)
    first = quality.levels[0]
    assert first.used == len({sid[0] for sid in stored})
    assert first.largest_prefix == max(sum(sid[0] == code for sid in stored) for code in range(4))
    prefixes = {sid[0] for sid in stored}
    single = [prefix for prefix in prefixes if len({sid[1] for sid in stored if sid[0] == prefix}) == 1]
    assert quality.levels[1].single_child == pytest.approx(len(single) / len(prefixes))


def test_a_collapsed_index_is_told():
    rng = np.random.default_rng(0)
    sids = np.stack([np.zeros(2_000), rng.integers(0, 64, 2_000)], axis=1).astype(np.int16)
    table = SidTable(pa.array([str(n) for n in range(2_000)]), sids, (64, 64))
    quality = measure_quality(SidIndex(table, sids, None, None, None, "none"))
    assert any("Level 1 has collapsed" in sentence for sentence in quality.warnings)
    assert any("share their SID" in sentence for sentence in quality.warnings)


def test_embedding_error_is_smaller_with_more_codes(items_csv, tmp_path):
    errors = []
    for codes in (8, 64):
        out = tmp_path / str(codes)
        built = build_index(Catalog(items_csv), out, with_shape(CONFIG, codes=codes))
        errors.append(measure_quality(built, embeddings=Embeddings.open(out / "embeddings")).embedding_error)
    assert 0 < errors[1] < errors[0] < 1
