"""Beyond the paper, off by default: the horizon heads kept at inference.

g_0(h_1) was trained to sit at the latent of the target item. It costs one decoder step and is a dense query in the
index's own space: it can rerank what the beam found, add candidates that the beam pruned, and estimate what lies below
a prefix.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from restd.artifacts import open_artifact
from restd.codes import Space, Trie, spaces
from restd.distill import HorizonHeads
from restd.distill.equations import code_scores
from restd.distill.heads import FOLDER, KIND, SCHEMA
from restd.errors import ArtifactError, ConfigError
from restd.models.contract import Memory
from restd.models.decode_protocol import Stepper
from restd.search.beam import beam_search
from restd.search.options import HeadUse
from restd.search.results import RankedList
from restd.snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class KeptHeads:
    """Heads of a finished run. They are bound to the codebooks, not to the items, which come with each snapshot."""

    heads: HorizonHeads
    temperatures: Float[Tensor, "level"]
    codebooks: Float[Tensor, "level code dim"]
    code_mask: Bool[Tensor, "level code"]
    space: Space
    layout: Mapping[str, Any]
    """Sizes of all levels and hash of the codebooks that they were trained with."""

    @classmethod
    def load(cls, folder: Path, snapshot: Snapshot) -> "KeptHeads":
        """Open the heads that a run with a trajectory objective left beside its model."""
        if (folder / FOLDER).is_dir():
            folder = folder / FOLDER
        artifact = open_artifact(folder, kind=KIND, schema=SCHEMA)
        if artifact.manifest.settings["layout"] != snapshot.index.layout():
            raise ArtifactError(f"{folder} was trained with another index; point to the one it was trained with.")
        tensors = {name: torch.from_numpy(value) for name, value in artifact.tensors("heads").items()}
        temperatures = tensors.pop("temperatures")
        horizon, width, dim = tensors["outer"].shape
        heads = HorizonHeads(width, dim, horizon=horizon)
        heads.load_state_dict(tensors)
        return cls.of(heads, temperatures, snapshot)

    @classmethod
    def of(cls, heads: HorizonHeads, temperatures: Float[Tensor, "level"], snapshot: Snapshot) -> "KeptHeads":
        """Take heads at hand, on the snapshot's device."""
        _, codebooks = snapshot.index.latents_and_codebooks()
        layout = snapshot.index.layout()
        made = cls(heads.eval(), temperatures, codebooks.values, codebooks.mask, codebooks.space, layout)
        return made.on(snapshot.device)

    def on(self, device: torch.device | str) -> "KeptHeads":
        """The same heads on a device; a copy unless they are there already."""
        if self.codebooks.device == torch.device(device):
            return self
        tensors = {name: getattr(self, name).to(device) for name in ("temperatures", "codebooks", "code_mask")}
        return replace(self, heads=deepcopy(self.heads).to(device), **tensors)

    def refuse_other_codebooks(self, snapshot: Snapshot) -> None:
        """Refuse a snapshot of other codebooks or levels; items may have come and gone."""
        if self.layout != snapshot.index.layout():
            raise ArtifactError(
                "The heads were trained with other codebooks or levels than the snapshot's; load heads and model "
                "of this index."
            )

    @torch.inference_mode()
    def target(self, first: Float[Tensor, "query width"]) -> Float[Tensor, "query dim"]:
        """g_0(h_1): where the first state expects the latent of the answer."""
        return spaces.into_space(self.heads.ahead(first)[0], self.space)

    @torch.inference_mode()
    def nearness(
        self, first: Float[Tensor, "query width"], points: Float[Tensor, "item dim"]
    ) -> Float[Tensor, "query item"]:
        """-‖g_0(h_1) - x_d‖² / τ_1 of every item: how near its latent is to where the first state points."""
        target = self.target(first)
        if self.space != "euclidean":
            return -spaces.squared_distances(target, points, self.space) / self.temperatures[0]
        squares = points.square().sum(-1)
        scores = 2 * target @ points.T - squares - target.square().sum(-1, keepdim=True)
        return scores / self.temperatures[0]

    @torch.inference_mode()
    def codes_ahead(self, first: Float[Tensor, "query width"]) -> Float[Tensor, "query level code"]:
        """Log P_{1,s}: what the first state alone predicts of every level's code."""
        levels = len(self.codebooks)
        points = self.heads.ahead(first)[:levels]
        if len(points) < levels:
            raise ConfigError(
                f"The heads predict {len(points)} levels ahead, but the index has {levels} levels of residuals; train "
                f"with distill.horizon={levels}, or use rerank or fuse."
            )
        points = spaces.into_space(points, self.space).transpose(0, 1)
        scores = code_scores(points, self.codebooks, self.code_mask, self.temperatures, space=self.space)
        return scores.log_softmax(dim=-1)

    @torch.inference_mode()
    def completions(self, first: Float[Tensor, "query width"], trie: Trie, *, weight: float) -> "Completions":
        """The best completion below each prefix of the trie, by the first state's own predictions, times a weight.

        Levels behind the last codebook, such as a disambiguation code, have no residual and add nothing.
        """
        ahead = self.codes_ahead(first)
        levels = len(self.codebooks)
        best = [ahead.new_zeros(len(ahead), trie.nodes(depth)) for depth in range(levels, trie.levels + 1)]
        for depth in reversed(range(1, levels)):
            level = trie.depths[depth]
            below = best[0] + ahead[:, depth, level.codes.long()]
            children = level.first_child.long().diff()
            parents = torch.repeat_interleave(
                torch.arange(len(children), device=children.device), children, output_size=len(level.codes)
            )
            empty = below.new_full((len(ahead), len(children)), -torch.inf)
            best.insert(0, empty.scatter_reduce(1, parents.expand(len(ahead), -1), below, "amax"))
        return Completions(tuple(best), weight)

    @torch.inference_mode()
    def look_ahead(self, stepper: Stepper, memory: Memory, trie: Trie, *, weight: float) -> "Completions":
        """What a beam over the trie adds to prefixes of these queries while it prunes."""
        return self.completions(first_state(stepper.start(memory)[1].first), trie, weight=weight)

    @torch.inference_mode()
    def one_shot(
        self, first: Float[Tensor, "query width"], sids: Int64[Tensor, "item level"]
    ) -> Float[Tensor, "query item"]:
        """Σ_s log P_{1,s}(y_s) of every item: the whole catalogue scored from one decoder state."""
        ahead = self.codes_ahead(first)
        scores = ahead.new_zeros(len(ahead), len(sids))
        for level in range(ahead.shape[1]):
            scores = scores + ahead[:, level, sids[:, level]]
        return scores


@dataclass(frozen=True, slots=True, eq=False)
class Completions:
    """What a look-ahead adds to the nodes of a trie."""

    best: tuple[Float[Tensor, "query _"], ...]
    """By depth from 1 on: the best completion below each node."""
    weight: float

    def __call__(self, level: int, children: Int64[Tensor, "query beam code"]) -> Float[Tensor, "query beam code"]:
        """The best completion below each child of this level, weighted; 0 where there is no child."""
        values = self.best[level].gather(1, children.clamp_min(0).flatten(1)).view(children.shape)
        return torch.where(children >= 0, self.weight * values, 0.0)


def head_search(
    heads: KeptHeads,
    use: HeadUse,
    snapshot: Snapshot,
    stepper: Stepper,
    memory: Memory,
    trie: Trie,
    *,
    depths: Sequence[int],
    widths: Sequence[int],
    trie_normalized: bool,
) -> list[RankedList]:
    """The best items of a trie by beam and heads together, `depths` of each query."""
    heads.refuse_other_codebooks(snapshot)
    if use.mode == "one-shot":
        first = first_state(stepper.start(memory)[1].first)
        sids = torch.from_numpy(snapshot.sids.astype(np.int64)).to(first.device)
        return _best_of(heads.one_shot(first, sids), trie, depths)
    look_ahead = heads.look_ahead(stepper, memory, trie, weight=use.weight) if use.mode == "look-ahead" else None
    beams = beam_search(stepper, memory, trie, width=widths, trie_normalized=trie_normalized, look_ahead=look_ahead)
    lists = [
        RankedList.of_leaves(trie, leaves, scores, width)
        for leaves, scores, width in zip(beams.leaves, beams.scores, widths, strict=True)
    ]
    if use.mode == "look-ahead":
        return [RankedList(part.rows[:depth], part.scores[:depth]) for part, depth in zip(lists, depths, strict=True)]
    near = heads.nearness(first_state(beams.first), snapshot.points)
    reachable = torch.zeros(len(snapshot), dtype=torch.bool, device=near.device)
    reachable[trie.rows.long()] = True
    near = near.masked_fill(~reachable, -torch.inf)
    extra = use.extra_candidates if use.mode == "fuse" else 0
    return [
        combine(part, near[query].cpu(), depth, weight=use.weight, extra_candidates=extra)
        for query, (part, depth) in enumerate(zip(lists, depths, strict=True))
    ]


def first_state(state: Float[Tensor, "query 1 width"] | None) -> Float[Tensor, "query width"]:
    """The state that predicts the first code; an error where the decoder does not give it."""
    if state is None:
        raise ConfigError("This model's decoder does not give its first state, which the heads read.")
    return state[:, 0]


def _best_of(scores: Float[Tensor, "query item"], trie: Trie, depths: Sequence[int]) -> list[RankedList]:
    """The best items among those of a trie, ties by row."""
    rows = trie.rows.long().sort().values
    ordered = scores[:, rows].sort(dim=1, descending=True, stable=True)
    best_rows, best_scores = rows[ordered.indices].cpu().numpy(), ordered.values.double().cpu().numpy()
    return [RankedList(best_rows[query, :depth], best_scores[query, :depth]) for query, depth in enumerate(depths)]


def combine(
    ranked: RankedList, near: Float[Tensor, "item"], depth: int, *, weight: float, extra_candidates: int
) -> RankedList:
    """Order the beam's items, and some of the nearest latents, by log-probability plus weighted nearness.

    An item the beam does not have is given the score of the beam's last one: it could have had no more. So an extra
    candidate only ranks high where nearness outweighs what the beam knows, and the beam's first ranks are its own.
    """
    score_of = dict(zip(ranked.rows.tolist(), ranked.scores.tolist(), strict=True))
    edge = min(score_of.values(), default=0.0)
    if extra_candidates:
        nearest = near.topk(min(extra_candidates, len(near)))
        for row in nearest.indices[nearest.values > -torch.inf].tolist():
            score_of.setdefault(row, edge)
    rows = np.fromiter(score_of, np.int64, len(score_of))
    total = np.fromiter(score_of.values(), np.float64, len(score_of)) + weight * near[torch.from_numpy(rows)].numpy()
    order = np.lexsort((rows, -total))[:depth]
    return RankedList(rows[order], total[order])
