"""The protocol card: under which rules a figure was measured. It goes wherever the figure goes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from restd.artifacts.manifest import recorded_versions
from restd.evaluate.queries import TestSet
from restd.snapshot import Snapshot

BINARY = "binary: a grade above 0 is 1, everything else and everything unjudged is 0"
GRADED = "graded: a positive gains its grade, everything unjudged is 0"
_AGREE = ("split", "judgments", "catalogue", "snapshot", "relevance")


@dataclass(frozen=True, slots=True)
class ProtocolCard:
    """Rules of a measurement.

    Args:
        split: which queries were evaluated.
        judgments: hash of the file they are judged by.
        queries: how many were judged, and how many were left out because they have no positive.
        catalogue: how many items compete; all of them do.
        snapshot: hash of the items, Semantic IDs and latents that were searched.
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
    snapshot: str
    relevance: str
    duplicates: str
    decoding: Mapping[str, Any]
    seeds: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=recorded_versions)

    @classmethod
    def of(
        cls,
        tests: TestSet,
        snapshot: Snapshot,
        *,
        graded: bool,
        decoding: Mapping[str, Any],
        seeds: tuple[int, ...] = (),
    ) -> "ProtocolCard":
        """The card of a measurement on these queries and this snapshot."""
        index = snapshot.index
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
            snapshot=snapshot.hash,
            relevance=GRADED if graded else BINARY,
            duplicates="per SID the best grade of its items, ranked where it is first; per item beside it",
            decoding=dict(decoding),
            seeds=seeds,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "seeds": list(self.seeds)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ProtocolCard":
        """Read `to_dict` back; cards from before snapshots name the hash of their index."""
        renamed = {"snapshot" if name == "index" else name: value for name, value in values.items()}
        return cls(**{**renamed, "seeds": tuple(values["seeds"])})

    def conflicts(self, other: "ProtocolCard") -> list[str]:
        """Rules that make two results incomparable: another split, other judgments, items, identifiers or labels."""
        return [name for name in _AGREE if getattr(self, name) != getattr(other, name)]

    def differences(self, other: "ProtocolCard") -> list[str]:
        """Rules of decoding that differ, which must be stated where both results stand in one table."""
        differences = []
        for name in sorted({*self.decoding, *other.decoding}):
            one, two = self.decoding.get(name), other.decoding.get(name)
            if one != two:
                differences.append(f"{name}: {_shown(one)} against {_shown(two)}")
        return differences


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
