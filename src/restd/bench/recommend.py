"""Time of recommending: training and ranking, each against plain `transformers`."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from restd.bench.decode import Generate, compare
from restd.bench.measure import interleaved, machine
from restd.bench.train import PlainLoop, examples_of, make_loop, steps_of, updates_of
from restd.codes.trie import Trie
from restd.data import Histories, Prefixes, leave_one_out
from restd.data.pairs import Pairs
from restd.encode import Ragged
from restd.models import Memory, SidHistories, TigerBackbone, TigerConfig
from restd.models.sid_t5 import SidT5
from restd.models.tiger import PAD
from restd.search import Beams, beam_search
from restd.shop import ShopperSpec, shoppers_source

_SIZES = (256, 256, 256, 4)
_ITEMS = 2_000
_BATCH, _MICRO = 512, 128
_BEAM, _USERS = 20, 32
_IGNORED = -100
_TARGETS = {"throughput_ratio": 2.0, "eval_ratio": 4.0}


def bench_recommend(updates: int = 6, rounds: int = 5, users: int = 4_000) -> dict[str, Any]:
    """Time updates and rankings of TIGER and of a T5 of the same size and weights, in turn.

    Both sides learn from the same prefixes of the generated shoppers, 512 per update. The plain side shuffles them and
    pads to the longest of each 128, as is usual. Ours batches prefixes of similar length, in three variants: with its
    own layers, with those of `transformers`, and with a causal encoder, which reads up to eight prefixes of a user in
    one pass (`causal_ratio`, over our own bidirectional encoder). Then both rank the whole catalogue for test users
    with a beam of 20, reading the histories included: ours in order of length, `generate` with
    `prefix_allowed_tokens_fn` in the original order.
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
        "wanted": _TARGETS,
        "examples_per_second": training,
        "updates": updates,
        "rounds": rounds,
        "batch": {"training": _BATCH, "padded_together": _MICRO, "ranking": _USERS},
        "beam": _BEAM,
        "machine": machine(),
    }


def some_shoppers(users: int) -> Histories:
    """Histories over the catalogue whose SIDs `some_sids` makes."""
    source = shoppers_source(ShopperSpec(items=_ITEMS, users=users))
    assert source.histories is not None
    table = pa.Table.from_batches(list(source.histories()))
    ids = pa.concat_arrays([batch.column("id") for batch in source.items()])
    return Histories.of_table(table).over(ids)[0]


def some_sids() -> np.ndarray:
    """Unique codes for every item: three random levels, and a fourth that tells items with equal codes apart."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 256, (_ITEMS, 3))
    drawn[:, 0] //= 4  # so that many items share their first code, as in a real catalogue
    counts: dict[tuple[int, ...], int] = {}
    last = []
    for row in map(tuple, drawn.tolist()):
        last.append(counts.get(row, 0))
        counts[row] = last[-1] + 1
    return np.column_stack([drawn, last])


def _read(model: TigerBackbone, prefixes: Prefixes, sids: np.ndarray) -> Ragged:
    return model.prepare(SidHistories(sids[prefixes.histories.event_items], prefixes.begin, prefixes.end))


def _training(prefixes: Prefixes, sids: np.ndarray, folder: Path, updates: int) -> dict[str, float]:
    """Examples per second of each side."""
    theirs = TigerBackbone.made(_SIZES, TigerConfig(), seed=0)
    examples = examples_of(theirs, _pairs(prefixes), _read(theirs, prefixes, sids), torch.from_numpy(sids))
    plain = PlainLoop(theirs.model, examples, _padded, batch=_BATCH, micro=_MICRO)
    sides = {
        "restd": tiger_updates(prefixes, sids, folder, batch=_BATCH, micro=_MICRO),
        "restd_with_their_layers": tiger_updates(prefixes, sids, folder, batch=_BATCH, micro=_MICRO, kind=_TheirLayers),
        "restd_causal": tiger_updates(prefixes, sids, folder, batch=_BATCH, micro=_MICRO, causal=True),
        "transformers": steps_of(plain.steps()),
    }
    seconds = interleaved(sides, updates)
    # means, not medians: batches of similar length differ in cost, and training needs all of them
    return {name: float(_BATCH / values.mean()) for name, values in seconds.items()}


class _TheirLayers(TigerBackbone):
    """TIGER with the layers of `transformers`."""

    encode = SidT5.encode
    states = SidT5.states


def tiger_updates(
    prefixes: Prefixes,
    sids: np.ndarray,
    folder: Path,
    *,
    batch: int,
    micro: int,
    kind: type[TigerBackbone] = TigerBackbone,
    causal: bool = False,
) -> Callable[[int], None]:
    """A side to time: every call is one update of a TIGER of the paper's size."""
    model = kind.made(_SIZES, TigerConfig(causal=causal), seed=0)
    table = torch.from_numpy(sids)
    return updates_of(make_loop(model, _pairs(prefixes), _read(model, prefixes, sids), table, folder, {}, batch, micro))


def _pairs(prefixes: Prefixes) -> Pairs:
    return Pairs(prefixes, np.arange(len(prefixes)), prefixes.targets, len(prefixes))


def _padded(examples: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
    """A batch as `transformers` takes it."""
    fill = {"input_ids": PAD, "attention_mask": 0, "labels": _IGNORED}
    return {
        name: pad_sequence([torch.tensor(example[name]) for example in examples], batch_first=True, padding_value=value)
        for name, value in fill.items()
    }


@dataclass(frozen=True, slots=True, eq=False)
class _TestUsers:
    """Histories of test users, as both sides read them."""

    model: TigerBackbone
    tokens: Ragged
    order: np.ndarray

    @torch.inference_mode()
    def memories(self, batch: int) -> list[Memory]:
        """The encoded histories, in batches."""
        rows = [self.order[start : start + batch] for start in range(0, len(self.order), batch)]
        return [self.model.encode(self.tokens.batch(part)) for part in rows]


def _ranking(prefixes: Prefixes, sids: np.ndarray, rounds: int) -> dict[str, Any]:
    """Users per second of both sides, and whether their rankings agree."""
    model = TigerBackbone.made(_SIZES, TigerConfig(), seed=1).eval()
    trie, stepper, peer = Trie.of(sids, _SIZES), model.stepper(), Generate(model, sids, beam=_BEAM)
    users = prefixes[: 4 * _USERS]
    tokens = _read(model, users, sids)
    in_order = _TestUsers(model, tokens, np.arange(len(users)))
    by_length = _TestUsers(model, tokens, np.argsort(tokens.lengths, kind="stable"))

    def ours(histories: _TestUsers) -> list[Beams]:
        return [beam_search(stepper, memory, trie, width=_BEAM) for memory in histories.memories(_USERS)]

    agreements = [
        compare(beams, *peer.scored(memory))
        for beams, memory in zip(ours(in_order), in_order.memories(_USERS), strict=True)
    ]
    seconds = interleaved(
        {
            "restd": lambda _: ours(by_length),
            "transformers": lambda _: [peer(memory) for memory in in_order.memories(_USERS)],
        },
        rounds,
    )
    rates = {name: float(len(users) / np.median(values)) for name, values in seconds.items()}
    return {
        "eval_ratio": rates["restd"] / rates["transformers"],
        "identical": all(agreement["identical"] for agreement in agreements),
        "same_place": float(np.mean([agreement["same_place"] for agreement in agreements])),
        "max_score_difference": max(agreement["max_score_difference"] for agreement in agreements),
        "users_per_second": rates,
        "users": len(users),
    }
