"""Decoding Semantic IDs of unequal length: what follows a terminal code is certain."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.codes.ending import TERMINAL
from restd.models.contract import Backbone
from restd.models.decode_protocol import Cache, Memory, Normalizer, Stepper


class EndingStepper:
    """Any stepper, for identifiers that a code can end.

    A prefix whose last code is terminal can only be followed by terminal codes, which cost nothing: log-probability 0,
    and -inf for every other code. So an identifier has the probability of its codes and its first terminal code, and
    all identifiers together that of one. Prefixes that have ended are still decoded beside the others.

    Args:
        stepper: gives log-probabilities of the next codes, whatever came before.
    """

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each level."""
        return self._stepper.sizes

    def start(self, memory: Memory) -> tuple[Float[Tensor, "query 1 code"], Cache]:
        """Log-probabilities of the first code, one row per query."""
        return self._stepper.start(memory)

    @torch.inference_mode()
    def step(
        self, cache: Cache, parents: Int64[Tensor, "query beam"], codes: Int64[Tensor, "query beam"]
    ) -> tuple[Float[Tensor, "query beam code"], Cache]:
        """Log-probabilities of the next code after `codes` were appended to the beams `parents`."""
        scored, cache = self._stepper.step(cache, parents, codes)
        certain = scored.new_full((scored.shape[-1],), -torch.inf)
        certain[TERMINAL] = 0.0
        return torch.where((codes == TERMINAL)[..., None], certain, scored), cache


def make_stepper(backbone: Backbone, *, normalizer: Normalizer = "full_vocab") -> Stepper:
    """Copy what decodes level by level; where a code can end identifiers, as one that knows it."""
    stepper = backbone.stepper(normalizer=normalizer)
    return EndingStepper(stepper) if backbone.ends else stepper
