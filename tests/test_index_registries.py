"""A quantiser and a collision policy written in a test file join by registration alone."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

from restd.codes import Codebooks
from restd.data import Catalog
from restd.encode import Embeddings
from restd.errors import ConfigError
from restd.index import POLICIES, IndexConfig, PolicyKind, SidIndex, build_index, with_shape
from restd.quantize import QUANTIZERS, KMeansConfig, QuantizerKind, RqVaeConfig, to_latents


@dataclass(frozen=True)
class SamplesConfig:
    """Codewords are latents of items drawn at random."""

    levels: int = 3
    codes: int | tuple[int, ...] = 8
    dim: int = 6
    sample: int = 1_000
    seed: int = 0
    shrink: float = 0.5


@dataclass(frozen=True)
class SamplesQuantizer:
    codebooks: Codebooks
    first: int

    @property
    def settings(self):
        return {"kind": "samples", "first": self.first}

    def latents(self, vectors):
        return to_latents(vectors[:, self.first : self.first + self.codebooks.dim])

    def reconstruct(self, latents):
        return np.pad(latents.astype(np.float32), ((0, 0), (self.first, 128 - self.codebooks.dim - self.first)))

    def prepared(self, vectors):
        return np.asarray(vectors, np.float32)

    def tensors(self):
        return {"codebook_like": np.ones(3, np.float32)}


def fit_samples(vectors, config, *, items):
    rng = np.random.default_rng(config.seed)
    rows = rng.integers(0, len(vectors), (config.levels, config.codes))
    books = [vectors[part, 2 : 2 + config.dim] * config.shrink**level for level, part in enumerate(rows)]
    return SamplesQuantizer(Codebooks.of(books), first=2)


def restore_samples(settings, arrays, codebooks):
    assert arrays["codebook_like"].tolist() == [1, 1, 1]
    return SamplesQuantizer(codebooks, settings["first"])


def backwards(problem):
    """Like the suffix, but counting down."""
    from restd.index.collisions import suffix

    resolution = suffix(problem)
    sids = resolution.sids.copy()
    sids[:, -1] = resolution.sizes[-1] - 1 - sids[:, -1]
    return replace(resolution, sids=sids)


@pytest.fixture
def registered():
    QUANTIZERS.add(QuantizerKind("samples", "Items as codewords.", SamplesConfig, fit_samples, restore_samples))
    POLICIES.add(PolicyKind("backwards", "Number from the end.", backwards))
    yield
    QUANTIZERS.remove("samples")
    POLICIES.remove("backwards")


def test_a_new_quantiser_and_policy_build_save_load_and_add(registered, items_csv, tmp_path):
    config = IndexConfig("tfidf-svd", "samples", "backwards", samples=SamplesConfig(dim=8))
    built = build_index(Catalog(items_csv), tmp_path / "out", with_shape(config, seed=4))
    assert built.codebooks.values.shape == (3, 8, 8)
    assert built.table.unique == 300
    assert built.sids[:, -1].max() == built.sizes[-1] - 1
    loaded = SidIndex.load(tmp_path / "out")
    assert np.array_equal(loaded.sids, built.sids)
    assert loaded.quantizer.first == 2
    lines = []
    build_index(Catalog(items_csv), tmp_path / "out", with_shape(config, seed=4), notify=lines.append)
    assert "Kept the codebooks" in lines
    assert "Kept the Semantic IDs" in lines
    vectors = Embeddings.open(tmp_path / "out" / "embeddings").sample(2, seed=0)
    grown, _ = SidIndex.load(tmp_path / "out").add(["new"], vectors[:1] + 0.01)
    assert len(grown) == 301


def test_settings_of_a_new_quantiser_are_read_from_its_section(registered):
    config = IndexConfig.read({"index": {"quantizer": "samples"}, "samples": {"shrink": 0.25}})
    assert config.fit == SamplesConfig(shrink=0.25)
    with pytest.raises(ConfigError, match=r"Known: index, align, shape, kmeans, rqvae, .*samples"):
        IndexConfig.read({"sample": {}})


def test_unknown_names_and_settings_of_the_wrong_kind_are_refused():
    with pytest.raises(ConfigError, match=r"Unknown quantiser 'kmean'\. Did you mean 'kmeans'"):
        IndexConfig(quantizer="kmean")
    with pytest.raises(ConfigError, match="Unknown quantiser 'samples'"):
        IndexConfig(samples=SamplesConfig())
    with pytest.raises(ConfigError, match="settings of kmeans as KMeansConfig, got RqVaeConfig"):
        IndexConfig(kmeans=RqVaeConfig())
    with pytest.raises(ConfigError, match=r"\[kmeans\] .*iterationz"):
        IndexConfig.read({"kmeans": {"iterationz": 3}})


def test_shape_is_set_for_every_quantiser():
    config = with_shape(IndexConfig(kmeans=KMeansConfig(iterations=3)), levels=2, codes=(4, 8), dim=5, seed=7)
    for name in ("kmeans", "rqvae"):
        section = config.section(name)
        assert (section.levels, section.codes, section.dim, section.seed) == (2, (4, 8), 5, 7)
    assert config.fit.iterations == 3
    assert replace(config, quantizer="rqvae").fit == config.section("rqvae")


def test_listing_quantisers_and_policies_loads_neither_torch_nor_faiss():
    program = (
        "import json, sys\n"
        "from restd.quantize import QUANTIZERS\n"
        "from restd.index import POLICIES\n"
        "names = [*QUANTIZERS.describe(), *POLICIES.describe()]\n"
        "heavy = [name for name in ('torch', 'faiss', 'sklearn', 'pyarrow', 'transformers') if name in sys.modules]\n"
        "print(json.dumps([names, heavy]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names, heavy = json.loads(done.stdout)
    assert names[:2] == ["kmeans", "rqvae"]
    assert "single_substitution" in names
    assert heavy == []
