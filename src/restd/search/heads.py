"""Beyond the paper, off by default: the horizon heads kept at inference.

g_0(h_1) was trained to sit at the latent of the item that is looked for. It costs one decoder step and is a dense query
in the index's own space: it can rerank what the beam found, bring in what it pruned, and say what a prefix promises.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.artifacts import open_artifact
from restd.distill import HorizonHeads
from restd.distill.functions import code_scores
from restd.distill.heads import FOLDER, KIND, SCHEMA
from restd.errors import ArtifactError, ConfigError
from restd.index import SidIndex, Trie
from restd.models.contract import Memory
from restd.models.decoding import Stepper
from restd.search.answers import fill
from restd.search.beam import beam_search

Use = Literal["rerank", "fuse", "look-ahead", "one-shot"]
USES: tuple[Use, ...] = ("rerank", "fuse", "look-ahead", "one-shot")


@dataclass(frozen=True, slots=True)
class HeadUse:
    """What kept heads are for.

    Args:
        use: `rerank` the beam's items by nearness too; `fuse` them with the nearest latents; `look-ahead` while
            pruning; `one-shot` scores the whole catalogue from one state, without a beam.
        weight: of nearness beside log-probability, or of the promise beside the prefix's score.
        bring: how many of the nearest latents `fuse` brings in.
    """

    use: Use = "fuse"
    weight: float = 0.4
    bring: int = 200

    def __post_init__(self) -> None:
        if self.use not in USES or self.weight < 0 or self.bring < 0:
            raise ConfigError(
                f"Heads used for {self.use!r} with weight {self.weight} and {self.bring} brought in cannot be; wanted "
                f"one of {', '.join(USES)}, and numbers of at least 0."
            )


@dataclass(frozen=True, eq=False)
class KeptHeads:
    """Heads of a finished run, with what they need of the index."""

    heads: HorizonHeads
    temperatures: Float[Tensor, "level"]
    codebooks: Float[Tensor, "level code dim"]
    code_mask: Tensor
    latents: Float[Tensor, "item dim"]

    @classmethod
    def load(cls, folder: Path, index: SidIndex) -> "KeptHeads":
        """Open the heads that a run with a trajectory objective left beside its model."""
        if (folder / FOLDER).is_dir():
            folder = folder / FOLDER
        artifact = open_artifact(folder, kind=KIND, schema=SCHEMA)
        if artifact.manifest.settings["layout"] != index.layout():
            raise ArtifactError(f"{folder} was trained with another index; point to the one it was trained with.")
        tensors = {name: torch.from_numpy(value) for name, value in artifact.tensors("heads").items()}
        temperatures = tensors.pop("temperatures")
        horizon, width, dim = tensors["outer"].shape
        heads = HorizonHeads(width, dim, horizon=horizon)
        heads.load_state_dict(tensors)
        return cls.of(heads, temperatures, index)

    @classmethod
    def of(cls, heads: HorizonHeads, temperatures: Float[Tensor, "level"], index: SidIndex) -> "KeptHeads":
        """Take heads at hand."""
        latents, codebooks = index.geometry()
        sizes = torch.tensor(codebooks.sizes)
        values = torch.from_numpy(codebooks.values)
        mask = torch.arange(values.shape[1]) < sizes[:, None]
        return cls(heads.eval(), temperatures, values, mask, torch.from_numpy(latents).float())

    @torch.inference_mode()
    def nearness(self, first: Float[Tensor, "query width"]) -> Float[Tensor, "query item"]:
        """-‖g_0(h_1) - x_d‖² / τ_1 of every item: how near its latent is to where the first state points."""
        points = self.heads.ahead(first)[0]
        squares = self.latents.square().sum(-1)
        scores = 2 * points @ self.latents.T - squares - points.square().sum(-1, keepdim=True)
        return scores / self.temperatures[0]

    @torch.inference_mode()
    def codes_ahead(self, first: Float[Tensor, "query width"]) -> Float[Tensor, "query level code"]:
        """Log P_{1,s}: what the first state alone says of every level's code."""
        levels = len(self.codebooks)
        points = self.heads.ahead(first)[:levels]
        if len(points) < levels:
            raise ConfigError(f"{len(points)} heads look less far than the index's {levels} levels; train with all.")
        scores = code_scores(points.transpose(0, 1), self.codebooks, self.code_mask, self.temperatures)
        return scores.log_softmax(dim=-1)

    @torch.inference_mode()
    def promises(self, first: Float[Tensor, "query width"], trie: Trie, *, weight: float) -> "_Promises":
        """What each prefix of the trie promises: the best completion by the first state's own words, times a weight."""
        ahead = self.codes_ahead(first)
        best = [torch.zeros(len(ahead), trie.leaves)]
        for depth in reversed(range(1, len(self.codebooks))):
            held = trie.depths[depth]
            worth = best[0] + ahead[:, depth, held.codes.long()]
            parents = torch.repeat_interleave(torch.arange(trie.nodes(depth)), held.first_child.long().diff())
            empty = torch.full((len(ahead), trie.nodes(depth)), -torch.inf)
            best.insert(0, empty.scatter_reduce(1, parents.expand(len(ahead), -1), worth, "amax"))
        return _Promises(tuple(best), weight)

    @torch.inference_mode()
    def one_shot(
        self, first: Float[Tensor, "query width"], sids: Int64[Tensor, "item level"]
    ) -> Float[Tensor, "query item"]:
        """Σ_s log P_{1,s}(y_s) of every item: the whole catalogue scored from one decoder state."""
        ahead = self.codes_ahead(first)
        return sum((ahead[:, level, sids[:, level]] for level in range(ahead.shape[1])), torch.zeros(()))


@dataclass(frozen=True, slots=True, eq=False)
class _Promises:
    best: tuple[Float[Tensor, "query _"], ...]
    """By depth from 1 on: the best completion below each node."""
    weight: float

    def __call__(self, level: int, children: Int64[Tensor, "query beam _"]) -> Float[Tensor, "query beam _"]:
        held = self.best[level]
        found = held.gather(1, children.clamp_min(0).flatten(1)).view(children.shape)
        return torch.where(children >= 0, self.weight * found, 0.0)


def head_search(
    held: KeptHeads,
    use: HeadUse,
    index: SidIndex,
    stepper: Stepper,
    memory: Memory,
    trie: Trie,
    k: int,
    width: int,
    normalized: bool,
) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
    """Rows and scores of the best items of a trie, by beam and heads together."""
    promise = None
    if use.use in ("look-ahead", "one-shot"):
        first = _first(stepper.start(memory)[1].first)
        if use.use == "one-shot":
            scores = held.one_shot(first, torch.from_numpy(index.sids.astype(np.int64)))
            return _best_of(scores, trie, k)
        promise = held.promises(first, trie, weight=use.weight)
    beams = beam_search(stepper, memory, trie, width=width, trie_normalized=normalized, promise=promise)
    queries = len(beams.leaves)
    rows, scores = np.full((queries, width), -1, np.int64), np.full((queries, width), -np.inf, np.float64)
    for query in range(queries):
        fill((rows, scores), query, trie, beams.leaves[query], beams.scores[query])
    if use.use == "look-ahead":
        return rows[:, :k], scores[:, :k]
    near = held.nearness(_first(beams.first))
    reachable = torch.zeros(len(index), dtype=torch.bool)
    reachable[trie.rows.long()] = True
    near = near.masked_fill(~reachable, -torch.inf)
    found = np.full((queries, k), -1, np.int64), np.full((queries, k), -np.inf, np.float64)
    for query in range(queries):
        bring = use.bring if use.use == "fuse" else 0
        names, total = combined(rows[query], scores[query], near[query], k, weight=use.weight, bring=bring)
        found[0][query, : len(names)], found[1][query, : len(total)] = names, total
    return found


def _first(state: Float[Tensor, "query 1 width"] | None) -> Float[Tensor, "query width"]:
    if state is None:
        raise ConfigError("This model's decoder does not tell its first state, which the heads read.")
    return state[:, 0]


def _best_of(
    scores: Float[Tensor, "query item"], trie: Trie, k: int
) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
    """The best items among those of a trie, ties by row."""
    rows = trie.rows.long().sort().values
    ordered = scores[:, rows].sort(dim=1, descending=True, stable=True)
    count = min(k, len(rows))
    found = np.full((len(scores), k), -1, np.int64), np.full((len(scores), k), -np.inf, np.float64)
    found[0][:, :count] = rows[ordered.indices[:, :count]].numpy()
    found[1][:, :count] = ordered.values[:, :count].numpy()
    return found


def combined(
    rows: Int64[np.ndarray, "rank"],
    scores: Float[np.ndarray, "rank"],
    near: Float[Tensor, "item"],
    k: int,
    *,
    weight: float,
    bring: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Order the beam's items, and `bring` of the nearest latents, by log-probability plus weighted nearness.

    An item the beam does not have is given the score of the beam's last one: it could have had no more. So what is
    brought in can only stand where nearness outweighs what the beam knows, and the beam's first ranks are its own.
    """
    kept = rows >= 0
    known = dict(zip(rows[kept].tolist(), scores[kept].tolist(), strict=True))
    edge = min(known.values(), default=0.0)
    if bring:
        nearest = near.topk(min(bring, len(near)))
        for row in nearest.indices[nearest.values > -torch.inf].tolist():
            known.setdefault(row, edge)
    names = np.fromiter(known, np.int64, len(known))
    total = np.fromiter(known.values(), np.float64, len(known)) + weight * near[torch.from_numpy(names)].numpy()
    order = np.lexsort((names, -total))[:k]
    return names[order], total[order]
