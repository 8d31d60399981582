"""Indexes of the RQ-VAE's variants: built, stored, continued, and refused where what they learn from is missing."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from restd.codes import poincare
from restd.data import Catalog
from restd.encode import Embeddings
from restd.errors import ConfigError
from restd.index import IndexConfig, SidIndex, build_index, measure_quality, with_shape
from restd.models.compact_geometry import LatentGeometry
from restd.quantize import QUANTIZERS
from restd.rankers.latent import Latent
from restd.search import Retriever
from restd.snapshot import Snapshot
from tests.training import run, write_world

VARIANTS = ["merge", "cat-id2", "forge", "hyperbolic"]
QUICK = {"hidden": (16,), "epochs": 3, "batch": 32}


def config_of(name, **options):
    section = {name: replace(QUANTIZERS[name].config(), **QUICK)}
    policy = {"policy": "capacity"} if name == "forge" else {}
    return with_shape(IndexConfig("tfidf-svd", name, sections=section, **policy, **options), levels=3, codes=8, dim=6)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("name", VARIANTS)
def test_an_index_of_each_kind_is_stored_loaded_and_kept(name, world, tmp_path):
    built = build_index(Catalog(world), tmp_path / "out", config_of(name), judgments=world)
    loaded = SidIndex.load(tmp_path / "out")
    assert (loaded.sids == built.sids).all()
    assert (loaded.raw == built.raw).all()
    assert loaded.layout() == built.layout()
    assert loaded.codebooks.space == ("poincare" if name == "hyperbolic" else "euclidean")
    assert np.array_equal(loaded.trajectory([0, 7]), built.trajectory([0, 7]))
    lines = []
    build_index(Catalog(world), tmp_path / "out", config_of(name), judgments=world, notify=lines.append)
    assert {"Kept the alignment", "Kept the codebooks", "Kept the Semantic IDs"} <= set(lines)
    again = build_index(Catalog(world), tmp_path / "again", config_of(name), judgments=world)
    assert (again.sids == built.sids).all()
    quality = measure_quality(built)
    assert 0 <= quality.error_raw < 1.5
    assert quality.largest_group_before >= 1


class Killed(Exception):
    """The build ends here."""


@pytest.mark.parametrize("name", ["merge", "hyperbolic"])
def test_a_build_that_was_killed_ends_as_if_it_was_not(name, world, tmp_path):
    whole = build_index(Catalog(world), tmp_path / "whole", config_of(name), judgments=world)

    def kill(line):
        if line == "Assigning codes":
            raise Killed

    with pytest.raises(Killed):
        build_index(Catalog(world), tmp_path / "cut", config_of(name), judgments=world, notify=kill)
    lines = []
    resumed = build_index(Catalog(world), tmp_path / "cut", config_of(name), judgments=world, notify=lines.append)
    assert "Kept the codebooks" in lines
    assert (resumed.sids == whole.sids).all()
    assert resumed.layout() == whole.layout()


def test_other_categories_are_learned_although_no_text_changed(tmp_path):
    folder = write_world(tmp_path / "data")
    config = config_of("cat-id2")
    first = build_index(Catalog(folder), tmp_path / "out", config)
    rows = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
    changed = [{**row, "category": [row["title"].split()[0]]} for row in rows]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed), encoding="utf-8")
    second = build_index(Catalog(folder), tmp_path / "out", config)
    assert first.layout()["codebooks"] != second.layout()["codebooks"]


@pytest.mark.parametrize("name", ["merge", "forge"])
def test_without_training_queries_the_command_says_what_to_do(name, tmp_path, command):
    folder = write_world(tmp_path / "data")
    (folder / "judgments.jsonl").unlink()
    words = ("index", "build", "--catalog", folder, "--quantizer", name, "--encoder", "tfidf-svd")
    code, _, error = command(*words, "--out", tmp_path / "out")
    assert code != 0
    assert f"The quantiser {name} learns from training queries, and there are none. Pass --judgments" in " ".join(
        error.split()
    )


def test_without_categories_the_command_says_what_to_do(tmp_path, command):
    folder = write_world(tmp_path / "data", categories=False)
    words = ("index", "build", "--catalog", folder, "--quantizer", "cat-id2", "--encoder", "tfidf-svd")
    code, _, error = command(*words, "--out", tmp_path / "out")
    assert code != 0
    assert "needs categories of the items" in " ".join(error.split())


def test_restd_over_the_ball_trains_and_its_heads_point_into_it(world, tmp_path):
    build_index(Catalog(world), tmp_path / "index", config_of("hyperbolic"), judgments=world)
    run(tmp_path / "index", world, tmp_path / "run", objective="restd", updates=6)
    retriever = Retriever.load(tmp_path / "run", keep_heads=True)
    assert len(retriever.search("steel kettle", k=5)) == 5
    heads, geometry = retriever.heads, retriever.snapshot.points
    first = torch.randn(2, heads.heads.width)
    target = heads.target(first)
    assert (target.norm(dim=1) < 1).all()
    expected = -poincare.squared_distances(target, geometry) / heads.temperatures[0]
    assert torch.allclose(heads.nearness(first, geometry), expected)
    ahead = heads.codes_ahead(first).exp()
    assert torch.allclose(ahead.sum(-1), torch.ones(2, 3), atol=1e-5)


def test_the_decoder_geometry_refuses_the_ball(world, tmp_path):
    index = build_index(Catalog(world), tmp_path / "index", config_of("hyperbolic"), judgments=world)
    with pytest.raises(ConfigError, match=r"this index are of the space poincare\. Leave compact\.geometry off"):
        LatentGeometry.of_index(index, Embeddings.open(tmp_path / "index" / "embeddings").encoder(), limit=16)


def test_the_ranker_of_latents_uses_the_distance_of_the_ball(world, tmp_path):
    index = build_index(Catalog(world), tmp_path / "index", config_of("hyperbolic"), judgments=world)
    snapshot = Snapshot.of(index, Catalog(world))
    ranker = Latent.of(snapshot, Embeddings.open(tmp_path / "index" / "embeddings").encoder())
    rows, scores = ranker.rank(["steel kettle"], 5)
    assert (np.diff(scores[0]) <= 0).all()
    assert np.allclose(ranker.scores(["steel kettle"], rows), scores, rtol=1e-3)
