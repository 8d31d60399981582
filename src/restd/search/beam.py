"""Beam search over a trie, and exact scoring of everything in it. Sees a stepper and a trie, never a network."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.errors import ConfigError
from restd.index import Trie
from restd.models.contract import Memory
from restd.models.decoding import Cache, Stepper

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
    """The state that predicted the first code, where the stepper tells."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What a watcher is shown of a level: everything that could have been kept, and what was."""

    level: int
    prefixes: Int64[Tensor, "query parent level"]
    """Codes of the beams before this level."""
    candidates: Float[Tensor, "query parent code"]
    """Score of every continuation; -inf where the trie has none."""
    kept: Float[Tensor, "query beam"]
    """Scores that were kept."""


Watch = Callable[[Level], None]
Promise = Callable[[int, Int64[Tensor, "query beam _"]], Float[Tensor, "query beam _"]]
"""From a level and the nodes below it (-1 for none), what each promises."""


@torch.inference_mode()
def beam_search(
    stepper: Stepper,
    memory: Memory,
    trie: Trie | None,
    *,
    width: int,
    trie_normalized: bool = False,
    promise: Promise | None = None,
    watch: Watch | None = None,
) -> Beams:
    """Find the likeliest SIDs of the trie, keeping `width` prefixes a query at every level.

    Args:
        stepper: gives log-probabilities of the next codes.
        memory: what it starts from, a row a query.
        trie: the SIDs that exist; None lets every code follow every other.
        width: prefixes kept; as many as there are SIDs makes the search exact.
        trie_normalized: renormalise over the codes that can follow (`trie_children`), so that a lone child is free.
        promise: what to add to a prefix's score while it is judged, never to a result's: hope of what lies below it.
        watch: is shown every level.
    """
    if width < 1:
        raise ConfigError(f"A beam of {width} was asked for; wanted at least 1.")
    scored, cache = stepper.start(memory)
    first = cache.first
    queries, _, codes = scored.shape
    nodes = torch.zeros(queries, 1, dtype=torch.int64, device=scored.device)
    prefixes = nodes.new_zeros(queries, 1, 0)
    scores = scored.new_zeros(queries, 1)
    for level in range(len(stepper.sizes)):
        allowed = None if trie is None else trie.children(level, nodes.flatten()).view(queries, nodes.shape[1], -1)
        candidates = _continued(scores, scored, allowed, trie_normalized=trie_normalized)
        if promise is None or allowed is None or level + 1 == len(stepper.sizes):
            chosen, kept = _best(candidates, width)
        else:
            assert trie is not None
            chosen, _ = _best(candidates + promise(level, _children(trie, level, nodes, allowed)), width)
            kept = candidates.flatten(1).gather(1, chosen)
        if watch is not None:
            watch(Level(level, prefixes, candidates, kept))
        parents, following, scores = chosen // codes, chosen % codes, kept
        if trie is not None:
            nodes = trie.advance(level, nodes.gather(1, parents).flatten(), following.flatten()).view(queries, -1)
            nodes = torch.where(scores > -torch.inf, nodes, -1)
        held = prefixes.gather(1, parents[..., None].expand(-1, -1, level))
        prefixes = torch.cat([held, following[..., None]], dim=-1)
        if level + 1 < len(stepper.sizes):
            scored, cache = stepper.step(cache, parents, following)
    order = scores.sort(dim=1, descending=True, stable=True).indices  # beams are in SID order, and equals stay so
    leaves = nodes.gather(1, order) if trie is not None else torch.full_like(order, -1)
    sids = prefixes.gather(1, order[..., None].expand_as(prefixes))
    return Beams(sids, scores.gather(1, order), leaves, first)


def _children(
    trie: Trie, level: int, nodes: Int64[Tensor, "query beam"], allowed: Tensor
) -> Int64[Tensor, "query beam _"]:
    """Node that each code leads to, -1 where there is none: a node's children are numbered in the order of codes."""
    first = trie.depths[level].first_child[nodes.clamp_min(0)].long()
    return torch.where(allowed, first[..., None] + allowed.cumsum(dim=-1) - 1, -1)


def _continued(
    scores: Float[Tensor, "query beam"],
    scored: Float[Tensor, "query beam code"],
    allowed: Tensor | None,
    *,
    trie_normalized: bool,
) -> Float[Tensor, "query beam code"]:
    """Scores of all continuations; what the trie does not have is out of the question."""
    if allowed is None:
        return scores[..., None] + scored
    short = scored.shape[-1] - allowed.shape[-1]
    if short:
        allowed = torch.nn.functional.pad(allowed, (0, short))
    if trie_normalized:
        scored = scored.masked_fill(~allowed, -torch.inf).log_softmax(dim=-1).nan_to_num(nan=-torch.inf)
    return (scores[..., None] + scored).masked_fill_(~allowed, -torch.inf)


def _best(
    candidates: Float[Tensor, "query beam code"], width: int
) -> tuple[Int64[Tensor, "query kept"], Float[Tensor, "query kept"]]:
    """Flat places of the best candidates, in ascending order, and their scores.

    Beams stand in SID order and codes within them too, so places are in SID order: among equals at the edge the first
    ones are taken, whatever the machine's partial sort would have done.
    """
    flat = candidates.flatten(1)
    count = min(width, flat.shape[1])
    if count == flat.shape[1]:
        return torch.arange(count, device=flat.device).expand(len(flat), -1), flat
    best = flat.topk(count, dim=1, sorted=False)
    edge = best.values.amin(dim=1, keepdim=True)
    at_edge = flat == edge
    wanted = (best.values == edge).sum(dim=1, keepdim=True)
    if bool((at_edge.sum(dim=1, keepdim=True) == wanted).all()):  # nobody at the edge was left out: no ties to break
        places = best.indices.sort(dim=1).values
    else:
        kept = (flat > edge) | (at_edge & (at_edge.cumsum(dim=1) <= wanted))
        places = kept.nonzero()[:, 1].view(len(flat), count)
    return places, flat.gather(1, places)


@torch.inference_mode()
def exact_scores(
    stepper: Stepper, memory: Memory, trie: Trie, *, rows: int = _EXACT_ROWS, trie_normalized: bool = False
) -> Float[Tensor, "query leaf"]:
    """Score every SID of the trie: its log-probability for each query, in the order of the leaves.

    Every prefix is visited once, depth first in blocks of `rows`, so that memory does not grow with the catalogue.
    """
    scored, cache = stepper.start(memory)
    found = scored.new_full((len(scored), trie.leaves), -torch.inf)
    block = max(1, rows // len(scored))

    def expand(depth: int, first: int, scores: Tensor, scored: Tensor, cache: Cache) -> None:
        """Score the children of the nodes from `first` on, which are neighbours, and go on below them."""
        held = trie.depths[depth]
        edges = held.first_child[first : first + scores.shape[1] + 1].long()
        start, end = int(edges[0]), int(edges[-1])
        codes = held.codes[start:end].long()
        parents = torch.repeat_interleave(torch.arange(scores.shape[1], device=edges.device), edges.diff())
        if trie_normalized:
            allowed = trie.children(depth, first + torch.arange(scores.shape[1], device=edges.device))
            full = torch.nn.functional.pad(allowed, (0, scored.shape[-1] - allowed.shape[1]))
            scored = scored.masked_fill(~full, -torch.inf).log_softmax(dim=-1)
        below = scores[:, parents] + scored[:, parents, codes]
        if depth + 1 == trie.levels:
            found[:, start:end] = below
            return
        for begin in range(0, end - start, block):
            part = slice(begin, begin + block)
            rows_of = [values[part].expand(len(found), -1) for values in (parents, codes)]
            following, longer = stepper.step(cache, *rows_of)
            expand(depth + 1, start + begin, below[:, part], following, longer)

    expand(0, 0, scored.new_zeros(len(scored), 1), scored, cache)
    return found


def exact_rank(scores: Float[Tensor, "query leaf"], leaves: Int64[Tensor, "query"]) -> Int64[Tensor, "query"]:
    """Rank*: one plus the number of SIDs that score strictly higher."""
    own = scores.gather(1, leaves[:, None])
    return 1 + (scores > own).sum(dim=1)
