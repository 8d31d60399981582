"""Width, levels and codes by measurement: what is tried, what is chosen, what is kept, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from restd.data import Catalog
from restd.errors import CapacityError, ConfigError
from restd.evaluate.kept import measure_kept
from restd.index import IndexConfig, ShapeConfig, ShapeReport, SidIndex, Trial, build_index, with_shape
from restd.index.shape import allowed_codes, choose, nearness, reconstructed, try_shapes
from restd.quantize import AlignConfig, AlignedQuantizer, query_latents
from restd.quantize.alignment import QueryPairs, mean_reciprocal_rank
from restd.snapshot import Snapshot
from tests.training import write_world

SHAPE = ShapeConfig(mode="auto", widths=(4, 8), levels=(2, 3), codes=(4, 8), tolerance=0.05)
CONFIG = IndexConfig(encoder="tfidf-svd", shape=SHAPE, align=AlignConfig(epochs=4))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    build_index(Catalog(data), folder / "index", CONFIG, judgments=data)
    return data, folder / "index"


def clusters(*, items=200, seed=0):
    """Items around a few points, and queries near an item of their own."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(20, 12))[rng.integers(20, size=items)] + 0.3 * rng.normal(size=(items, 12))
    points = points.astype(np.float32)
    own = np.arange(0, items, 4)
    asked = points[own] + 0.05 * rng.normal(size=(len(own), 12)).astype(np.float32)
    return points, QueryPairs(asked, np.arange(len(own)), own)


def test_every_shape_is_tried_and_the_choice_is_explicit(world):
    _, folder = world
    report = ShapeReport.load(folder)
    shapes = {(trial.dim, trial.codes, trial.levels) for trial in report.trials}
    assert shapes == {(dim, 8, levels) for dim in (4, 8) for levels in (2, 3)} | {(4, 4, 3), (8, 4, 3)}, (
        "two levels of four codes have no addresses for sixty items"
    )
    assert report.chosen in report.trials
    assert (report.queries, report.items, report.of_items, report.judged) == (15, 60, 60, True)
    assert 0 < report.embeddings <= 1
    index = SidIndex.load(folder)
    assert index.sizes == (report.chosen.codes,) * report.chosen.levels
    assert index.latents.shape[1] == report.chosen.dim
    settings = json.loads((folder / "quantizer" / "manifest.json").read_text(encoding="utf-8"))["settings"]["config"]
    assert {name: settings[name] for name in ("dim", "levels", "codes")} == {
        name: getattr(report.chosen, name) for name in ("dim", "levels", "codes")
    }


def test_the_cheapest_within_the_tolerance_is_chosen(world):
    report = ShapeReport.load(world[1])
    best = max(trial.sids for trial in report.trials)
    assert report.chosen.sids >= 0.95 * best > 0
    cheaper = [trial for trial in report.trials if trial.cost < report.chosen.cost]
    assert all(trial.sids < 0.95 * best for trial in cheaper)


def test_the_index_ranks_as_its_shape_was_measured(world):
    """The figure of the artefact is that of the index that was built afterwards, not of a sketch of it."""
    data, folder = world
    index, report = SidIndex.load(folder), ShapeReport.load(folder)
    snapshot = Snapshot.load(folder, data)
    valid = {}
    for line in (data / "judgments.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["split"] == "valid":
            valid.setdefault(row["query"], []).append(snapshot.ids.to_pylist().index(row["item"]))
    from restd.encode import Embeddings

    vectors = Embeddings.open(folder / "embeddings").encoder().encode(list(valid))
    queries = query_latents(index.quantizer, np.asarray(vectors)).astype(np.float32)
    number = np.repeat(np.arange(len(valid)), [len(rows) for rows in valid.values()])
    pairs = QueryPairs(queries, number, np.concatenate([np.array(rows) for rows in valid.values()]))
    points = reconstructed(index.sids, index.codebooks)
    assert mean_reciprocal_rank(nearness(queries, points), pairs) == pytest.approx(report.chosen.sids, abs=1e-6)


def test_the_same_seed_gives_the_same_report_and_a_second_run_keeps_it(world, tmp_path):
    data, folder = world
    first = ShapeReport.load(folder)
    messages = []
    again = build_index(Catalog(data), tmp_path / "again", CONFIG, judgments=data)
    assert ShapeReport.load(tmp_path / "again") == first
    kept = build_index(Catalog(data), tmp_path / "again", CONFIG, judgments=data, notify=messages.append)
    assert any(message.startswith("Kept the shape: width") for message in messages)
    assert not any(message.startswith("Trying") for message in messages)
    assert np.array_equal(kept.sids, again.sids)


@pytest.mark.parametrize(
    "changed",
    [
        replace(CONFIG, shape=replace(SHAPE, tolerance=0.5)),
        replace(CONFIG, policy="none"),
        replace(CONFIG, align=AlignConfig(enabled="off")),
        with_shape(CONFIG, seed=1),
    ],
    ids=["tolerance", "policy", "alignment", "seed"],
)
def test_other_settings_are_measured_again(world, tmp_path, changed):
    data, _ = world
    build_index(Catalog(data), tmp_path / "index", CONFIG, judgments=data)
    messages = []
    index = build_index(Catalog(data), tmp_path / "index", changed, judgments=data, notify=messages.append)
    assert any(message.startswith("Trying shapes on 60 items with 15 validation queries") for message in messages)
    assert isinstance(index.quantizer, AlignedQuantizer) == (changed.align.enabled != "off")


def test_stating_the_chosen_shape_gives_the_same_index(world, tmp_path):
    data, folder = world
    chosen = ShapeReport.load(folder).chosen
    stated = with_shape(replace(CONFIG, shape=ShapeConfig()), dim=chosen.dim, levels=chosen.levels, codes=chosen.codes)
    index = build_index(Catalog(data), tmp_path / "index", stated, judgments=data)
    assert np.array_equal(index.sids, SidIndex.load(folder).sids)
    assert index.layout() == SidIndex.load(folder).layout()
    assert not (tmp_path / "index" / "shape").exists()


def test_items_own_words_measure_where_there_are_no_judgments(world, tmp_path):
    config = replace(CONFIG, align=AlignConfig(enabled="on", epochs=2))
    build_index(Catalog(world[0]), tmp_path / "index", config)
    report = ShapeReport.load(tmp_path / "index")
    assert not report.judged
    assert report.queries > 0


def test_a_large_catalogue_is_sampled(world, tmp_path):
    config = replace(CONFIG, shape=replace(SHAPE, sample=40))
    messages = []
    index = build_index(Catalog(world[0]), tmp_path / "index", config, judgments=world[0], notify=messages.append)
    report = ShapeReport.load(tmp_path / "index")
    assert (report.items, report.of_items, len(index)) == (40, 60, 60)
    assert any("on 40 of 60 items" in message for message in messages)
    assert report.queries == 15, "items of validation queries come first"


def test_levels_are_prefixes_of_one_fit():
    """Fewer levels of the deeper fit are what a fit of fewer levels gives."""
    points, valid = clusters()
    deep, flat = (
        try_shapes(
            points, None, valid, replace(CONFIG, shape=replace(SHAPE, levels=levels, codes=(8,))), items=len(points)
        )
        for levels in ((3, 4), (3,))
    )
    assert [trial for trial in deep if trial.levels == 3] == list(flat)
    assert len(deep) == 2 * len(flat)


def test_more_levels_and_codes_keep_more():
    points, valid = clusters()
    shape = ShapeConfig(mode="auto", widths=(12,), levels=(1, 4), codes=(4, 32))
    trials = try_shapes(points, None, valid, replace(CONFIG, shape=shape, policy="none"), items=len(points))
    sids = {(trial.codes, trial.levels): trial.sids for trial in trials}
    assert sids[4, 1] < sids[4, 4] < sids[32, 4]
    assert trials[0].latents > 0.9


def test_items_that_share_a_sid_are_not_told_apart():
    """Ties count against an item, so that one code for everything ranks nothing."""
    points, valid = clusters()
    shape = ShapeConfig(mode="auto", widths=(12,), levels=(1,), codes=(2,))
    (trial,) = try_shapes(points, None, valid, replace(CONFIG, shape=shape, policy="none"), items=len(points))
    assert trial.sids < 0.05, "only a code of ten items or fewer, which chance may give, ranks anything"


def test_shapes_that_keys_cannot_hold_are_not_tried():
    points, valid = clusters(items=1_200)
    shape = ShapeConfig(mode="auto", widths=(12,), levels=(4, 8), codes=(256,))
    trials = try_shapes(points, None, valid, replace(CONFIG, shape=shape), items=len(points))
    assert [trial.levels for trial in trials] == [4]
    with pytest.raises(ConfigError, match="more addresses than keys of 64 bits can hold"):
        try_shapes(points, None, valid, replace(CONFIG, shape=replace(shape, levels=(8,))), items=len(points))


def test_balanced_codes_are_measured_balanced():
    points, valid = clusters()
    even, plain = (
        try_shapes(points, None, valid, replace(CONFIG, balanced=balanced), items=len(points))
        for balanced in (True, False)
    )
    assert [trial.sids for trial in even] != [trial.sids for trial in plain]
    assert [trial.latents for trial in even] == [trial.latents for trial in plain]


def test_ties_go_to_fewer_levels_then_fewer_codes_then_narrower_latents():
    def trial(dim, levels, codes, sids=0.5):
        return Trial(dim=dim, levels=levels, codes=codes, latents=0.9, sids=sids)

    trials = [trial(64, 6, 32), trial(64, 4, 64), trial(64, 4, 32), trial(32, 4, 32), trial(32, 2, 8, 0.4)]
    assert choose(trials, tolerance=0.03) == trial(32, 4, 32)
    assert choose(trials, tolerance=0.25) == trial(32, 2, 8, 0.4)
    with pytest.raises(ConfigError, match="None of 1 shapes ranks an item"):
        choose([trial(32, 4, 32, 0.0)], tolerance=0.03)


def test_a_codebook_gets_several_items_per_code():
    assert allowed_codes(IndexConfig(shape=ShapeConfig(codes=(4, 64, 256))), 60) == [4, 8]


def test_what_cannot_be_measured_is_refused_before_anything_is_encoded(world, tmp_path):
    data, _ = world
    catalog, out = Catalog(data), tmp_path / "index"
    np.save(tmp_path / "vectors.npy", np.eye(60, dtype=np.float32))
    with pytest.raises(ConfigError, match=r"rqvae would have to be trained .* Choose --quantizer kmeans, or set"):
        build_index(catalog, out, replace(CONFIG, quantizer="rqvae"), judgments=data)
    with pytest.raises(ConfigError, match=r"no encoder for queries\. Leave --vectors out"):
        build_index(catalog, out, CONFIG, judgments=data, vectors=tmp_path / "vectors.npy")
    with pytest.raises(ConfigError, match=r"there are no judgments\. Pass --judgments, or let queries be made"):
        build_index(catalog, out, CONFIG)
    with pytest.raises(ConfigError, match="pseudo_queries above 0"):
        build_index(catalog, out, replace(CONFIG, align=AlignConfig(enabled="on", pseudo_queries=0)))
    assert not out.exists()
    few = replace(CONFIG, shape=replace(SHAPE, levels=(1,)))
    with pytest.raises(CapacityError, match="60 items do not fit the 8 addresses"):
        build_index(catalog, out, few, judgments=data)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"widths": ()}, "widths must be numbers of at least 1"),
        ({"levels": (0, 4)}, r"levels must be numbers of at least 1 each, got \[0, 4\]"),
        ({"codes": (1,)}, "codes must be numbers of at least 2"),
        ({"tolerance": 1.0}, "tolerance must be at least 0 and below 1"),
        ({"sample": 1}, "sample must be at least 2"),
    ],
)
def test_settings_that_try_nothing_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        ShapeConfig(**values)


def test_the_command_shows_the_shapes_and_what_is_kept(command, world, tmp_path):
    data, _ = world
    arguments = ("index", "build", "--catalog", data, "--encoder", "tfidf-svd", "--shape", "auto")
    grid = ("--set", "shape.widths=[4,8]", "--set", "shape.levels=[2,3]", "--set", "shape.codes=[8]")
    code, out, err = command(*arguments, *grid, "--out", tmp_path / "index", "--json")
    assert code == 0, err
    printed = json.loads(out)
    report = ShapeReport.load(tmp_path / "index")
    assert printed["shapes"] == report.to_dict()
    assert len(printed["shapes"]["trials"]) == 4
    stored = json.loads((tmp_path / "index" / "quality.json").read_text(encoding="utf-8"))
    assert stored["kept"] == printed["kept"]
    assert stored["kept"] == measure_kept(Snapshot.load(tmp_path / "index", data), data, tmp_path / "index")
    code, out, err = command(*arguments, *grid, "--out", tmp_path / "index")
    assert code == 0, err
    assert "decoder steps, beam of 100" in out
    assert out.count("chosen") == 1
    assert "What is kept" in out
    assert err.count("Kept") == 5, err


def test_what_is_measured_cannot_be_stated_too(command, world, tmp_path):
    arguments = ("index", "build", "--catalog", world[0], "--encoder", "tfidf-svd", "--out", tmp_path / "index")
    for stated in (("--dim", 8), ("--set", "kmeans.dim=8")):
        code, _, err = command(*arguments, "--shape", "auto", *stated)
        assert code == 2
        assert "has no effect with --shape auto" in err
        assert "shape.widths" in err
    code, _, err = command(*arguments, "--shape", "big")
    assert code == 2
    assert "[shape] mode = 'big' cannot be used" in err


def test_a_folder_of_items_alone_is_built_without_judgments(command, world, tmp_path):
    data = write_world(tmp_path / "data")
    (data / "judgments.jsonl").unlink()
    code, _, err = command("index", "build", "--catalog", data, "--encoder", "tfidf-svd", "--out", tmp_path / "index")
    assert code == 0, err
    assert "kept" not in json.loads((tmp_path / "index" / "quality.json").read_text(encoding="utf-8"))


def test_the_picture_has_a_row_for_what_is_kept(world, tmp_path):
    from restd.index import measure_quality
    from restd.report import draw_index

    data, folder = world
    index = SidIndex.load(folder)
    quality = measure_quality(index)
    kept = measure_kept(Snapshot.load(folder, data), data, folder)
    draw_index(index, quality, tmp_path / "with.svg", kept=kept)
    draw_index(index, quality, tmp_path / "without.svg")
    sizes = [(tmp_path / f"{name}.svg").read_text(encoding="utf-8") for name in ("with", "without")]
    heights = [float(text.split('height="')[1].split("pt")[0]) for text in sizes]
    assert heights[0] > heights[1]
    assert all(f"What is kept: {measure}" in sizes[0] for measure in ("NDCG@10", "Recall@100"))
