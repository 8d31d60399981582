"""Collision policies by name: what to do when two items get the same codes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from restd.registry import Registry, deferred


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """An entry of `POLICIES`.

    Args:
        name: name of the policy.
        summary: one sentence that says what it does.
        resolve: takes a `CollisionProblem` and returns a `Resolution`; deterministic.
        unique_within: whether it gives every item a SID of its own without adding a level, so that a catalogue larger
            than the number of addresses is refused before anything is encoded.
        shares: whether items may keep sharing a SID; SIDs of older items then do not restrict those of new ones.
        bounded: whether it reads `index.capacity`, the largest number of items that may share a SID.
        source: the paper it is from; empty for our own.
    """

    name: str
    summary: str
    resolve: Callable[..., Any]
    unique_within: bool = False
    shares: bool = False
    bounded: bool = False
    source: str = ""


CAPACITY = 5
"""Items that may share a SID under the policy `capacity`, where nothing else is said."""
POLICIES: Registry[PolicyKind] = Registry("collision policy", group="policies")
"""Every collision policy that is installed. Listing it loads no torch."""

_HOME = "restd.index.collisions"

POLICIES.add(
    PolicyKind(
        "single_substitution",
        "One item keeps its SID; each other changes the one code that costs least and gives a free SID.",
        deferred(_HOME, "single_substitution"),
        unique_within=True,
    )
)
POLICIES.add(
    PolicyKind(
        "min_distortion",
        "One item keeps its SID; the others are encoded again by beam search over all levels.",
        deferred(_HOME, "min_distortion"),
        unique_within=True,
    )
)
POLICIES.add(
    PolicyKind(
        "sinkhorn_last",
        "The last code of each group is assigned again by a balanced plan; some items may still share a SID.",
        deferred(_HOME, "sinkhorn_last"),
        source="Zheng et al. 2024, LC-Rec",
    )
)
POLICIES.add(
    PolicyKind(
        "suffix",
        "One more code, which has no codebook, numbers the items of each group, as in TIGER.",
        deferred(_HOME, "suffix"),
        source="Rajput et al. 2023, TIGER",
    )
)
POLICIES.add(PolicyKind("none", "Items with the same codes share a SID.", deferred(_HOME, "none"), shares=True))
POLICIES.add(
    PolicyKind(
        "capacity",
        "At most index.capacity items share a SID; the others take the nearest last code, or SID, with room.",
        deferred("restd.index.capacity", "capacity"),
        source="Fu et al. 2026, FORGE",
        bounded=True,
    )
)
