"""Decoding for any backbone: without a cache, by running the decoder over every prefix again."""

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.models.decode_protocol import Cache, Memory

if TYPE_CHECKING:
    from restd.models.contract import Backbone


class PrefixStepper:
    """A copy of a backbone as it is now, decoding by `states` and `logits` alone.

    It computes all positions of a prefix at every level and repeats the memory for every beam. A backbone that is
    searched often should have a stepper of its own. Log-probabilities are over the codes of the level.
    """

    def __init__(self, backbone: "Backbone") -> None:
        self._backbone = deepcopy(backbone).eval().requires_grad_(False)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each level."""
        return self._backbone.sizes

    @torch.inference_mode()
    def start(self, memory: Memory) -> tuple[Float[Tensor, "query 1 code"], Cache]:
        """Log-probabilities of the first code, one row per query."""
        memory = memory.apart()
        prefixes = torch.zeros(len(memory.mask), 1, 0, dtype=torch.int64, device=memory.mask.device)
        scores, first = self._scores(memory, prefixes)
        latent = None if memory.latent is None else memory.latent[:, None]
        return scores, Cache(((prefixes,),), ((memory.states, memory.mask),), None, first=first, residual=latent)

    @torch.inference_mode()
    def step(
        self, cache: Cache, parents: Int64[Tensor, "query beam"], codes: Int64[Tensor, "query beam"]
    ) -> tuple[Float[Tensor, "query beam code"], Cache]:
        """Log-probabilities of the next code after `codes` were appended to the beams `parents`."""
        before = cache.past[0][0].gather(1, parents[..., None].expand(-1, -1, cache.level))
        prefixes = torch.cat([before, codes[..., None]], dim=-1)
        latent = None if cache.residual is None else cache.residual[:, 0]  # `states` subtracts the codes itself
        scores, _ = self._scores(Memory(*cache.memory[0], latent=latent), prefixes)
        return scores, replace(cache, past=((prefixes,),), level=cache.level + 1)

    def _scores(
        self, memory: Memory, prefixes: Int64[Tensor, "query beam level"]
    ) -> tuple[Float[Tensor, "query beam code"], Float[Tensor, "query beam width"]]:
        """Log-probabilities of the code that follows each prefix, and the states that predict it."""
        queries, beams, level = prefixes.shape
        rows = torch.arange(queries, device=prefixes.device).repeat_interleave(beams)
        states = self._backbone.states(memory.take(rows), prefixes.flatten(0, 1)).states[:, : level + 1]
        scores = self._backbone.logits(states)[:, level].float().log_softmax(dim=-1)
        return scores.unflatten(0, (queries, beams)), states[:, level].unflatten(0, (queries, beams))
