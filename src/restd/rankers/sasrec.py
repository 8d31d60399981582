"""SASRec (Kang & McAuley, 2018): causal self-attention over the items of a history, which predicts the next one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from restd.artifacts import create, open_artifact
from restd.config import plain
from restd.data import EventSpans, Query
from restd.errors import ArtifactError, ConfigError
from restd.models.contract import seeded
from restd.models.store import model_folder
from restd.rankers.top_k import rank_by_scores
from restd.snapshot import Snapshot

KIND = "sasrec"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class SasRecConfig:
    """Shape of the network, and how it is trained.

    Args:
        width: of embeddings and states.
        blocks: how many.
        heads: attention heads.
        dropout: share of embeddings, attention weights and outputs of layers that is dropped in training.
        length: items of a history that are looked at, the latest; also the longest sequence that is trained on.
        loss: `ce`, a softmax over all items, or `bce` with sampled negatives, as published.
        negatives: items that `bce` draws for each event, among those its user did not take in training.
        lr: learning rate of Adam.
        batch: sequences in an update.
        epochs: passes over the sequences, at most.
        patience: validations without a better one before training stops, and the best weights are kept; 0 trains all
            epochs and keeps the last.
        weight_decay: decoupled, of every matrix.
        seen: whether items of the history are ranked too, in validation and later; unset, `ce` does and `bce` does not.
            No negative is ever one of them, so `bce` does not learn to put them down and would name little else.
        seed: of the first weights, the order of sequences, dropout and negatives.
    """

    width: int = 64
    blocks: int = 2
    heads: int = 1
    dropout: float = 0.2
    length: int = 50
    loss: Literal["ce", "bce"] = "ce"
    negatives: int = 1
    lr: float = 1e-3
    batch: int = 128
    epochs: int = 200
    patience: int = 10
    weight_decay: float = 0.0
    seen: bool | None = None
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("width", "blocks", "heads", "length", "negatives", "batch", "epochs"):
            self._refuse_unless(getattr(self, name) >= 1, name, "at least 1")
        for name in ("patience", "weight_decay", "seed"):
            self._refuse_unless(getattr(self, name) >= 0, name, "at least 0")
        self._refuse_unless(self.lr > 0, "lr", "a number above 0")
        self._refuse_unless(0 <= self.dropout < 1, "dropout", "a share from 0 to less than 1")
        self._refuse_unless(self.loss in ("ce", "bce"), "loss", "ce or bce")
        self._refuse_unless(self.width % self.heads == 0, "width", f"a multiple of its {self.heads} heads")

    @property
    def ranks_seen(self) -> bool:
        """Whether items of the history are ranked too."""
        return self.loss == "ce" if self.seen is None else self.seen

    def _refuse_unless(self, fits: bool, name: str, expected: str) -> None:
        if not fits:
            raise ConfigError(f"sasrec.{name} = {getattr(self, name)!r} cannot be used; expected {expected}.")


class _Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a norm and added."""

    def __init__(self, config: SasRecConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.joint = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(config.dropout)
        self.feed = nn.Sequential(nn.Linear(width, width), nn.ReLU(), self.dropout, nn.Linear(width, width))

    def forward(self, states: Float[Tensor, "row place width"]) -> Float[Tensor, "row place width"]:
        parts = self.joint(self.norms[0](states)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropped = self.dropout.p if self.training else 0.0
        attended = nn.functional.scaled_dot_product_attention(*parts, dropout_p=dropped, is_causal=True)
        states = states + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        return states + self.dropout(self.feed(self.norms[1](states)))


class SasRecNetwork(nn.Module):
    """Reads items oldest first; a state sees its own item and those before, and is compared with all embeddings.

    Sequences are filled up behind, where no real state looks, and places count from the first item that is read.
    """

    def __init__(self, items: int, config: SasRecConfig) -> None:
        super().__init__()
        self.items = nn.Parameter(torch.empty(items, config.width))
        self.places = nn.Parameter(torch.empty(config.length, config.width))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.width)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_normal_(parameter)

    def forward(self, taken: Int64[Tensor, "row place"]) -> Float[Tensor, "row place width"]:
        """The state behind each item."""
        embedded = nn.functional.embedding(taken, self.items) * self.items.shape[1] ** 0.5
        states = self.dropout(embedded + self.places[: taken.shape[1]])
        for block in self.blocks:
            states = block(states)
        return self.norm(states)

    def last(self, runs: EventSpans) -> Float[Tensor, "run width"]:
        """The state behind each run's latest item; only the latest of a long run are read."""
        runs = runs.latest(len(self.places))
        last_states = self.items.new_zeros(len(runs), self.items.shape[1])
        for alike in runs.by_length():
            part = runs.pick(alike)
            states = self(torch.from_numpy(part.padded()[0]))
            last_states[torch.from_numpy(alike)] = states[torch.arange(len(part)), torch.from_numpy(part.count) - 1]
        return last_states


def make_network(items: int, config: SasRecConfig) -> SasRecNetwork:
    """Draw first weights."""
    with seeded(config.seed):
        return SasRecNetwork(items, config)


@dataclass(frozen=True, slots=True, eq=False)
class SasRec:
    """A trained network, and the items it ranks."""

    network: SasRecNetwork
    ids: pa.StringArray
    config: SasRecConfig
    summary: Mapping[str, Any]
    """How its training ended."""
    snapshot_hash: str

    @classmethod
    def load(cls, folder: Path, snapshot: Snapshot) -> "SasRec":
        """Open a trained model: its own folder, or the one given to `train_sasrec`; one of other items is refused."""
        artifact = open_artifact(model_folder(Path(folder)), kind=KIND, schema=SCHEMA)
        settings = artifact.manifest.settings
        config = SasRecConfig(**settings["config"])
        ids = artifact.table("items")["id"].combine_chunks()
        if not ids.equals(snapshot.ids):
            raise ArtifactError(
                f"{artifact.folder} ranks {len(ids):,} items that are not the snapshot's {len(snapshot):,}, or in "
                "another order; train it again for this index."
            )
        network = make_network(len(ids), config)
        weights = artifact.tensors("weights")
        network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        return cls(network.eval(), ids, config, settings["summary"], snapshot.hash)

    def save(self, folder: Path, *, identity: str) -> None:
        """Write the model as an artefact; `identity` is the hash of all that decided it."""
        settings = {"config": plain(self.config), "identity": identity, "summary": dict(self.summary)}
        with create(folder, kind=KIND, schema=SCHEMA, settings=settings) as writer:
            state = self.network.state_dict()
            writer.tensors("weights", {name: value.detach().numpy() for name, value in state.items()})
            writer.table("items", [pa.record_batch({"id": self.ids})])

    def rank(
        self, queries: Sequence[Query], k: int
    ) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their logits, best first; -1 where fewer are left without what was seen."""
        runs = EventSpans.of_queries(queries, self.ids)
        self.network.eval()
        with torch.inference_mode():
            return rank_by_scores(runs, k, self._scores, seen=self.config.ranks_seen)

    def _scores(self, runs: EventSpans) -> Float[np.ndarray, "run item"]:
        return (self.network.last(runs) @ self.network.items.T).numpy()
