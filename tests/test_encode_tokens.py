"""Texts of different lengths, and token states that are made once."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.encode import Ragged, TokenEncoder, fit_tfidf_svd, load_encoder, states_of
from restd.encode import tokens as room
from restd.encode.shards import open_partial
from restd.encode.tokens import texts_hash
from tests.models import TEXTS, WORDS, tiny_sentence_model

LINES = ["red mug", "blue", "", "small oak desk lamp", "steel kettle", "glass cable red", "mug mug mug mug mug mug"]


class Vectors:
    """An encoder without token states that counts what it encodes, and may be interrupted."""

    dim = 3
    identity: ClassVar = {"name": "vectors", "dim": 3}

    def __init__(self, stop=None):
        self.seen, self.stop = [], stop

    def encode(self, texts):
        if self.stop is not None and len(self.seen) >= self.stop:
            raise KeyboardInterrupt
        self.seen.extend(texts)
        return np.array([[len(text), text.count("m"), 1.0] for text in texts], np.float32)


class Tokens(Vectors):
    """One token a word; its state is its number, and the number of words of the text."""

    dim = token_dim = 2
    identity: ClassVar = {"name": "tokens", "dim": 2}

    def tokens(self, texts, *, limit):
        if self.stop is not None and len(self.seen) >= self.stop:
            raise KeyboardInterrupt
        self.seen.extend(texts)
        ids = [np.array([WORDS.index(word) + 1 for word in text.split()], np.int64) for text in texts]
        return [row[:limit] for row in ids], sum(len(row) > limit for row in ids)

    def token_states(self, ids, mask):
        return torch.stack([ids.float(), mask.sum(1, keepdim=True).float().expand(ids.shape)], dim=-1)


def rows_of(ragged):
    """Every text's values alone."""
    return [ragged.batch(np.array([row])).values[0, : ragged.lengths[row]].tolist() for row in range(len(ragged))]


def words_of(line, limit=99):
    words = line.split()[:limit]
    return [[WORDS.index(word) + 1.0, float(len(words))] for word in words]


@st.composite
def parts(draw):
    lines = st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=4)
    return draw(st.lists(lines, min_size=1, max_size=4)), draw(st.booleans()), draw(st.randoms(use_true_random=False))


@given(parts())
def test_a_batch_across_parts_is_what_a_loop_would_pad(drawn):
    numbers, states, random = drawn
    made = [
        [np.array([[n, -n] for n in line], np.float16).reshape(-1, 2) if states else np.array(line, np.int64)
         for line in part]
        for part in numbers
    ]  # fmt: skip
    ragged = Ragged.joined([Ragged.of(part, cut=len(part)) for part in made])
    lines = [line for part in numbers for line in part]
    assert len(ragged) == len(lines) == ragged.cut
    rows = [random.randrange(len(lines)) for _ in range(5)] if lines else []
    batch = ragged.batch(np.array(rows, np.int64))
    longest = max([1, *(len(lines[row]) for row in rows)])
    assert batch.mask.shape == (len(rows), longest)
    for place, row in enumerate(rows):
        line = lines[row] + [0] * (longest - len(lines[row]))
        assert batch.values[place].tolist() == ([[n, -n] for n in line] if states else line)
        assert batch.mask[place].sum() == len(lines[row])
    if rows:
        assert batch.values.dtype == (torch.float32 if states else torch.int64)


def test_shards_hold_texts_one_after_another():
    ragged = Ragged.of_shards([(torch.arange(3), np.array([1, 2])), (torch.arange(3, 7), np.array([0, 4]))], cut=2)
    assert rows_of(ragged) == [[0], [1, 2], [], [3, 4, 5, 6]]
    assert ragged.cut == 2
    assert len(Ragged.of_shards([])) == 0


@pytest.mark.parametrize("cached", [False, True])
def test_states_are_the_encoders_text_by_text(tmp_path, monkeypatch, cached):
    monkeypatch.setattr(room, "_SHARD_TEXTS", 3)
    monkeypatch.setattr(room, "_BATCH", 2)
    states = states_of(Tokens(), LINES, limit=4, cache=tmp_path / "states" if cached else None)
    assert rows_of(states) == [words_of(line, 4) for line in LINES]
    assert states.cut == 1
    assert len(states.shards) == (3 if cached else 1)
    assert states.shards[0].dtype == torch.float16


@pytest.mark.parametrize("cached", [False, True])
def test_an_encoder_without_token_states_gives_one_a_text(tmp_path, monkeypatch, cached):
    monkeypatch.setattr(room, "_SHARD_TEXTS", 3)
    encoder = Vectors()
    assert not isinstance(encoder, TokenEncoder)
    states = states_of(encoder, LINES, limit=4, cache=tmp_path / "states" if cached else None)
    assert rows_of(states) == [[[float(len(line or " ")), float(line.count("m")), 1.0]] for line in LINES]
    assert states.cut == 0


@pytest.mark.parametrize("kind", [Vectors, Tokens])
def test_what_is_there_is_not_made_again(tmp_path, kind):
    encoder = kind()
    first = states_of(encoder, LINES, limit=4, cache=tmp_path / "states")
    assert len(encoder.seen) == len(LINES)
    again = states_of(encoder, LINES, limit=4, cache=tmp_path / "states")
    assert len(encoder.seen) == len(LINES)
    assert rows_of(again) == rows_of(first)
    assert again.cut == first.cut
    assert [entry.name for entry in tmp_path.glob("[!.]*")] == ["states"]


def test_of_two_that_want_the_same_states_one_makes_them(tmp_path):
    class Slow(Tokens):
        def tokens(self, texts, *, limit):
            time.sleep(0.3)
            return super().tokens(texts, limit=limit)

    both = [Slow(), Slow()]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda encoder: states_of(encoder, LINES, limit=4, cache=tmp_path / "states"), both)
    assert rows_of(one) == rows_of(other) == [words_of(line, 4) for line in LINES]
    assert sorted(len(encoder.seen) for encoder in both) == [0, len(LINES)]


@pytest.mark.parametrize("change", ["order", "text", "limit", "encoder"])
def test_what_was_made_for_something_else_is_made_again(tmp_path, monkeypatch, change):
    encoder = Tokens()
    states_of(encoder, LINES, limit=4, cache=tmp_path / "states")
    texts = {"order": LINES[::-1], "text": [*LINES[:-1], "mug"]}.get(change, LINES)
    if change == "encoder":
        monkeypatch.setattr(Tokens, "identity", {"name": "tokens", "dim": 2, "version": 2})
    limit = 3 if change == "limit" else 4
    states = states_of(encoder, texts, limit=limit, cache=tmp_path / "states")
    assert len(encoder.seen) == 2 * len(LINES)
    assert rows_of(states) == [words_of(line, limit) for line in texts]


@pytest.mark.parametrize("kind", [Vectors, Tokens])
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(room, "_SHARD_TEXTS", 2)
    stopped = kind(stop=4)
    with pytest.raises(KeyboardInterrupt):
        states_of(stopped, LINES, limit=4, cache=tmp_path / "states")
    assert not (tmp_path / "states").exists()
    resumed = kind()
    states = states_of(resumed, LINES, limit=4, cache=tmp_path / "states")
    assert resumed.seen == [line or (" " if kind is Vectors else "") for line in LINES[4:]]
    assert rows_of(states) == rows_of(states_of(kind(), LINES, limit=4))
    assert states.cut == states_of(kind(), LINES, limit=4).cut


def test_what_an_interrupted_run_left_is_not_used_for_other_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_SHARD_TEXTS", 2)
    with pytest.raises(KeyboardInterrupt):
        states_of(Tokens(stop=4), LINES, limit=4, cache=tmp_path / "states")
    states = states_of(Tokens(), LINES[::-1], limit=4, cache=tmp_path / "states")
    assert rows_of(states) == [words_of(line, 4) for line in LINES[::-1]]


def test_shards_of_another_size_are_not_mixed(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_SHARD_TEXTS", 2)
    with pytest.raises(KeyboardInterrupt):
        states_of(Tokens(stop=4), LINES, limit=4, cache=tmp_path / "states")
    monkeypatch.setattr(room, "_SHARD_TEXTS", 3)
    states = states_of(Tokens(), LINES, limit=4, cache=tmp_path / "states")
    assert rows_of(states) == [words_of(line, 4) for line in LINES]


def test_a_partial_folder_belongs_to_its_plan(tmp_path):
    folder = open_partial(tmp_path / "job", {"a": 1, "b": 2})
    (folder / "done").touch()
    assert (open_partial(tmp_path / "job", {"b": 2, "a": 1}) / "done").exists()
    assert not (open_partial(tmp_path / "job", {"a": 2}) / "done").exists()


def test_texts_are_told_apart_by_where_they_end():
    assert texts_hash(["ab", "c"]) != texts_hash(["a", "bc"])
    assert texts_hash(["ab", "c"]) == texts_hash(("ab", "c"))


@pytest.mark.parametrize("encoder", [Vectors(), Tokens(), fit_tfidf_svd(TEXTS, dim=4)], ids=["v", "t", "tfidf"])
def test_no_texts_are_no_error(tmp_path, encoder):
    for cache in (None, tmp_path / "states"):
        nothing = states_of(encoder, [], limit=4, cache=cache)
        assert len(nothing) == 0
        some = Ragged.joined([nothing, states_of(encoder, ["red mug"], limit=4)])
        assert some.batch(np.array([0])).values.shape[-1] == encoder.dim


# -- sentence-transformers --------------------------------------------------------------------------------------------


def test_pooled_token_states_are_the_sentence_vectors(sentence_encoder):
    states = states_of(sentence_encoder, TEXTS[:9], limit=16)
    pooled = np.stack([np.mean(rows, axis=0) for rows in rows_of(states)])
    assert np.allclose(pooled, sentence_encoder.encode(TEXTS[:9]), atol=2e-3)
    assert not np.allclose(pooled[1:], sentence_encoder.encode(TEXTS[:8]), atol=2e-2)


def test_long_texts_are_cut_and_counted(sentence_encoder):
    texts = ["", "mug", " ".join(["red"] * 5), " ".join(["red"] * 30)]
    ids, cut = sentence_encoder.tokens(texts, limit=7)
    assert [len(row) for row in ids] == [2, 3, 7, 7]
    assert cut == 1
    assert len({row[-1] for row in ids}) == 1
    assert ids[1][1] != ids[2][1]
    ids, cut = sentence_encoder.tokens(texts, limit=99)
    assert [len(row) for row in ids] == [2, 3, 7, 16], "the model itself reads no more than 16"
    assert cut == 1
    assert sentence_encoder.tokens([], limit=7) == ([], 0)
    assert states_of(sentence_encoder, texts, limit=7).cut == 1


def test_a_text_has_the_same_states_in_any_company(sentence_encoder):
    alone = rows_of(states_of(sentence_encoder, ["mug"], limit=16))[0]
    among = rows_of(states_of(sentence_encoder, [TEXTS[4], "mug", ""], limit=16))[1]
    assert np.allclose(alone, among, atol=2e-3)


def test_states_may_be_wider_than_vectors(tmp_path):
    encoder = load_encoder(tiny_sentence_model(tmp_path, dense=5), device="cpu")
    assert encoder.encode(["red mug"]).shape == (1, 5)
    assert room.states_dim(encoder) == states_of(encoder, ["red mug"], limit=8).shards[0].shape[1] == 8


def test_a_model_without_a_transformer_gives_one_state_a_text(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from transformers import AutoTokenizer

    tiny_sentence_model(tmp_path)
    words = StaticEmbedding(AutoTokenizer.from_pretrained(tmp_path / "bert"), embedding_dim=6)
    SentenceTransformer(modules=[words], device="cpu").save(str(tmp_path / "static"))
    encoder = load_encoder(str(tmp_path / "static"), device="cpu")
    states = states_of(encoder, ["red mug", ""], limit=8)
    assert states.lengths.tolist() == [1, 1]
    assert states.shards[0].shape[1] == room.states_dim(encoder) == 6
