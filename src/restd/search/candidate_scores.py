"""Exact scores of chosen Semantic IDs: what the beam would have given them, had it kept their prefixes."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.codes import Trie
from restd.models.contract import Memory
from restd.models.decode_protocol import Cache, Stepper

Choose = Callable[[Float[Tensor, "query 1 width"] | None], Int64[Tensor, "query candidate level"]]
"""From the state that predicts the first code, where the stepper gives it, the SIDs to score for each query."""


class ScoringStepper:
    """A stepper for one search, which scores chosen SIDs on the way.

    The search sees only its own beams. A prefix that beams and chosen SIDs have in common is decoded once, and so is
    the memory. After the last step, `scores` has the log-probability of every chosen SID.

    Args:
        stepper: gives log-probabilities of the next codes.
        choose: the SIDs to score; for a query that has fewer, any SID fills up.
        trie: renormalise the chosen SIDs' scores over the codes that can follow in this trie (`trie_children`); None to
            leave them alone.
    """

    def __init__(self, stepper: Stepper, choose: Choose, *, trie: Trie | None = None) -> None:
        self._stepper, self._choose, self._trie = stepper, choose, trie
        self._level = 0
        self.sids: Int64[Tensor, "query candidate level"]
        self.scores: Float[Tensor, "query candidate"]
        self._beams: Int64[Tensor, "query beam"]  # row of each beam's prefix among those that were decoded together
        self._rows: Int64[Tensor, "query candidate"]  # likewise of each chosen SID's
        self._nodes: Int64[Tensor, "query candidate"]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each level."""
        return self._stepper.sizes

    @torch.inference_mode()
    def start(self, memory: Memory) -> tuple[Float[Tensor, "query 1 code"], Cache]:
        """Log-probabilities of the first code, one row per query."""
        scored, cache = self._stepper.start(memory)
        self.sids = self._choose(cache.first)
        queries, candidates, _ = self.sids.shape
        self._level = 0
        self.scores = scored.new_zeros(queries, candidates)
        self._beams = torch.zeros(queries, 1, dtype=torch.int64, device=scored.device)
        self._rows = self._nodes = self._beams.new_zeros(queries, candidates)
        self._add(scored)
        return scored, cache

    @torch.inference_mode()
    def step(
        self, cache: Cache, parents: Int64[Tensor, "query beam"], codes: Int64[Tensor, "query beam"]
    ) -> tuple[Float[Tensor, "query beam code"], Cache]:
        """Log-probabilities of the next code after `codes` were appended to the beams `parents`."""
        own = self.sids[:, :, self._level]
        if self._trie is not None:
            nodes = self._trie.advance(self._level, self._nodes.flatten(), own.flatten())
            self._nodes = nodes.view(own.shape)
        both_parents = torch.cat([self._beams.gather(1, parents), self._rows], dim=1)
        both_codes = torch.cat([codes, own], dim=1)
        row_of, first = _distinct(both_parents * max(self.sizes) + both_codes)
        scored, cache = self._stepper.step(cache, both_parents.gather(1, first), both_codes.gather(1, first))
        self._beams, self._rows = row_of.split([codes.shape[1], own.shape[1]], dim=1)
        self._level += 1
        self._add(scored)
        return scored.take_along_dim(self._beams[..., None], dim=1), cache

    def _add(self, scored: Float[Tensor, "query prefix code"]) -> None:
        """Add the log-probability of every chosen SID's code of this level."""
        codes = self.sids[:, :, self._level]
        if self._trie is None:
            self.scores += scored.flatten(1).gather(1, self._rows * scored.shape[-1] + codes)
            return
        if not codes.numel():  # the parts proposed nothing that the beam does not score anyway
            return
        allowed = self._trie.children(self._level, self._nodes.flatten()).view(*codes.shape, -1)
        allowed = torch.nn.functional.pad(allowed, (0, scored.shape[-1] - allowed.shape[-1]))
        following = scored.take_along_dim(self._rows[..., None], dim=1).masked_fill(~allowed, -torch.inf)
        self.scores += following.log_softmax(dim=-1).gather(2, codes[..., None])[..., 0]


def _distinct(
    keys: Int64[Tensor, "query entry"],
) -> tuple[Int64[Tensor, "query entry"], Int64[Tensor, "query prefix"]]:
    """Number of each entry's key among the distinct keys of its query, and an entry that has each of them.

    Queries with fewer distinct keys than others repeat their last one.
    """
    entries = keys.shape[1]
    if not entries:
        return keys, keys
    ordered, order = keys.sort(dim=1)
    numbers = torch.zeros_like(keys)
    numbers[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(dim=1)
    wanted = torch.arange(int(numbers[:, -1].max()) + 1, device=keys.device).expand(len(keys), -1).contiguous()
    place = torch.searchsorted(numbers, wanted).clamp_max(entries - 1)
    return torch.empty_like(keys).scatter_(1, order, numbers), order.gather(1, place)


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
    scoring = ScoringStepper(stepper, lambda _: sids, trie=trie)
    _, cache = scoring.start(memory)
    none = torch.zeros(len(sids), 0, dtype=torch.int64, device=sids.device)
    for _ in range(sids.shape[2] - 1):
        _, cache = scoring.step(cache, none, none)
    return scoring.scores
