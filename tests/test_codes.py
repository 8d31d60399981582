"""The leaf room: codebooks that carry their sizes, one trajectory, and an import that loads nothing else."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from restd.codes import (
    PAPER_ENTROPY,
    PAPER_TEMPERATURE,
    Codebooks,
    as_tensor,
    assign,
    check_codes,
    last_residuals,
    nearest,
    trajectory,
)
from restd.errors import ArtifactError, ConfigError

HEAVY = ("restd.data", "restd.encode", "restd.artifacts", "restd.index", "restd.quantize", "restd.models")
HEAVY += ("faiss", "pyarrow", "pydantic", "rich", "sklearn", "scipy", "transformers", "typer", "accelerate")


def loaded_by(statement):
    """Modules that a fresh interpreter has loaded after a statement."""
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("room", ["restd.codes", "restd.distill"])
def test_importing_a_leaf_room_loads_torch_and_little_else(room):
    modules = loaded_by(f"import {room}")
    assert room in modules
    assert "torch" in modules
    assert [name for name in modules if name in HEAVY or name.startswith(tuple(f"{heavy}." for heavy in HEAVY))] == []


def test_the_check_of_loaded_modules_sees_a_heavy_one():
    assert "faiss" in loaded_by("import restd.codes, torch\nrestd.codes.nearest(torch.ones(1, 1), torch.ones(1, 1))")


def test_unequal_codebooks_are_padded_and_masked():
    books = Codebooks.of([torch.ones(2, 3), 2 * torch.ones(5, 3)])
    assert books.values.shape == (2, 5, 3)
    assert books.mask.tolist() == [[True, True, False, False, False], [True] * 5]
    assert books.level(0).shape == (2, 3)
    assert (books.values[0, 2:] == 0).all()


@pytest.mark.parametrize("sizes", [(4,), (4, 4, 4), (4, 5), (0, 4), (-1, 4)])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(ConfigError, match="Expected 2 codebook sizes between 1 and 4"):
        Codebooks(torch.zeros(2, 4, 3), sizes)


def test_empty_and_enormous_codebooks_are_refused():
    for books in ([], [torch.ones(0, 2)], [torch.ones(3, 2), torch.ones(0, 2)]):
        with pytest.raises(ConfigError, match="at least one code"):
            Codebooks.of(books)
    with pytest.raises(ConfigError, match="at most 32,767 codes"):
        Codebooks(torch.zeros(1, 32_768, 1), (32_768,))


def test_sizes_are_stored_with_the_codewords():
    books = Codebooks.of([torch.randn(2, 3), torch.randn(5, 3)])
    arrays = books.to_arrays()
    back = Codebooks.from_arrays(arrays)
    assert back.sizes == (2, 5)
    assert torch.equal(back.values, books.values)
    assert back.fingerprint() == books.fingerprint()
    del arrays["codebook_sizes"]  # as files were before
    assert Codebooks.from_arrays(arrays, sizes=[2, 5]).fingerprint() == books.fingerprint()
    with pytest.raises(ArtifactError, match="'codebook_sizes'"):
        Codebooks.from_arrays(arrays)


def test_the_fingerprint_is_that_of_stored_indexes():
    books = Codebooks.of([np.arange(6).reshape(2, 3) / 7, np.arange(12).reshape(4, 3) / 3])
    assert books.fingerprint() == "7fe429358ec77c90066f5f657b643977d55c43ca70cd66b0e81da8118ea84e40"
    assert Codebooks(books.values, (3, 4)).fingerprint() != books.fingerprint(), "sizes are part of it"


def test_read_only_arrays_are_copied_and_others_shared():
    array = np.zeros(3, np.float32)
    as_tensor(array)[0] = 1.0
    assert array[0] == 1.0
    array.flags.writeable = False
    as_tensor(array)[1] = 1.0
    assert array[1] == 0.0


def test_nearest_is_the_smallest_distance_and_the_first_of_equals():
    generator = torch.Generator().manual_seed(0)
    vectors, codewords = torch.randn(200, 4, generator=generator), torch.randn(9, 4, generator=generator)
    distances = (vectors[:, None].double() - codewords.double()).square().sum(-1)
    assert torch.equal(nearest(vectors, codewords), distances.argmin(1))
    twins = torch.cat([codewords, codewords])
    assert torch.equal(nearest(vectors, twins), distances.argmin(1))
    assert nearest(vectors[:0], codewords).shape == (0,)


def ladder():
    """Two levels on a line: whole numbers, then quarters."""
    return Codebooks.of([torch.tensor([[0.0], [4.0], [8.0]]), torch.tensor([[-0.25], [0.25]])])


def test_codebooks_at_both_ends():
    assert Codebooks(torch.zeros(1, 32_767, 1), (32_767,)).mask.all()
    smallest = Codebooks.of([torch.ones(1, 1)])
    assert (smallest.levels, smallest.dim, smallest.sizes) == (1, 1, (1,))


def test_codes_and_residuals_by_hand(monkeypatch):
    """In blocks of two rows as in one."""
    latents = torch.tensor([[4.5], [7.0], [-1.0], [0.25], [8.25]])
    wanted = [[1, 1], [2, 0], [0, 0], [0, 1], [2, 1]]
    for rows in (65_536, 2):
        monkeypatch.setattr("restd.codes.codebooks._ROWS", rows)
        codes = assign(latents, ladder())
        assert codes.tolist() == wanted
        assert last_residuals(latents, codes, ladder()).flatten().tolist() == [0.25, -0.75, -0.75, 0.0, 0.0]
    longer = torch.tensor([[1, 1, 9]])  # a disambiguation code
    assert trajectory(latents[:1], longer, ladder()).flatten().tolist() == [4.5, 0.5, 0.25]


def test_codes_outside_their_codebook_are_named():
    check_codes(torch.tensor([[0, 0], [2, 1]]), ladder())
    check_codes(torch.tensor([[2, 1, 99]]), ladder())
    with pytest.raises(ConfigError, match="row 1 has code 2 at level 2, whose codebook has codes 0 to 1"):
        check_codes(torch.tensor([[2, 1], [0, 2]]), ladder())
    with pytest.raises(ConfigError, match="row 0 has code -1 at level 1, whose codebook has codes 0 to 2"):
        check_codes(torch.tensor([[-1, 0]]), ladder())


def test_names_of_stored_codebooks():
    arrays = ladder().to_arrays()
    assert Codebooks.are_in(arrays)
    assert all(Codebooks.is_own_name(name) for name in arrays)
    assert not Codebooks.is_own_name("latents")
    for name in arrays:
        assert not Codebooks.are_in({name: arrays[name]})


def test_the_papers_numbers():
    assert (PAPER_TEMPERATURE, PAPER_ENTROPY) == (0.2, 0.57)


def test_the_nearest_codeword_is_the_same_by_products_as_by_faiss(rng):
    from restd.codes.codebooks import nearest_by_products

    codewords = torch.from_numpy(rng.normal(size=(9, 4)).astype(np.float32))
    vectors = torch.from_numpy(rng.normal(size=(200, 4)).astype(np.float32))
    expected = torch.cdist(vectors.double(), codewords.double()).argmin(1)
    assert torch.equal(nearest(vectors, codewords), expected)
    assert torch.equal(nearest_by_products(vectors, codewords), expected)
    assert nearest_by_products(vectors[:0], codewords).tolist() == []
