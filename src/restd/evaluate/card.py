"""The protocol card: under which rules a figure was measured. It goes wherever the figure goes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from restd.artifacts import hash_json
from restd.artifacts.manifest import recorded_versions
from restd.evaluate.queries import TestSet
from restd.index import SidIndex

BINARY = "binary: a grade above 0 is 1, everything else and everything unjudged is 0"
GRADED = "graded: a positive gains its grade, everything unjudged is 0"
_AGREE = ("split", "judgments", "catalogue", "index", "relevance")


@dataclass(frozen=True, slots=True)
class ProtocolCard:
    """Rules of a measurement.

    Args:
        split: whose queries were asked.
        judgments: hash of the file they are judged by.
        queries: how many were judged, and how many were left out for want of a positive.
        catalogue: how many items compete; all of them do.
        index: hash of the Semantic IDs that make results the same or not.
        relevance: the label rule.
        duplicates: what happens to items that share a Semantic ID.
        decoding: what ranked, and how: beam, score normaliser, categories.
        seeds: of the models.
        versions: of the software.
    """

    split: str
    judgments: str
    queries: Mapping[str, int]
    catalogue: Mapping[str, Any]
    index: str
    relevance: str
    duplicates: str
    decoding: Mapping[str, Any]
    seeds: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=recorded_versions)

    @classmethod
    def of(
        cls,
        tests: TestSet,
        index: SidIndex,
        *,
        graded: bool,
        decoding: Mapping[str, Any],
        seeds: tuple[int, ...] = (),
    ) -> "ProtocolCard":
        """The card of a measurement on these queries and this index."""
        return cls(
            split=tests.split,
            judgments=tests.source,
            queries={
                "judged": len(tests),
                "without_positives": tests.without_positives,
                "positives": len(tests.rows),
                "positives_not_in_index": tests.unknown,
            },
            catalogue={"items": len(index), "unique_sids": index.table.unique, "policy": index.policy},
            index=index_identity(index),
            relevance=GRADED if graded else BINARY,
            duplicates="per SID the best grade of its items, ranked where it is first; per item beside it",
            decoding=dict(decoding),
            seeds=seeds,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "seeds": list(self.seeds)}

    @classmethod
    def from_dict(cls, held: Mapping[str, Any]) -> "ProtocolCard":
        """Read `to_dict` back."""
        return cls(**{**held, "seeds": tuple(held["seeds"])})

    def conflicts(self, other: "ProtocolCard") -> list[str]:
        """Rules that make two results incomparable: another split, other judgments, items, identifiers or labels."""
        return [name for name in _AGREE if getattr(self, name) != getattr(other, name)]

    def differences(self, other: "ProtocolCard") -> list[str]:
        """What else differs, and must be said where both stand in one table."""
        found = []
        for name in sorted({*self.decoding, *other.decoding}):
            one, two = self.decoding.get(name), other.decoding.get(name)
            if one != two:
                found.append(f"{name}: {_said(one)} against {_said(two)}")
        return found


def _said(value: Any) -> str:
    return "none" if value is None else str(value)


def index_identity(index: SidIndex) -> str:
    """Hash of every item's Semantic ID: which index a ranking of SIDs belongs to."""
    return hash_json({"ids": index.table.ids.to_pylist(), "sids": index.sids.tolist()})
