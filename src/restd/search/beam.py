"""Beam search over a trie, and exact scoring of everything in it. Sees a stepper and a trie, never a network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from restd.codes import Trie
from restd.errors import ConfigError
from restd.models.contract import Memory
from restd.models.decode_protocol import Cache, Stepper

_EXACT_ROWS = 4_096


@dataclass(frozen=True, slots=True, eq=False)
class Beams:
    """The best SIDs of each query, best first; ties are in SID order."""

    sids: Int64[Tensor, "query beam level"]
    scores: Float[Tensor, "query beam"]
    """Sums of log-probabilities; -inf where there were fewer SIDs than beams."""
    leaves: Int64[Tensor, "query beam"]
    """The trie's leaves, -1 where there is none."""
    first: Float[Tensor, "query 1 width"] | None = None
    """The state that predicted the first code, where the stepper gives it."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What a watcher is shown of a level: everything that could have been kept, and what was."""

    level: int
    prefixes: Int64[Tensor, "query parent level"]
    """Codes of the beams before this level."""
    candidates: Float[Tensor, "query parent code"]
    """Score of every continuation as it was pruned by, look-ahead included; -inf where the trie has none."""
    kept: Float[Tensor, "query beam"]
    """Scores that were kept; -inf where there were fewer."""


Watch = Callable[[Level], None]
LookAhead = Callable[[int, Int64[Tensor, "query beam _"]], Float[Tensor, "query beam _"]]
"""From a level and the nodes below it (-1 for none), what to add to each while the level is pruned."""


@torch.inference_mode()
def beam_search(
    stepper: Stepper,
    memory: Memory,
    trie: Trie | None,
    *,
    width: int | Sequence[int],
    trie_normalized: bool = False,
    look_ahead: LookAhead | None = None,
    watch: Watch | None = None,
) -> Beams:
    """Find the likeliest SIDs of the trie, keeping `width` prefixes per query at every level.

    Args:
        stepper: gives log-probabilities of the next codes.
        memory: what it starts from, one row per query.
        trie: the SIDs that exist, on the device of the scores; None lets every code follow every other.
        width: prefixes kept, one number for all queries or one for each; as many as there are SIDs makes the search
            exact. A query is answered alike whatever the widths of the others.
        trie_normalized: renormalise over the codes that can follow (`trie_children`), so that a lone child is free.
        look_ahead: adds an estimate of what lies below a prefix while prefixes are pruned, never to a result's score.
        watch: is shown every level.
    """
    widest, widths = _widths(width)
    scored, cache = stepper.start(memory)
    first = cache.first
    queries, _, codes = scored.shape
    limits = None if widths is None else torch.tensor(widths, device=scored.device)
    nodes = torch.zeros(queries, 1, dtype=torch.int64, device=scored.device)
    prefixes = nodes.new_zeros(queries, 1, 0)
    scores = scored.new_zeros(queries, 1)
    for level in range(len(stepper.sizes)):
        allowed = None if trie is None else _allowed(trie, level, nodes, codes)
        candidates = _continued(scores, scored, allowed, trie_normalized=trie_normalized)
        judged = candidates
        if look_ahead is not None and trie is not None and allowed is not None and level + 1 < len(stepper.sizes):
            judged = candidates + look_ahead(level, _children(trie, level, nodes, allowed))
        chosen, kept = _best(judged, widest)
        if limits is not None:
            kept = kept.masked_fill(_ranks(kept) >= limits[:, None], -torch.inf)
        if watch is not None:
            watch(Level(level, prefixes, judged, kept))
        parents, following, scores = chosen // codes, chosen % codes, kept
        if judged is not candidates:
            scores = torch.where(kept > -torch.inf, candidates.flatten(1).gather(1, chosen), -torch.inf)
        if trie is not None:
            nodes = trie.advance(level, nodes.gather(1, parents).flatten(), following.flatten()).view(queries, -1)
            nodes = torch.where(scores > -torch.inf, nodes, -1)
        before = prefixes.gather(1, parents[..., None].expand(-1, -1, level))
        prefixes = torch.cat([before, following[..., None]], dim=-1)
        if level + 1 < len(stepper.sizes):
            scored, cache = stepper.step(cache, parents, following)
    order = scores.sort(dim=1, descending=True, stable=True).indices  # beams are in SID order, and equals stay so
    leaves = nodes.gather(1, order) if trie is not None else torch.full_like(order, -1)
    sids = prefixes.gather(1, order[..., None].expand_as(prefixes))
    return Beams(sids, scores.gather(1, order), leaves, first)


def _widths(width: int | Sequence[int]) -> tuple[int, list[int] | None]:
    """The widest beam, and the width of every query where they differ."""
    widths = [width] if isinstance(width, int) else list(width)
    if not widths or min(widths) < 1:
        raise ConfigError(f"A beam of {min(widths, default=0)} keeps nothing; expected a width of at least 1.")
    return max(widths), None if min(widths) == max(widths) else widths


def _allowed(trie: Trie, level: int, nodes: Int64[Tensor, "query beam"], codes: int) -> Bool[Tensor, "query beam code"]:
    """Which codes may follow each prefix, filled up to the codes of the largest level."""
    allowed = trie.children(level, nodes.flatten()).view(*nodes.shape, -1)
    missing = codes - allowed.shape[-1]
    return torch.nn.functional.pad(allowed, (0, missing)) if missing else allowed


def _children(
    trie: Trie, level: int, nodes: Int64[Tensor, "query beam"], allowed: Bool[Tensor, "query beam code"]
) -> Int64[Tensor, "query beam code"]:
    """Node that each code leads to, -1 where there is none: a node's children are numbered in the order of codes."""
    first = trie.depths[level].first_child[nodes.clamp_min(0)].long()
    return torch.where(allowed, first[..., None] + allowed.cumsum(dim=-1) - 1, -1)


def _continued(
    scores: Float[Tensor, "query beam"],
    scored: Float[Tensor, "query beam code"],
    allowed: Bool[Tensor, "query beam code"] | None,
    *,
    trie_normalized: bool,
) -> Float[Tensor, "query beam code"]:
    """Scores of all continuations; -inf for those that the trie does not have."""
    if allowed is None:
        return scores[..., None] + scored
    if trie_normalized:
        scored = scored.masked_fill(~allowed, -torch.inf).log_softmax(dim=-1).nan_to_num(nan=-torch.inf)
    return (scores[..., None] + scored).masked_fill_(~allowed, -torch.inf)


def _best(
    candidates: Float[Tensor, "query beam code"], width: int
) -> tuple[Int64[Tensor, "query kept"], Float[Tensor, "query kept"]]:
    """Flat positions of the best candidates, in ascending order, and their scores.

    Beams stand in SID order and codes within them too, so positions are in SID order: among equals at the edge the
    first ones are taken, whatever the machine's partial sort would have done.
    """
    flat = candidates.flatten(1)
    count = min(width, flat.shape[1])
    if count == flat.shape[1]:
        return torch.arange(count, device=flat.device).expand(len(flat), -1), flat
    best = flat.topk(count, dim=1, sorted=False)
    edge = best.values.amin(dim=1, keepdim=True)
    at_edge = flat == edge
    from_edge = (best.values == edge).sum(dim=1, keepdim=True)
    if _is_tied(at_edge, from_edge):
        kept = (flat > edge) | (at_edge & (at_edge.cumsum(dim=1) <= from_edge))
        positions = kept.nonzero()[:, 1].view(len(flat), count)
    else:
        positions = best.indices.sort(dim=1).values
    return positions, flat.gather(1, positions)


def _is_tied(at_edge: Bool[Tensor, "query candidate"], from_edge: Int64[Tensor, "query 1"]) -> bool:
    """Whether some query has candidates at the edge that were left out, so that ties must be broken."""
    return not bool((at_edge.sum(dim=1, keepdim=True) == from_edge).all())


def _ranks(scores: Float[Tensor, "query beam"]) -> Int64[Tensor, "query beam"]:
    """Rank of each beam within its query, from 0; equals in SID order."""
    return scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


@torch.inference_mode()
def exact_scores(
    stepper: Stepper, memory: Memory, trie: Trie, *, rows: int = _EXACT_ROWS, trie_normalized: bool = False
) -> Float[Tensor, "query leaf"]:
    """Score every SID of the trie: its log-probability for each query, in the order of the leaves.

    Every prefix is visited once, depth first in blocks of `rows`, so that memory does not grow with the catalogue.
    """
    scored, cache = stepper.start(memory)
    exact = scored.new_full((len(scored), trie.leaves), -torch.inf)
    block = max(1, rows // len(scored))

    def expand(depth: int, first: int, scores: Tensor, scored: Tensor, cache: Cache) -> None:
        """Score the children of the nodes from `first` on, which are neighbours, and continue below them."""
        level = trie.depths[depth]
        edges = level.first_child[first : first + scores.shape[1] + 1].long()
        start, end = int(edges[0]), int(edges[-1])
        codes = level.codes[start:end].long()
        parents = torch.repeat_interleave(torch.arange(scores.shape[1], device=edges.device), edges.diff())
        if trie_normalized:
            allowed = trie.children(depth, first + torch.arange(scores.shape[1], device=edges.device))
            full = torch.nn.functional.pad(allowed, (0, scored.shape[-1] - allowed.shape[1]))
            scored = scored.masked_fill(~full, -torch.inf).log_softmax(dim=-1)
        below = scores[:, parents] + scored[:, parents, codes]
        if depth + 1 == trie.levels:
            exact[:, start:end] = below
            return
        for begin in range(0, end - start, block):
            part = slice(begin, begin + block)
            rows_of = [values[part].expand(len(exact), -1) for values in (parents, codes)]
            following, longer = stepper.step(cache, *rows_of)
            expand(depth + 1, start + begin, below[:, part], following, longer)

    expand(0, 0, scored.new_zeros(len(scored), 1), scored, cache)
    return exact


def exact_rank(scores: Float[Tensor, "query leaf"], leaves: Int64[Tensor, "query"]) -> Int64[Tensor, "query"]:
    """Rank*: one plus the number of SIDs that score strictly higher."""
    own = scores.gather(1, leaves[:, None])
    return 1 + (scores > own).sum(dim=1)
