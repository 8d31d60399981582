"""Threads may share an encoder: none cuts another's texts."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from restd.encode import TruncatingTokenizer, load_encoder
from tests.models import WORDS, tiny_sentence_model

LONG = [" ".join(WORDS[number:] + WORDS[:number]) for number in range(12)] * 4


@pytest.fixture
def eager_switching():
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_every_thread_has_its_own_limit(tmp_path, eager_switching):
    encoder = load_encoder(tiny_sentence_model(tmp_path), device="cpu")
    texts = [*LONG, "mug"]

    def lengths_of(limit):
        return {(tuple(sorted({len(ids) for ids in rows})), cut) for rows, cut in (
            encoder.tokens(texts, limit=limit) for _ in range(20)
        )}  # fmt: skip

    limits = [4, 5, 6, 7, 8, 9, 10, 11]
    with ThreadPoolExecutor(len(limits)) as pool:
        for limit, lengths in zip(limits, pool.map(lengths_of, limits), strict=True):
            assert lengths == {((3, limit), len(LONG))}


def test_vectors_do_not_depend_on_other_threads(tmp_path, eager_switching):
    folder = tiny_sentence_model(tmp_path)
    expected = load_encoder(folder, device="cpu").encode(LONG[:12])
    encoder = load_encoder(folder, device="cpu")  # nobody has used it before the threads do

    def run(number):
        if number % 2:
            return [encoder.tokens(LONG, limit=4 + number) for _ in range(10)]
        return [encoder.encode(LONG[:12]) for _ in range(10)]

    with ThreadPoolExecutor(8) as pool:
        for number, results in enumerate(pool.map(run, range(8))):
            for result in results:
                if number % 2:
                    assert {len(ids) for ids in result[0]} == {4 + number}
                else:
                    assert np.allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("limit", [3, 7, 16, 99])
def test_ids_are_those_of_transformers(tmp_path, limit):
    from transformers import AutoTokenizer

    tiny_sentence_model(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bert")
    texts = ["", "mug", "red zebra", *LONG]
    ids, cut = TruncatingTokenizer(tokenizer).ids(texts, limit=limit)
    expected = tokenizer(texts, truncation=True, max_length=limit)["input_ids"]
    assert [row.tolist() for row in ids] == expected
    assert cut == sum(len(row) > limit for row in tokenizer(texts)["input_ids"])
