"""Exact scores of chosen Semantic IDs: what the beam would have given them, had it kept their prefixes."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.codes import Trie
from restd.models.contract import Memory
from restd.models.decode_protocol import Stepper


@torch.inference_mode()
def sid_scores(
    stepper: Stepper, memory: Memory, sids: Int64[Tensor, "query candidate level"], *, trie: Trie | None = None
) -> Float[Tensor, "query candidate"]:
    """Log-probability of every candidate for its query; prefixes that candidates share are decoded once.

    Args:
        stepper: gives log-probabilities of the next codes.
        memory: what it starts from, one row per query.
        sids: candidates of each query; repeat one to fill up a query that has fewer.
        trie: renormalise over the codes that can follow in this trie (`trie_children`); None to leave scores alone.
    """
    queries, candidates, levels = sids.shape
    order = torch.arange(candidates, device=sids.device).expand(queries, -1)
    for level in reversed(range(levels)):
        codes = sids[:, :, level].gather(1, order)
        order = order.gather(1, codes.argsort(dim=1, stable=True))
    ordered = sids.gather(1, order[..., None].expand_as(sids))
    scored, cache = stepper.start(memory)
    nodes = torch.zeros(queries, 1, dtype=torch.int64, device=sids.device)
    prefix = torch.zeros(queries, candidates, dtype=torch.int64, device=sids.device)
    starts_new = torch.zeros(queries, candidates, dtype=torch.bool, device=sids.device)
    total = scored.new_zeros(queries, candidates)
    for level in range(levels):
        if level:
            before = ordered[:, :, level - 1]
            starts_new[:, 1:] |= before[:, 1:] != before[:, :-1]
            longer = starts_new.cumsum(dim=1)
            count = int(longer[:, -1].max()) + 1
            first = torch.searchsorted(longer, torch.arange(count, device=sids.device).expand(queries, -1).contiguous())
            first = first.clamp_max(candidates - 1)  # queries with fewer prefixes repeat their last one
            parents, codes = prefix.gather(1, first), before.gather(1, first)
            if trie is not None:
                nodes = trie.advance(level - 1, nodes.gather(1, parents).flatten(), codes.flatten()).view(queries, -1)
            scored, cache = stepper.step(cache, parents, codes)
            prefix = longer
        if trie is not None:
            scored = _over_children(scored, trie, level, nodes)
        total += scored.flatten(1).gather(1, prefix * scored.shape[-1] + ordered[:, :, level])
    return torch.empty_like(total).scatter_(1, order, total)


def _over_children(
    scored: Float[Tensor, "query prefix code"], trie: Trie, level: int, nodes: Int64[Tensor, "query prefix"]
) -> Float[Tensor, "query prefix code"]:
    allowed = trie.children(level, nodes.flatten()).view(*nodes.shape, -1)
    allowed = torch.nn.functional.pad(allowed, (0, scored.shape[-1] - allowed.shape[-1]))
    return scored.masked_fill(~allowed, -torch.inf).log_softmax(dim=-1)
