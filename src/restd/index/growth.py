"""How items that are added later compare with those the codebooks were fitted to."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int16

from restd.index.keys import pack
from restd.quantize import Codebooks, last_residuals

_WORSE = 1.5


@dataclass(frozen=True, slots=True)
class Drift:
    """How added items compare with those the codebooks were fitted to."""

    items: int
    added: int
    error_old: float
    error_new: float
    """Mean squared quantisation error ‖r_L‖² of the raw codes."""
    collisions_old: float
    collisions_new: float
    """Share of items whose raw codes another item had already, or has too."""
    edited_new: float

    @property
    def drifted(self) -> bool:
        """Whether new items are so badly served that a new index should be considered."""
        return self.error_new > _WORSE * self.error_old

    def sentence(self) -> str:
        """Say it in words."""
        verdict = (
            "The codebooks no longer fit what is being added: consider a new index."
            if self.drifted
            else "The codebooks still fit."
        )
        return (
            f"{self.added:,} items added to {self.items:,}. Quantisation error {self.error_new:.4g} against "
            f"{self.error_old:.4g} before, collisions {self.collisions_new:.1%} against {self.collisions_old:.1%}. "
            f"{verdict}"
        )


def measure_drift(
    latents: Float[np.ndarray, "item dim"],
    raw: Int16[np.ndarray, "item level"],
    codebooks: Codebooks,
    *,
    before: int,
    edited: float,
) -> Drift:
    """Compare the rows from `before` on with those before it; `edited` is the share of new items that were moved."""
    errors = np.square(last_residuals(latents, raw, codebooks)).sum(1)
    keys = pack(raw, codebooks.sizes)
    shared_old, shared_new = _shared(keys[:before]), _shared(keys)[before:]
    return Drift(
        items=before,
        added=len(raw) - before,
        error_old=float(errors[:before].mean()),
        error_new=float(errors[before:].mean()) if len(raw) > before else 0.0,
        collisions_old=float(shared_old.mean()),
        collisions_new=float(shared_new.mean()) if len(shared_new) else 0.0,
        edited_new=edited,
    )


def _shared(keys: np.ndarray) -> np.ndarray:
    """Whether each key occurs more than once."""
    _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[which] > 1
