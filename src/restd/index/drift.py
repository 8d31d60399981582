"""How items that are added later compare with those the codebooks were fitted to."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int16

from restd.codes import Codebooks, as_tensor, last_residuals, spaces
from restd.codes.keys import pack

_WORSE = 1.5


@dataclass(frozen=True, slots=True)
class Drift:
    """How added items compare with those the codebooks were fitted to."""

    items: int
    added: int
    error_old: float
    error_new: float
    """What the raw codes leave, ‖r_L‖², as a share of ‖r_0‖²: an item that lies outside the space the latents were made
    for is small there, so the bare error would flatter it."""
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
            f"{self.added:,} items added to {self.items:,}. Quantisation error {self.error_new:.1%} against "
            f"{self.error_old:.1%} before, collisions {self.collisions_new:.1%} against {self.collisions_old:.1%}. "
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
    residuals = last_residuals(as_tensor(latents), as_tensor(raw), codebooks)
    if codebooks.space == "euclidean":
        left = np.square(residuals.numpy()).sum(1)
        whole = np.square(latents.astype(np.float32)).sum(1)
    else:
        left = spaces.squared_norms(residuals, codebooks.space).numpy()
        whole = spaces.squared_norms(as_tensor(latents).float(), codebooks.space).numpy()
    keys = pack(raw, codebooks.sizes)
    shared_old, shared_new = _shared(keys[:before]), _shared(keys)[before:]
    return Drift(
        items=before,
        added=len(raw) - before,
        error_old=float(left[:before].sum() / whole[:before].sum()),
        error_new=float(left[before:].sum() / max(whole[before:].sum(), 1e-12)),
        collisions_old=float(shared_old.mean()),
        collisions_new=float(shared_new.mean()) if len(shared_new) else 0.0,
        edited_new=edited,
    )


def _shared(keys: np.ndarray) -> np.ndarray:
    """Whether each key occurs more than once."""
    _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[which] > 1
