"""DSI's identifiers: arbitrary numbers and paths of a hierarchical k-means, from the index to the search."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restd.data import Catalog
from restd.encode import Embeddings
from restd.errors import ArtifactError, ConfigError
from restd.index import IndexConfig, ShapeConfig, SidIndex, build_index, measure_quality, with_shape
from restd.quantize import QUANTIZERS, AlignConfig
from restd.quantize.dsi import DsiNaiveConfig, DsiSemanticConfig
from restd.quantize.dsi_identifiers import cluster_items, number_items, split
from restd.rankers import RankerContext, make_ranker
from restd.search import Retriever, SearchOptions
from restd.serve.catalog_items import neighbours_of, prefix_counts, show_items
from restd.serve.catalog_tree import tree_node
from restd.snapshot import Snapshot
from restd.train import read_log
from tests.training import run, write_world

SCHEMES = {"dsi-naive": DsiNaiveConfig(base=4), "dsi-semantic": DsiSemanticConfig(branch=3, leaf=6)}


def points(items, dim=3, seed=0):
    return np.random.default_rng(seed).normal(size=(items, dim)).astype(np.float32)


def paths_of(made):
    """Identifiers without what fills them up."""
    return [tuple(code for code in sid if code or not made.ends) for sid in made.sids.tolist()]


@given(st.integers(1, 300), st.integers(2, 12), st.integers(0, 5))
def test_naive_identifiers_are_numbers_in_random_order(items, base, seed):
    made = number_items(points(items), DsiNaiveConfig(base=base, seed=seed))
    weights = base ** np.arange(len(made.sizes))[::-1]
    numbers = made.sids.astype(np.int64) @ weights
    assert sorted(numbers.tolist()) == list(range(items))
    assert set(made.sizes) == {base}
    assert base ** (len(made.sizes) - 1) < max(items, 2), "as short as the largest number allows"
    assert not made.ends
    if items > 50:
        assert numbers.tolist() != sorted(numbers.tolist())
    again = number_items(points(items, seed=9), DsiNaiveConfig(base=base, seed=seed))
    assert np.array_equal(made.sids, again.sids), "the items do not matter"


@settings(max_examples=40)
@given(st.integers(1, 80), st.integers(2, 5), st.integers(1, 9), st.integers(1, 40), st.integers(0, 3))
def test_semantic_identifiers_are_the_paths_of_the_tree(items, branch, leaf, distinct, seed):
    """Clusters are split while they are too large, and never otherwise; repeated vectors are no obstacle."""
    vectors = points(distinct, seed=seed)[np.random.default_rng(seed).integers(distinct, size=items)]
    config = DsiSemanticConfig(branch=branch, leaf=leaf)
    made = cluster_items(vectors, config)
    paths = paths_of(made)
    assert len(set(paths)) == items
    first = 1 if made.ends else 0
    below = Counter(path[:length] for path in paths for length in range(len(path)))
    for prefix, count in below.items():
        codes = sorted({path[len(prefix)] for path in paths if path[: len(prefix)] == prefix})
        assert codes == list(range(first, first + len(codes)))
        members = [row for row, path in enumerate(paths) if path[: len(prefix)] == prefix]
        if count <= leaf:
            places = [paths[row][len(prefix) :] for row in members]
            assert places == [(place,) for place in range(first, first + count)], "in the catalogue's order"
        else:
            parts = split(vectors[members], branch=branch, seed=0)
            assert 2 <= len(parts) <= branch
            wanted = {first + code: [members[row] for row in part] for code, part in enumerate(parts)}
            assert {code: [row for row in members if paths[row][len(prefix)] == code] for code in codes} == wanted
    assert np.array_equal(made.sids, cluster_items(vectors, config).sids)


def test_clusters_that_lie_apart_have_prefixes_of_their_own():
    """Two items share a prefix if and only if they are of the same group, at both depths."""
    rng = np.random.default_rng(0)
    coarse, fine = np.repeat(np.arange(3), 12), np.tile(np.repeat(np.arange(3), 4), 3)
    centres = 100 * np.eye(3, 4)[coarse] + 5 * np.eye(3, 4, k=1)[fine]
    vectors = (centres + 0.1 * rng.normal(size=centres.shape)).astype(np.float32)
    order = rng.permutation(len(vectors))
    made = cluster_items(vectors[order], DsiSemanticConfig(branch=3, leaf=4))
    groups = (coarse[order], coarse[order] * 3 + fine[order])
    for depth, group in enumerate(groups, start=1):
        same = (made.sids[:, None, :depth] == made.sids[None, :, :depth]).all(-1)
        assert np.array_equal(same, group[:, None] == group[None])
    assert made.sizes == (3, 3, 4)
    assert not made.ends, "all paths are equally long"


def test_identical_items_are_split_in_their_order():
    made = cluster_items(np.ones((20, 4), np.float32), DsiSemanticConfig(branch=2, leaf=3))
    assert paths_of(made) == sorted(paths_of(made))
    assert max(Counter(path[:-1] for path in paths_of(made)).values()) <= 3
    outlier = np.concatenate([np.zeros((1, 4)), np.ones((20, 4))]).astype(np.float32)
    lengths = {len(path) for path in paths_of(cluster_items(outlier, DsiSemanticConfig(branch=2, leaf=3)))}
    assert len(lengths) > 1


def test_a_tree_that_is_too_deep_says_what_to_change():
    spread = (4.0 ** np.arange(45)).astype(np.float32)[:, None]  # every split takes off the farthest item alone
    with pytest.raises(ConfigError, match=r"to a depth of \d+: .*64-bit key.* dsi-semantic\.leaf"):
        cluster_items(spread, DsiSemanticConfig(branch=2, leaf=1))


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: DsiNaiveConfig(base=1), r"dsi-naive\.base must be from 2 to 32,000, got 1"),
        (lambda: DsiSemanticConfig(branch=1), r"dsi-semantic\.branch must be from 2"),
        (lambda: DsiSemanticConfig(leaf=40_000), r"dsi-semantic\.leaf must be from 1 to 32,000"),
        (lambda: DsiSemanticConfig(seed=-1), r"dsi-semantic\.seed must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(make, setting):
    with pytest.raises(ConfigError, match=setting):
        make()


def config_of(scheme, **options):
    return IndexConfig("tfidf-svd", scheme, sections={scheme: SCHEMES[scheme]}, **options)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_world(folder / "data")
    for scheme in SCHEMES:
        build_index(Catalog(folder / "data"), folder / scheme, config_of(scheme))
    return folder


@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_an_index_is_built_once_and_measured(world, scheme):
    lines = []
    index = build_index(Catalog(world / "data"), world / scheme, config_of(scheme), notify=lines.append)
    assert "Kept the identifiers" in lines
    assert not QUANTIZERS[scheme].has_geometry
    assert index.ends is (scheme == "dsi-semantic")
    assert (index.scheme, index.policy, index.table.unique) == (scheme, "none", len(index) == 60 and 60)
    vectors = np.concatenate(list(Embeddings.open(world / scheme / "embeddings").batches()))
    made = (number_items if scheme == "dsi-naive" else cluster_items)(np.asarray(vectors, np.float32), SCHEMES[scheme])
    assert np.array_equal(index.sids, made.sids)
    quality = measure_quality(index)
    assert quality.unique == 1
    assert quality.warnings == ()
    other = build_index(Catalog(world / "data"), world / scheme, with_shape(config_of(scheme), seed=3))
    assert other.layout() != index.layout()
    assert build_index(Catalog(world / "data"), world / scheme, config_of(scheme)).layout() == index.layout()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"balanced": True}, "balanced codes .--balanced. has no effect"),
        ({"policy": "suffix"}, "a collision policy .--policy suffix. has no effect"),
        ({"align": AlignConfig(enabled="on")}, "alignment .align.enabled = on. has no effect"),
        ({"shape": ShapeConfig(mode="auto")}, "a shape by measurement .--shape auto. has no effect"),
    ],
)
def test_what_a_scheme_would_ignore_is_refused(world, tmp_path, options, message):
    with pytest.raises(ConfigError, match=f"dsi-semantic makes identifiers without .*{message}. Remove it"):
        build_index(Catalog(world / "data"), tmp_path / "out", config_of("dsi-semantic", **options))
    assert not (tmp_path / "out").exists(), "before anything is encoded"


def test_settings_that_a_scheme_does_not_have_are_refused():
    for option in ({"levels": 3}, {"codes": 8}, {"dim": 4}):
        name = next(iter(option))
        with pytest.raises(
            ConfigError, match=rf"dsi-semantic has no {name}, so --{name} has no effect.*semantic\.leaf"
        ):
            with_shape(config_of("dsi-semantic"), **option)
    config = with_shape(config_of("dsi-semantic"), seed=7)
    assert config.settings == DsiSemanticConfig(branch=3, leaf=6, seed=7)
    assert config.section("kmeans").seed == 7
    changed = with_shape(IndexConfig(), levels=2)
    assert changed.section("rqvae").levels == 2
    assert changed.section("dsi-naive") == DsiNaiveConfig()


def test_the_command_line_refuses_a_policy_that_is_stated(world, tmp_path, command):
    words = ["index", "build", "--catalog", world / "data", "--quantizer", "dsi-naive", "--out", tmp_path / "out"]
    code, _, error = command(*words, "--policy", "single_substitution")
    assert code == 2
    assert "a collision policy (--policy single_substitution) has no effect" in error


def test_new_items_and_residuals_are_refused_with_what_to_do(world, command, tmp_path):
    index = SidIndex.load(world / "dsi-semantic")
    with pytest.raises(ConfigError, match=r"dsi-semantic names all items .* cannot place new ones\. Build an index of"):
        index.add(["new"], np.ones((1, 4), np.float32))
    with pytest.raises(ConfigError, match=r"of dsi-semantic come without latents and codebooks, .* objective base"):
        run(world / "dsi-semantic", world / "data", tmp_path / "run", objective="restd")
    (tmp_path / "new.csv").write_text("id,title\nnew,new mug\n")
    code, _, error = command("index", "add", "--index", world / "dsi-semantic", "--catalog", tmp_path / "new.csv")
    assert code == 2
    assert "has the identifiers of dsi-semantic, a scheme without a quantiser, so new items cannot" in error
    for name in ("latent", "sids"):
        context = RankerContext(Snapshot.load(world / "dsi-semantic"), world / "data", world / "dsi-semantic")
        with pytest.raises(ConfigError, match="a scheme without a quantiser, so queries cannot be projected"):
            make_ranker(name, context)


RUNS = {
    "dsi": ["train.indexing=text"],
    "dsi-qg": ["train.indexing=none", "train.pseudo_queries=2", "train.pseudo_kinds=['keywords','title']"],
    "soft": ["train.indexing=title", "train.multi_positive=items", "train.loss_norm=trie_children"],
}


def trained(world, scheme, kind="dsi"):
    """A run on an index of a scheme, made once."""
    out = world / f"{scheme}-{kind}"
    if not out.exists():
        updates = 150 if scheme == "dsi-naive" else 60  # arbitrary numbers have to be learned by heart
        settings = [*RUNS[kind], "train.lr=0.02", "train.batch=16", "train.micro=16"]
        run(world / scheme, world / "data", out, *settings, updates=updates)
    return out


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [("dsi-naive", "dsi"), ("dsi-semantic", "dsi"), ("dsi-semantic", "dsi-qg"), ("dsi-semantic", "soft")],
)
def test_a_model_learns_and_finds_items(world, scheme, kind):
    folder = trained(world, scheme, kind)
    losses = [entry["sid_loss"] for entry in read_log(folder / "log.jsonl") if "sid_loss" in entry]
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:10])
    retriever = Retriever.load(folder)
    index = retriever.index
    norm = "trie_children" if kind == "soft" else "full_vocab"
    for k in (5, 60):
        hits = retriever.search("steel kettle", k=k, beam=60, score_norm=norm)
        assert len({hit.item for hit in hits}) == k
        assert all(index.table.sid(hit.item) == hit.sid for hit in hits)
        assert all(index.table.items(hit.sid) == [hit.item] for hit in hits)
    assert "steel-kettle" in {"-".join(hit.item.split("-")[1:]) for hit in hits[:4]}
    narrow = retriever.search("steel kettle", k=5, beam=60, score_norm=norm, where=["title~green"])
    assert len(narrow) == 5
    assert all(hit.item.startswith("green") for hit in narrow)


def test_explanations_and_views_show_identifiers_without_padding(world):
    retriever = Retriever.load(trained(world, "dsi-semantic"))
    snapshot, table = retriever.snapshot, retriever.index.table
    levels = len(table.sizes)
    row = int(np.argmin(table.sids[:, -1]))
    (own,) = table.shown(np.array([row]))
    item = snapshot.ids[row].as_py()
    assert len(own) < levels
    explanation = retriever.explain("oak desk", item, options=SearchOptions(k=5, beam=4))
    assert (explanation.sid, len(explanation.levels)) == (own, levels)
    assert explanation.exact_rank is not None
    found = retriever.explain("oak desk", item, options=SearchOptions(k=60, beam=60))
    assert found.rank == found.exact_rank
    tree = retriever.beam_tree("oak desk", item, options=SearchOptions(k=5, beam=60))
    assert [node.prefix for level in tree.levels for node in level.nodes if node.on_path][-1] == tuple(table.sids[row])
    assert show_items(snapshot, np.array([row]))[0].sid == own
    assert [prefix for prefix, _ in prefix_counts(snapshot, row)] == [own[: n + 1] for n in range(len(own))]
    for neighbour in neighbours_of(snapshot, row):
        assert neighbour.shared_levels <= len(own)
        assert neighbour.shown.sid[: neighbour.shared_levels] == own[: neighbour.shared_levels]
    for length in range(len(own), levels):
        ended = tree_node(snapshot, (*own, *[0] * (length + 1 - len(own))))
        assert ([member.item for member in ended.members], ended.children) == ([item], [])


def test_a_model_of_another_tree_is_refused(world, tmp_path):
    folder = trained(world, "dsi-naive")
    config = with_shape(config_of("dsi-naive"), seed=1)
    build_index(Catalog(world / "data"), tmp_path / "other", config)
    with pytest.raises(ArtifactError, match="was trained for other identifiers of the same shape"):
        Retriever.load(folder, tmp_path / "other")
    removed = SidIndex.load(world / "dsi-naive").remove(["red-oak-desk"])
    removed.save(tmp_path / "removed")
    assert len(Retriever.load(folder, tmp_path / "removed", world / "data").search("oak desk", k=59, beam=59)) == 59
