"""Time of decoding: our search against `generate`, against its own matrix products, and with more and more SIDs."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from restd.bench.compact import bench_compact
from restd.bench.measure import interleaved, machine
from restd.bench.trie import random_sids
from restd.codes.trie import Trie
from restd.encode import Inputs
from restd.models import Memory, T5Backbone, T5Config
from restd.models.contract import seeded
from restd.models.sid_t5 import SidT5
from restd.models.t5_stepper import T5Stepper
from restd.search import Beams, beam_search

_LEVELS, _CODES = 4, 256
_SIZES = (_CODES,) * _LEVELS
_WORDS, _QUERY = 32_128, 16
_BEAM = 100
_BATCHES = (1, 8)
_SMALL, _LARGE = 10_000, 5_000_000
_TIE = 1e-5
_TARGETS = {
    "max_score_difference": 1e-4,
    "speedup_b1": 2.5,
    "speedup_b8": 4.0,
    "constraint_overhead": 1.05,
    "catalogue_scaling": 1.1,
}


def bench_decode(sids: int = 100_000, rounds: int = 7) -> dict[str, Any]:
    """Search with a random model of T5-small's size, all sides in turn; then the compact retriever.

    Both sides start from the same memory and sum the log-probabilities of the four codes over the whole vocabulary.
    Overheads are the worst over all batch sizes.
    """
    table = random_sids(sids)
    tries = {
        "stored": Trie.of(table, _SIZES),
        "small": Trie.of(random_sids(_SMALL), _SIZES),
        "large": Trie.of(random_sids(_LARGE), _SIZES),
    }
    model = random_t5()
    stepper = T5Stepper(model)
    peer = Generate(model, table, beam=_BEAM)
    agreements, seconds = [], {}
    for batch in _BATCHES:
        memory = _memory(model, batch)
        agreements.append(compare(beam_search(stepper, memory, tries["stored"], width=_BEAM), *peer.scored(memory)))
        seconds[batch] = interleaved(
            {
                "transformers": lambda _, memory=memory: peer(memory),
                "unconstrained": lambda _, memory=memory: beam_search(stepper, memory, None, width=_BEAM),
                "products": lambda _, memory=memory: products(stepper, memory),
                **{
                    name: lambda _, memory=memory, trie=trie: beam_search(stepper, memory, trie, width=_BEAM)
                    for name, trie in tries.items()
                },
            },
            rounds,
        )
    speedups = {f"speedup_b{batch}": _ratio(times, "transformers", "stored") for batch, times in seconds.items()}
    return {
        "identical": all(agreement["identical"] for agreement in agreements),
        "same_place": float(np.mean([agreement["same_place"] for agreement in agreements])),
        "max_score_difference": max(agreement["max_score_difference"] for agreement in agreements),
        **speedups,
        "over_matmul_floor": max(_ratio(times, "stored", "products") for times in seconds.values()),
        "constraint_overhead": max(_ratio(times, "stored", "unconstrained") for times in seconds.values()),
        "catalogue_scaling": max(_ratio(times, "large", "small") for times in seconds.values()),
        "wanted": _TARGETS,
        "seconds": {
            f"b{batch}": {name: float(np.median(values)) for name, values in times.items()}
            for batch, times in seconds.items()
        },
        "compact": bench_compact(tries["stored"], _SIZES, beam=_BEAM),
        "sids": sids,
        "beam": _BEAM,
        "rounds": rounds,
        "machine": machine(),
    }


def random_t5() -> T5Backbone:
    """A random model of T5-small's shape, with code tokens after its words and no tokenizer."""
    from transformers import T5Config as Shape
    from transformers import T5ForConditionalGeneration

    shape = Shape(vocab_size=_WORDS + _LEVELS * _CODES, d_model=512, d_kv=64, d_ff=2_048, num_layers=6, num_heads=8)
    shape.decoder_start_token_id = 0
    with seeded(0):
        model = T5ForConditionalGeneration(shape)
    return T5Backbone(model, _CodeTokens(), _SIZES, T5Config()).eval()


class _CodeTokens:
    """The one method of a tokenizer that the backbone calls when nothing is tokenized."""

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        level = "abcd".index(tokens[0][1])
        return [_WORDS + level * _CODES + code for code in range(len(tokens))]


class Generate:
    """The same search by `transformers`."""

    def __init__(self, model: SidT5, table: np.ndarray, *, beam: int) -> None:
        self.model, self.beam, self.levels = model.model, beam, len(model.sizes)
        self.first = model.tokens[:, 0]
        self.start = self.model.config.decoder_start_token_id
        children: dict[tuple[int, ...], set[int]] = {}
        for row in (table + self.first.numpy()).tolist():
            for level, token in enumerate(row):
                children.setdefault((self.start, *row[:level]), set()).add(token)
        self.allowed = {prefix: sorted(tokens) for prefix, tokens in children.items()}

    def __call__(self, memory: Memory, **settings: Any) -> Any:
        """Tokens of the best SIDs, after the start token."""
        from transformers.modeling_outputs import BaseModelOutput

        return self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=memory.states),  # pyright: ignore[reportArgumentType]
            attention_mask=memory.mask.long(),
            prefix_allowed_tokens_fn=lambda _, tokens: self.allowed[tuple(tokens.tolist())],
            num_beams=self.beam,
            num_return_sequences=self.beam,
            max_new_tokens=self.levels,  # ends right after the last code, so that no end token is scored
            length_penalty=0.0,  # scores are sums
            do_sample=False,
            **settings,
        )

    def scored(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """SIDs and scores, [query, beam, level] and [query, beam]; not timed, because keeping scores costs time."""
        output = self(memory, return_dict_in_generate=True, output_scores=True)
        queries = len(memory.mask)
        sids = (output.sequences[:, 1:] - self.first).view(queries, self.beam, -1)
        return sids, output.sequences_scores.view(queries, -1)


def compare(ours: Beams, sids: Tensor, scores: Tensor) -> dict[str, Any]:
    """Whether both rankings agree; SIDs whose scores differ by no more than rounding may swap places."""
    same = (ours.sids == sids).all(dim=-1)
    difference = (ours.scores - scores).abs()
    return {
        "identical": bool((same | (difference <= _TIE)).all()),
        "same_place": float(same.float().mean()),
        "max_score_difference": float(difference.max()),
    }


@torch.inference_mode()
def products(stepper: T5Stepper, memory: Memory) -> None:
    """The matrix products of a search, with the same shapes, and nothing else."""
    queries, positions, width = memory.states.shape
    states = {
        (rows, wide): torch.ones(rows, wide)
        for rows in (queries, queries * _BEAM, queries * positions)
        for wide in (width, len(stepper.decoder.layers[0].feed_out.weight))
    }
    for layer in stepper.decoder.layers:
        layer.memory(states[queries * positions, width])
    for rows in (queries, *[queries * _BEAM] * (_LEVELS - 1)):
        for layer in stepper.decoder.layers:
            for part in (layer.own, layer.own_out, layer.query, layer.query_out, layer.feed, layer.feed_out):
                part(states[rows, len(part.weight)])
        for words in stepper.head.words:
            torch.mm(states[rows, width], words)
        torch.mm(states[rows, width], stepper.head.weight[0])


def _memory(model: T5Backbone, batch: int) -> Memory:
    tokens = torch.randint(1, _WORDS, (batch, _QUERY), generator=torch.Generator().manual_seed(batch))
    with torch.inference_mode():
        return model.encode(Inputs(tokens, torch.ones_like(tokens, dtype=torch.bool)))


def _ratio(seconds: dict[str, np.ndarray], above: str, below: str) -> float:
    """Ratio of two medians."""
    return float(np.median(seconds[above]) / np.median(seconds[below]))
