"""What decoding costs: our search against `generate`, against its own matrix products, and with ever more SIDs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from restd.bench.compact import bench_compact
from restd.bench.measure import machine, timed
from restd.bench.trie import random_sids
from restd.encode import Inputs
from restd.index.trie import Trie
from restd.models import Memory, T5Backbone, T5Config
from restd.models.code_t5 import CodeT5
from restd.models.contract import seeded
from restd.models.t5_stepper import T5Stepper
from restd.search import Beams, beam_search

_LEVELS, _CODES = 4, 256
_SIZES = (_CODES,) * _LEVELS
_WORDS, _QUERY = 32_128, 16
_BEAM = 100
_BATCHES = (1, 8)
_SMALL, _LARGE = 10_000, 5_000_000
_TIE = 1e-5
_WANTED = {
    "max_score_difference": 1e-4,
    "speedup_b1": 2.5,
    "speedup_b8": 4.0,
    "constraint_overhead": 1.05,
    "catalogue_scaling": 1.1,
}


def bench_decode(sids: int = 100_000, rounds: int = 7) -> dict[str, Any]:
    """Search with a random model of T5-small's size, all sides turn by turn, then the compact retriever.

    Both sides start from the same memory and sum the log-probabilities of the four codes over the whole vocabulary.
    Overheads are the worst of all batches.
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
    alike, seconds = [], {}
    for batch in _BATCHES:
        memory = _memory(model, batch)
        alike.append(compare(beam_search(stepper, memory, tries["stored"], width=_BEAM), *peer.scored(memory)))
        seconds[batch] = turns(
            {
                "transformers": lambda memory=memory: peer(memory),
                "unconstrained": lambda memory=memory: beam_search(stepper, memory, None, width=_BEAM),
                "products": lambda memory=memory: products(stepper, memory),
                **{
                    name: lambda memory=memory, trie=trie: beam_search(stepper, memory, trie, width=_BEAM)
                    for name, trie in tries.items()
                },
            },
            rounds,
        )
    speedups = {f"speedup_b{batch}": _ratio(held, "transformers", "stored") for batch, held in seconds.items()}
    return {
        "identical": all(held["identical"] for held in alike),
        "same_place": float(np.mean([held["same_place"] for held in alike])),
        "max_score_difference": max(held["max_score_difference"] for held in alike),
        **speedups,
        "over_matmul_floor": max(_ratio(held, "stored", "products") for held in seconds.values()),
        "constraint_overhead": max(_ratio(held, "stored", "unconstrained") for held in seconds.values()),
        "catalogue_scaling": max(_ratio(held, "large", "small") for held in seconds.values()),
        "wanted": _WANTED,
        "seconds": {
            f"b{batch}": {name: float(np.median(values)) for name, values in held.items()}
            for batch, held in seconds.items()
        },
        "compact": bench_compact(tries["stored"], _SIZES, beam=_BEAM),
        "sids": sids,
        "beam": _BEAM,
        "rounds": rounds,
        "machine": machine(),
    }


def random_t5() -> T5Backbone:
    """T5-small's shape with code tokens behind its words, and no words to go with them."""
    from transformers import T5Config as Shape
    from transformers import T5ForConditionalGeneration

    shape = Shape(vocab_size=_WORDS + _LEVELS * _CODES, d_model=512, d_kv=64, d_ff=2_048, num_layers=6, num_heads=8)
    shape.decoder_start_token_id = 0
    with seeded(0):
        model = T5ForConditionalGeneration(shape)
    return T5Backbone(model, _CodeTokens(), _SIZES, T5Config()).eval()


class _CodeTokens:
    """All that the backbone asks a tokenizer for when nothing is tokenized."""

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        level = "abcd".index(tokens[0][1])
        return [_WORDS + level * _CODES + code for code in range(len(tokens))]


class Generate:
    """The same search as one asks `transformers` for it."""

    def __init__(self, model: CodeT5, table: np.ndarray, *, beam: int) -> None:
        self.model, self.beam, self.levels = model.model, beam, len(model.sizes)
        self.first = model.tokens[:, 0]
        self.start = self.model.config.decoder_start_token_id
        found: dict[tuple[int, ...], set[int]] = {}
        for row in (table + self.first.numpy()).tolist():
            for level, token in enumerate(row):
                found.setdefault((self.start, *row[:level]), set()).add(token)
        self.allowed = {prefix: sorted(tokens) for prefix, tokens in found.items()}

    def __call__(self, memory: Memory, **settings: Any) -> Any:
        """The best SIDs as tokens behind the start."""
        from transformers.modeling_outputs import BaseModelOutput

        return self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=memory.states),  # pyright: ignore[reportArgumentType]
            attention_mask=memory.mask.long(),
            prefix_allowed_tokens_fn=lambda _, tokens: self.allowed[tuple(tokens.tolist())],
            num_beams=self.beam,
            num_return_sequences=self.beam,
            max_new_tokens=self.levels,  # ends right behind the last code, so that no end is scored
            length_penalty=0.0,  # scores are sums
            do_sample=False,
            **settings,
        )

    def scored(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """SIDs and scores, [query, beam, level] and [query, beam]; keeping scores costs it, so this is not timed."""
        found = self(memory, return_dict_in_generate=True, output_scores=True)
        queries = len(memory.mask)
        sids = (found.sequences[:, 1:] - self.first).view(queries, self.beam, -1)
        return sids, found.sequences_scores.view(queries, -1)


def compare(ours: Beams, sids: Tensor, scores: Tensor) -> dict[str, Any]:
    """Whether both rank alike; SIDs whose scores are nearer than rounding may change places."""
    same = (ours.sids == sids).all(dim=-1)
    apart = (ours.scores - scores).abs()
    return {
        "identical": bool((same | (apart <= _TIE)).all()),
        "same_place": float(same.float().mean()),
        "max_score_difference": float(apart.max()),
    }


@torch.inference_mode()
def products(stepper: T5Stepper, memory: Memory) -> None:
    """Multiply what a search multiplies, of the same shapes, and do nothing else."""
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


def turns(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, np.ndarray]:
    """Seconds of every round of each side; nobody always comes first, and the first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            spent, _ = timed(sides[name])
            if number:
                seconds[name].append(spent)
    return {name: np.array(values) for name, values in seconds.items()}


def _ratio(seconds: dict[str, np.ndarray], above: str, below: str) -> float:
    """Ratio of the medians that are printed."""
    return float(np.median(seconds[above]) / np.median(seconds[below]))
