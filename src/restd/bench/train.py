"""Time of training: our loop against a plain `transformers` loop, and distillation against base training."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from restd.bench.measure import interleaved, machine
from restd.data.pairs import Pairs
from restd.distill import AuxiliaryConfig, DistillConfig, ResidualDistiller, TemperatureConfig
from restd.encode import Ragged, load_encoder
from restd.models import Backbone, CompactBackbone, CompactConfig, T5Backbone, T5Config
from restd.models.sid_t5 import SidT5
from restd.shop import ShopSpec, shop_source
from restd.train.config import TrainConfig
from restd.train.loop import Loop, TrainingSet
from restd.train.module import TrainingModule
from restd.train.objectives import TrajectoryObjective

_SIZES = (64, 64, 64, 64)
_DIM = 32
_ITEMS = 1_000
_BATCH, _MICRO = 64, 16
_COMPACT_BATCH = 128


def bench_train(updates: int = 20) -> dict[str, Any]:
    """Time updates of both sides in turn; the first update of each is not counted.

    The plain loop is the usual one with `transformers`: shuffled pairs, padded to the longest of the batch, and the
    model's own loss. Ours reads the same pairs of queries and titles, in batches of similar length.
    """
    from transformers import DataCollatorForSeq2Seq

    pairs = _pairs()
    texts = [str(text) for text in pairs.texts]
    sids = torch.randint(_SIZES[0], (_ITEMS, len(_SIZES)), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        shape = T5Config(model="fresh", width=256, feed=1_024, layers=4, heads=4, head_width=64)
        ours = T5Backbone.made(_SIZES, shape, texts=texts, seed=0)
        theirs = T5Backbone.made(_SIZES, shape, texts=texts, seed=0)
        loop = make_loop(ours, pairs, ours.prepare(texts), sids, Path(folder) / "t5", {}, _BATCH, _MICRO)
        end = (theirs.tokenizer.eos_token_id,)
        examples = examples_of(theirs, pairs, theirs.prepare(texts), sids, end=end)
        collate = DataCollatorForSeq2Seq(theirs.tokenizer)
        plain = PlainLoop(theirs.model, examples, collate, batch=_BATCH, micro=_MICRO)
        t5 = interleaved({"restd": updates_of(loop), "transformers": steps_of(plain.steps())}, updates)
        compact: dict[str, Callable[[int], None]] = {}
        arms: dict[str, dict[str, nn.Module]] = {"base": {}, "joint": {"trajectory": _restd(sids)}}
        for name, objectives in arms.items():
            backbone = CompactBackbone(load_encoder("minilm", device="cpu"), _SIZES, CompactConfig(), seed=0)
            prepared = backbone.prepare(texts)
            out, batch = Path(folder) / name, _COMPACT_BATCH
            compact[name] = updates_of(make_loop(backbone, pairs, prepared, sids, out, objectives, batch, batch))
        joint = interleaved(compact, 3 * updates)
    rates = {name: float(_BATCH / np.median(seconds)) for name, seconds in t5.items()}
    return {
        "throughput_ratio": rates["restd"] / rates["transformers"],
        # update by update: both sides compute the same pairs, right after one another
        "joint_over_base": float(np.median(joint["joint"] / joint["base"])),
        "examples_per_second": rates,
        "compact_update_seconds": {name: float(np.median(seconds)) for name, seconds in joint.items()},
        "updates": updates,
        "batch": {"t5": _BATCH, "compact": _COMPACT_BATCH},
        "machine": machine(),
    }


def _pairs() -> Pairs:
    """Queries of the shop's training split, and every item's title."""
    source = shop_source(ShopSpec(locale="us", items=_ITEMS, seed=0))
    ids, titles, queries, names = [], [], [], []
    for batch in source.items():
        ids += batch.column("id").to_pylist()
        titles += batch.column("title").to_pylist()
    assert source.judgments is not None
    for batch in source.judgments():
        for row in batch.to_pylist():
            if row["split"] == "train" and row["grade"] > 0:
                queries.append(row["query"])
                names.append(row["item"])
    number_of = {query: number for number, query in enumerate(dict.fromkeys(queries))}
    row_of = {item: row for row, item in enumerate(ids)}
    text = np.array([number_of[query] for query in queries], np.int64)
    item = np.array([row_of[name] for name in names], np.int64)
    return Pairs(tuple(number_of), text, item, len(number_of)).with_items(titles, np.arange(len(titles)))


def make_loop(
    backbone: Backbone,
    pairs: Pairs,
    prepared: Ragged,
    sids: torch.Tensor,
    out: Path,
    objectives: dict[str, nn.Module],
    batch: int,
    micro: int,
) -> Loop:
    """A training loop whose updates are called one by one, and that writes no files."""
    training_set = TrainingSet(pairs, prepared, sids)
    config = TrainConfig(updates=100_000, batch=batch, micro=micro, lr=1e-4, warm_up=0.0)
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    loop = Loop(
        TrainingModule(backbone, objectives),
        training_set,
        training_set,
        config,
        out,
        "",
        accelerator,
        lambda sentence: None,
        lambda *arguments: None,
    )
    loop.module.train()
    return loop


def updates_of(loop: Loop) -> Callable[[int], None]:
    """A side to time: every call is one update, epoch after epoch."""
    return steps_of(_updates(loop))


def steps_of(steps: Iterator[None]) -> Callable[[int], None]:
    """A side to time: every call is one step of an iterator."""
    return lambda _: next(steps)


def _updates(loop: Loop) -> Iterator[None]:
    number = 0
    while True:
        for rows in loop.plan.epoch(number // loop.plan.updates_per_epoch):
            loop.update(rows, number)
            number += 1
            yield


class PlainLoop:
    """The usual training loop with `transformers` alone: shuffled examples, padded to the longest of a batch.

    Args:
        model: a model of `transformers`.
        examples: input ids, attention mask and labels of each example.
        collate: makes a batch of examples.
        batch: examples per update.
        micro: examples per forward pass.
    """

    def __init__(self, model: Any, examples: list[dict[str, Any]], collate: Any, *, batch: int, micro: int) -> None:
        self.model, self.examples, self.collate = model, examples, collate
        self.micro, self.accumulated = micro, batch // micro
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def steps(self) -> Iterator[None]:
        """One update after another."""
        examples: Any = self.examples
        loader: Any = torch.utils.data.DataLoader(
            examples,
            batch_size=self.micro,
            shuffle=True,
            collate_fn=self.collate,
            generator=torch.Generator().manual_seed(0),
            drop_last=True,
        )
        self.model.train()
        count = 0
        while True:
            for batch in loader:
                loss = self.model(**batch).loss
                (loss / self.accumulated).backward()
                count += 1
                if count % self.accumulated == 0:
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    yield


def examples_of(
    model: SidT5, pairs: Pairs, prepared: Ragged, sids: torch.Tensor, *, end: tuple[int, ...] = ()
) -> list[dict[str, Any]]:
    """Pairs as `transformers` takes them: tokens of the text in, tokens of the codes (and the end) out."""
    tokens = [prepared.batch(np.array([row])).values[0].tolist() for row in range(len(prepared))]
    level = torch.arange(sids.shape[1])
    labels = [[*codes, *end] for codes in model.tokens[level, sids[torch.from_numpy(pairs.item)]].tolist()]
    return [
        {"input_ids": tokens[text], "attention_mask": [1] * len(tokens[text]), "labels": label}
        for text, label in zip(pairs.text, labels, strict=True)
    ]


def _restd(sids: torch.Tensor) -> TrajectoryObjective:
    generator = torch.Generator().manual_seed(1)
    books = torch.randn(len(_SIZES), max(_SIZES), _DIM, generator=generator)
    latents = torch.randn(_ITEMS, _DIM, generator=generator)
    temperature = TemperatureConfig("per_level")  # a fixed one would make teachers of random latents one-hot
    config = DistillConfig(auxiliary=AuxiliaryConfig(warm_up=0), temperature=temperature, check=False)
    width = CompactConfig().width
    return TrajectoryObjective(ResidualDistiller.of_tensors(books, latents, sids, width=width, config=config))
