"""What recommending costs: training and ranking, each against plain `transformers`."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from restd.bench.decode import Generate, compare, turns
from restd.bench.measure import machine
from restd.bench.train import PlainLoop, examples_of, interleaved, make_loop, updates_of
from restd.data import Histories, Prefixes, leave_one_out
from restd.data.shop import ShopperSpec, shoppers_source
from restd.encode import Ragged
from restd.index.trie import Trie
from restd.models import Memory, SidHistories, TigerBackbone, TigerConfig
from restd.models.code_t5 import CodeT5
from restd.models.tiger import PAD
from restd.search import Beams, beam_search
from restd.train.examples import Pairs

_SIZES = (256, 256, 256, 4)
_ITEMS = 2_000
_BATCH, _MICRO = 512, 128
_BEAM, _ASKED = 20, 32
_IGNORED = -100
_WANTED = {"throughput_ratio": 2.0, "eval_ratio": 4.0}


def bench_recommend(updates: int = 6, rounds: int = 5, users: int = 4_000) -> dict[str, Any]:
    """Time updates and rankings of TIGER and of a T5 of the same size and weights, turn by turn.

    Both sides learn from the same prefixes of the generated shoppers, 512 an update. The plain side shuffles them and
    pads to the longest of each 128, as one writes it; ours reads neighbours in length together, once with its own
    layers, once with those of `transformers`, and once with an encoder that sees only what came before and so reads
    up to eight prefixes of a user in one pass (`causal_ratio`, over our own that sees everything). Then both rank the
    whole catalogue for test users with a beam of 20, reading the histories included: ours in order of length,
    `generate` with `prefix_allowed_tokens_fn`, in the order they come.
    """
    histories = some_shoppers(users)
    sids = some_sids()
    with tempfile.TemporaryDirectory() as folder:
        training = _training(leave_one_out(histories, "train"), sids, Path(folder), updates)
    ranking = _ranking(leave_one_out(histories, "test"), sids, rounds)
    return {
        "throughput_ratio": training["restd"] / training["transformers"],
        "layers_ratio": training["restd"] / training["restd_with_their_layers"],
        "causal_ratio": training["restd_causal"] / training["restd"],
        "eval_ratio": ranking.pop("eval_ratio"),
        **ranking,
        "wanted": _WANTED,
        "examples_per_second": training,
        "updates": updates,
        "rounds": rounds,
        "batch": {"training": _BATCH, "padded_together": _MICRO, "ranking": _ASKED},
        "beam": _BEAM,
        "machine": machine(),
    }


def some_shoppers(users: int) -> Histories:
    """Histories over the catalogue that `some_sids` numbers."""
    source = shoppers_source(ShopperSpec(items=_ITEMS, users=users))
    assert source.histories is not None
    table = pa.Table.from_batches(list(source.histories()))
    ids = pa.concat_arrays([batch.column("id") for batch in source.items()])
    return Histories.of_table(table).over(ids)[0]


def some_sids() -> np.ndarray:
    """Unique codes for every item: three levels at random, and a number where these agree."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 256, (_ITEMS, 3))
    drawn[:, 0] //= 4  # beams branch as in a catalogue whose first codes are shared
    seen: dict[tuple[int, ...], int] = {}
    last = []
    for row in map(tuple, drawn.tolist()):
        last.append(seen.get(row, 0))
        seen[row] = last[-1] + 1
    return np.column_stack([drawn, last])


def _read(model: TigerBackbone, held: Prefixes, sids: np.ndarray) -> Ragged:
    return model.prepare(SidHistories(sids[held.of.taken], held.begin, held.end))


def _training(held: Prefixes, sids: np.ndarray, folder: Path, updates: int) -> dict[str, float]:
    """Examples a second of both sides."""
    theirs = TigerBackbone.made(_SIZES, TigerConfig(), seed=0)
    examples = examples_of(theirs, _pairs(held), _read(theirs, held, sids), torch.from_numpy(sids))
    plain = PlainLoop(theirs.model, examples, _padded, batch=_BATCH, micro=_MICRO)
    sides = {
        "restd": tiger_updates(held, sids, folder, batch=_BATCH, micro=_MICRO),
        "restd_with_their_layers": tiger_updates(held, sids, folder, batch=_BATCH, micro=_MICRO, kind=_TheirLayers),
        "restd_causal": tiger_updates(held, sids, folder, batch=_BATCH, micro=_MICRO, causal=True),
        "transformers": plain.steps(),
    }
    seconds = interleaved(sides, updates)
    # means, not medians: micro-batches of neighbours in length differ in cost, and all of them must be paid
    return {name: float(_BATCH / values.mean()) for name, values in seconds.items()}


class _TheirLayers(TigerBackbone):
    """TIGER as it would be with the layers of `transformers`."""

    encode = CodeT5.encode
    states = CodeT5.states


def tiger_updates(
    held: Prefixes,
    sids: np.ndarray,
    folder: Path,
    *,
    batch: int,
    micro: int,
    kind: type[TigerBackbone] = TigerBackbone,
    causal: bool = False,
) -> Iterator[None]:
    """Updates of a TIGER of the paper's size."""
    model = kind.made(_SIZES, TigerConfig(causal=causal), seed=0)
    table = torch.from_numpy(sids)
    return updates_of(make_loop(model, _pairs(held), _read(model, held, sids), table, folder, {}, batch, micro))


def _pairs(held: Prefixes) -> Pairs:
    return Pairs(held, np.arange(len(held)), held.targets, len(held))


def _padded(examples: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
    """A batch as `transformers` takes it."""
    fill = {"input_ids": PAD, "attention_mask": 0, "labels": _IGNORED}
    return {
        name: pad_sequence([torch.tensor(held[name]) for held in examples], batch_first=True, padding_value=value)
        for name, value in fill.items()
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """Test users, as both sides read them."""

    model: TigerBackbone
    tokens: Ragged
    order: np.ndarray

    @torch.inference_mode()
    def memories(self, batch: int) -> list[Memory]:
        """What the encoder makes of them, a few at a time."""
        rows = [self.order[start : start + batch] for start in range(0, len(self.order), batch)]
        return [self.model.encode(self.tokens.batch(part)) for part in rows]


def _ranking(held: Prefixes, sids: np.ndarray, rounds: int) -> dict[str, Any]:
    """Users a second of both sides, and whether they rank alike."""
    model = TigerBackbone.made(_SIZES, TigerConfig(), seed=1).eval()
    trie, stepper, peer = Trie.of(sids, _SIZES), model.stepper(), Generate(model, sids, beam=_BEAM)
    some = held[: 4 * _ASKED]
    tokens = _read(model, some, sids)
    as_they_come = _Asked(model, tokens, np.arange(len(some)))
    by_length = _Asked(model, tokens, np.argsort(tokens.lengths, kind="stable"))

    def ours(asked: _Asked) -> list[Beams]:
        return [beam_search(stepper, memory, trie, width=_BEAM) for memory in asked.memories(_ASKED)]

    found = [
        compare(beams, *peer.scored(memory))
        for beams, memory in zip(ours(as_they_come), as_they_come.memories(_ASKED), strict=True)
    ]
    seconds = turns(
        {
            "restd": lambda: ours(by_length),
            "transformers": lambda: [peer(memory) for memory in as_they_come.memories(_ASKED)],
        },
        rounds,
    )
    rates = {name: float(len(some) / np.median(values)) for name, values in seconds.items()}
    return {
        "eval_ratio": rates["restd"] / rates["transformers"],
        "identical": all(part["identical"] for part in found),
        "same_place": float(np.mean([part["same_place"] for part in found])),
        "max_score_difference": max(part["max_score_difference"] for part in found),
        "users_per_second": rates,
        "users": len(some),
    }
