"""ResTD in a training loop of your own: plain PyTorch, a small Hugging Face T5, nothing of `restd.train`.

Look for the three lines marked `ResTD`: make the distiller, give its parameters to the optimiser, add its loss. All
else is what a generative retriever needs anyway: codes as tokens, teacher forcing, a trie to decode under. The model
is tiny and starts from random weights, so its answer is a guess; what to watch is the printed KL, which falls as the
decoder's states learn how near every other code was, at this level and the later ones.

    python examples/own_training_loop.py --steps 300
"""

import argparse
import logging
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

from restd import Catalog, IndexConfig, SidIndex, build_index, read_judgments
from restd.data import write_dataset
from restd.distill import ResidualDistiller, strip
from restd.shop import ShopSpec, shop_source

log = logging.getLogger("own_training_loop")

PAD, EOS, FIRST_WORD, WORDS = 0, 1, 2, 2_000
FIRST_CODE = FIRST_WORD + WORDS
LENGTH, BATCH, WIDTH = 12, 32, 64


@dataclass(frozen=True, slots=True)
class Shop:
    """An indexed catalogue and its training pairs."""

    index: SidIndex
    titles: dict[str, str]
    queries: list[str]
    rows: Tensor
    """Row of the relevant item, one a query."""


def make_shop(folder: Path) -> Shop:
    """Generate 500 items with judged queries, and give every item its SID."""
    write_dataset(shop_source(ShopSpec(items=500)), folder / "shop")
    catalog = Catalog(folder / "shop")
    index = build_index(catalog, folder / "index", IndexConfig(encoder="tfidf-svd"))
    titles = {row["id"]: row["title"] for batch in catalog.batches() for row in batch.to_pylist()}
    judged = read_judgments(folder / "shop" / "judgments.parquet").to_pylist()
    pairs = [(row["query"], row["item"]) for row in judged if row["split"] == "train" and row["grade"] == 3]
    rows = torch.from_numpy(index.table.rows(item for _, item in pairs))
    return Shop(index, titles, [query for query, _ in pairs], rows)


def make_model(codes: int) -> T5ForConditionalGeneration:
    """Two layers, random weights, one token a word bucket and one a code of every level."""
    torch.manual_seed(0)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=FIRST_CODE + codes,
            d_model=WIDTH,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=PAD,
        )
    )


def word_ids(queries: list[str]) -> Tensor:
    """Hash words into buckets: [query, token], padded."""
    ids = torch.full((len(queries), LENGTH), PAD)
    for row, query in enumerate(queries):
        words = [FIRST_WORD + zlib.crc32(word.encode()) % WORDS for word in query.lower().split()[: LENGTH - 1]]
        ids[row, : len(words) + 1] = torch.tensor([*words, EOS])
    return ids


def code_offsets(index: SidIndex) -> Tensor:
    """Token of code 0 of every level: each level has tokens of its own."""
    return FIRST_CODE + torch.tensor([0, *np.cumsum(index.sizes)[:-1]])


def batches(shop: Shop, steps: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Queries as tokens, rows of their items, SIDs and EOS as labels."""
    words = word_ids(shop.queries)
    tokens = torch.from_numpy(shop.index.sids).long() + code_offsets(shop.index)
    labels = nn.functional.pad(tokens, (0, 1), value=EOS)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(len(shop.rows), (BATCH,), generator=generator)
        rows = shop.rows[chosen]
        yield words[chosen], rows, labels[rows]


def train(model: T5ForConditionalGeneration, shop: Shop, steps: int) -> ResidualDistiller:
    """Train on (query, SID) pairs; the three lines are in here."""
    levels = len(shop.index.sizes)
    every = max(1, steps // 10)
    distiller = ResidualDistiller.of_index(shop.index, width=model.config.d_model)  # ResTD, line 1
    parameters = [*model.parameters(), *distiller.parameters()]  # ResTD, line 2
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    model.train()
    for step, (words, rows, labels) in enumerate(batches(shop, steps)):
        out = model(input_ids=words, attention_mask=words != PAD, labels=labels, output_hidden_states=True)
        states = out.decoder_hidden_states[-1][:, :levels]  # after the final norm; state t predicts code t, then EOS
        loss = out.loss
        loss = loss + distiller(states, rows, sid_loss=out.loss, step=step)  # ResTD, line 3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0 or step == steps - 1:
            told = distiller.last
            assert told is not None
            log.info(
                f"step {step:4d}  loss {loss.item():.3f}  KL {told.divergence.item():.3f}  "
                f"λ {told.weight.item():.4f}{'  capped' if told.capped else ''}"
            )
    return distiller


@torch.no_grad()
def search(model: T5ForConditionalGeneration, index: SidIndex, query: str) -> str:
    """Greedy decoding under the trie: the id of the item it arrives at."""
    model.eval()
    words = word_ids([query])
    codes: list[int] = []
    node = torch.zeros(1, dtype=torch.int64)
    written = torch.tensor([[PAD]])
    for level, (first, size) in enumerate(zip(code_offsets(index).tolist(), index.sizes, strict=True)):
        out = model(input_ids=words, attention_mask=words != PAD, decoder_input_ids=written)
        scores = out.logits[:, -1, first : first + size]
        code = scores.masked_fill(~index.trie.children(level, node), -torch.inf).argmax(dim=-1)
        node = index.trie.advance(level, node, code)
        written = torch.cat([written, code[:, None] + first], dim=1)
        codes.append(int(code))
    return index.table.items(codes)[0]


def parameters_of(module: nn.Module) -> int:
    """Count a module's parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def main() -> None:
    """Make a shop, train with ResTD, leave ResTD behind, and search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="updates (default: 300)")
    steps = parser.parse_args().steps
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    log.setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        shop = make_shop(Path(folder))
    model = make_model(sum(shop.index.sizes))
    before = parameters_of(model)
    log.info(f"{len(shop.index)} items, {len(shop.queries)} pairs, {before:,} parameters without ResTD")

    distiller = train(model, shop, steps)

    kept = nn.ModuleDict({"retriever": model, "distiller": distiller})  # as a checkpoint would hold them
    removed = strip(kept)
    log.info(f"strip() took {removed:,} parameters away; {parameters_of(kept) - before} extra ones at inference")
    query = shop.queries[0]
    log.info(f"{query!r} finds {shop.titles[search(model, shop.index, query)]!r}")


if __name__ == "__main__":
    main()
