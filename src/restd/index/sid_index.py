"""`SidIndex`: every item's Semantic ID, with all that training and search need of the quantiser."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Float16, Int16, Int32, Int64

from restd.artifacts import create, open_artifact
from restd.artifacts.manifest import MANIFEST
from restd.codes import Codebooks, Trie, as_tensor, assign, trajectory
from restd.codes.ending import TERMINAL
from restd.errors import ArtifactError, ConfigError, DataError
from restd.index.collisions import CollisionProblem
from restd.index.drift import Drift, measure_drift
from restd.index.placement import Placement
from restd.index.policies import POLICIES
from restd.index.table import SidTable, refuse_known
from restd.quantize import Quantizer, check_latents, input_width, restore_quantizer

KIND = "sid-index"
SCHEMA = 1
FOLDER = "index"
"""Where `restd index --out DIR` puts the index itself, beside the stages it was made from."""
_LEARNED = "quantizer."
_GENERATION = "generation"


@dataclass(frozen=True, eq=False)
class SidIndex:
    """An index of Semantic IDs.

    Args:
        table: item ids and stored SIDs.
        raw: codes as first assigned, before collisions were resolved.
        latents: what was quantised, or where a scheme without codebooks sees the items; None where there is neither.
        codebooks: codewords; None likewise. A level of the table beyond them is a disambiguation code.
        quantizer: maps embeddings to latents, so that items can be added; None for imported indexes.
        policy: how collisions were resolved, and how those of added items will be.
        origin: what the index was made from (encoder, configuration), for the record and for stages that come later.
        generation: how many times items were added since the index was built. A count, not the largest of its items:
            those of the last time may be gone, and a model may have been trained on them.
        came_in: generation in which each item came, row for row; None where all came when the index was built. Four
            bytes an item, as a service that adds items one by one passes 32,767 times.
        capacity: items that may share a SID, also when more are added; None where the policy does not bound them.
    """

    table: SidTable
    raw: Int16[np.ndarray, "item rq_level"]
    latents: Float16[np.ndarray, "item dim"] | None
    codebooks: Codebooks | None
    quantizer: Quantizer | None
    policy: str
    origin: Mapping[str, Any] = field(default_factory=dict)
    generation: int = 0
    came_in: Int32[np.ndarray, "item"] | None = None
    capacity: int | None = None

    def __len__(self) -> int:
        return len(self.table)

    @property
    def sids(self) -> Int16[np.ndarray, "item level"]:
        """Stored SIDs, row for row."""
        return self.table.sids

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each stored level."""
        return self.table.sizes

    @property
    def ends(self) -> bool:
        """Whether code 0 ends an identifier, so that they may be of unequal length."""
        return self.table.ends

    def code_counts(self, level: int) -> Int64[np.ndarray, "code"]:
        """Number of items that have each code of a level; of a code that only ends identifiers, none is counted."""
        counts = np.bincount(self.sids[:, level], minlength=self.sizes[level])
        return counts[TERMINAL + 1 :] if self.ends else counts

    @property
    def scheme(self) -> str | None:
        """Name of the scheme that made the identifiers without latents and codebooks; None for other indexes."""
        return self.origin.get("scheme", {}).get("name")

    @property
    def why_no_quantizer(self) -> str:
        """Why there is no quantiser where there is none, as the end of a sentence about the index."""
        if self.scheme is None:
            return "was imported without a quantiser"
        return f"has the identifiers of {self.scheme}, a scheme without a quantiser"

    @property
    def edited(self) -> Bool[np.ndarray, "item rq_level"]:
        """Where the stored code is not the raw one."""
        return self.sids[:, : self.raw.shape[1]] != self.raw

    @cached_property
    def item_generations(self) -> Int32[np.ndarray, "item"]:
        """Generation in which each item came: 0 when the index was built, one more for every `add`."""
        return np.zeros(len(self), np.int32) if self.came_in is None else self.came_in

    @cached_property
    def trie(self) -> Trie:
        """Trie of the stored SIDs; built when first used."""
        return Trie.of(self.sids, self.sizes)

    def latents_and_codebooks(self) -> tuple[Float16[np.ndarray, "item dim"], Codebooks]:
        """Latents and codebooks; an error where the index has none."""
        if self.latents is None or self.codebooks is None:
            if self.scheme is not None:
                raise ConfigError(
                    f"The identifiers of {self.scheme} come without latents and codebooks, so there are no residuals. "
                    "Choose what needs none, such as the objective base, or build an index with another quantiser, "
                    "such as kmeans."
                )
            raise ConfigError(
                "This index was imported without latents or codebooks, so it has no residuals. Import it again with "
                "--codebooks and --latents, or build one with restd index build."
            )
        return self.latents, self.codebooks

    def trajectory(self, rows: Iterable[int] | np.ndarray) -> Float[np.ndarray, "row step dim"]:
        """Residuals r_0 .. r_L of items along their stored SIDs."""
        latents, codebooks = self.latents_and_codebooks()
        rows = np.asarray(rows)
        return trajectory(as_tensor(latents[rows]), as_tensor(self.sids[rows]), codebooks).numpy()

    def layout(self) -> dict[str, Any]:
        """What a trained model is bound to: codebooks and level sizes, whatever the items.

        Of identifiers that may end early it says so; of a scheme without codebooks it has what the scheme made.
        """
        layout: dict[str, Any] = {
            "sizes": list(self.sizes),
            "codebooks": None if self.codebooks is None else self.codebooks.fingerprint(),
        }
        if self.ends:
            layout["ends"] = True
        if self.scheme is not None:
            layout["identifiers"] = self.origin.get("identifiers")
        return layout

    def add(self, ids: Sequence[str], vectors: Float[np.ndarray, "item input"]) -> tuple["SidIndex", Drift]:
        """Give new items Semantic IDs with the codebooks as they are; items already there keep theirs.

        Returns a new index, and how the new items compare with the old.
        """
        refuse_known(self.table, ids)
        placement = self.place(ids, vectors)
        extended = self.append(ids, placement)
        latents, codebooks = extended.latents_and_codebooks()
        edited = float(extended.edited[len(self) :].any(axis=1).mean()) if len(ids) else 0.0
        return extended, measure_drift(latents, extended.raw, codebooks, before=len(self), edited=edited)

    def place(self, ids: Sequence[str], vectors: Float[np.ndarray, "item input"]) -> Placement:
        """Find the rows that new items get beside those that are there, without adding them."""
        if self.quantizer is None:
            if self.scheme is not None:
                raise ConfigError(
                    f"The scheme {self.scheme} names all items of a catalogue at once and cannot place new ones. Build "
                    "an index of the old and new items together, and train a model for it."
                )
            raise ConfigError(f"This index {self.why_no_quantizer}, so no items can be added. Build an index instead.")
        _, codebooks = self.latents_and_codebooks()
        self._check_vectors(ids, vectors)
        latents = self.quantizer.latents(vectors)
        check_latents(latents)
        codes = assign(as_tensor(latents), codebooks).numpy()
        policy = POLICIES[self.policy]
        occupied = None if policy.shares else self.sids
        problem = CollisionProblem(latents, codes, codebooks, occupied, self.sizes, self.capacity)
        resolution = policy.resolve(problem)
        return Placement(latents, codes, resolution.sids, np.full(len(ids), self.generation + 1, np.int32))

    def append(self, ids: Sequence[str], placement: Placement) -> "SidIndex":
        """Return an index with placed items behind the others; the caller vouches that their ids are new."""
        latents, _ = self.latents_and_codebooks()
        table = replace(
            self.table,
            ids=pa.concat_arrays([self.table.ids, pa.array(list(ids), pa.string())]),
            sids=np.concatenate([self.sids, placement.sids]),
        )
        return replace(
            self,
            table=table,
            raw=np.concatenate([self.raw, placement.raw]),
            latents=np.concatenate([latents, placement.latents]),
            generation=self.generation + 1,
            came_in=np.concatenate([self.item_generations, placement.came_in]),
        )

    def remove(self, ids: Iterable[str]) -> "SidIndex":
        """Return an index without these items; the others keep their SIDs and their order."""
        keep = np.ones(len(self), bool)
        keep[self.table.rows(ids)] = False
        if not keep.any():
            raise ConfigError("Removing these items would leave the index empty. Remove the folder instead.")
        return self.subset(keep)

    def subset(self, keep: Bool[np.ndarray, "item"]) -> "SidIndex":
        """Return an index of the kept rows, which may be none."""
        table = replace(self.table, ids=self.table.ids.filter(pa.array(keep)), sids=self.sids[keep])
        latents = None if self.latents is None else self.latents[keep]
        came_in = None if self.came_in is None else self.came_in[keep]
        return replace(self, table=table, raw=self.raw[keep], latents=latents, came_in=came_in)

    def _check_vectors(self, ids: Sequence[str], vectors: np.ndarray) -> None:
        latents, _ = self.latents_and_codebooks()
        assert self.quantizer is not None
        expected = (len(ids), input_width(self.quantizer, latents))
        if vectors.shape != expected:
            raise DataError(f"Expected vectors of shape {expected} for {len(ids):,} new items, got {vectors.shape}.")
        bad = ~np.isfinite(vectors).all(axis=1)
        if bad.any():
            raise DataError(
                f"The vector of item {ids[int(bad.argmax())]!r} has NaN or infinite values. Expected finite numbers."
            )

    def save(self, folder: Path, *, parents: Mapping[str, str] | None = None) -> None:
        """Write the index as an artefact; it needs nothing else to be used."""
        settings = {
            "layout": self.layout(),
            "policy": self.policy,
            "origin": dict(self.origin),
            "quantizer": None if self.quantizer is None else dict(self.quantizer.settings),
        }
        if self.capacity is not None:
            settings["capacity"] = self.capacity
        items = pa.table({"id": self.table.ids, "sid": _lists_of(self.sids), "raw": _lists_of(self.raw)})
        if self.generation:  # an index that never grew is stored as it always was, under the same content hash
            settings["generation"] = self.generation
            items = items.append_column(_GENERATION, pa.array(self.item_generations))
        with create(folder, kind=KIND, schema=SCHEMA, settings=settings, parents=parents) as writer:
            writer.table("items", items.to_batches(), schema=items.schema)
            if self.latents is not None:
                writer.tensors("latents", {"latents": self.latents})
            if self.codebooks is not None:
                learned = {} if self.quantizer is None else self.quantizer.tensors()
                prefixed = {f"{_LEARNED}{name}": value for name, value in learned.items()}
                writer.tensors("codebooks", {**self.codebooks.to_arrays(), **prefixed})

    @classmethod
    def load(cls, folder: Path) -> "SidIndex":
        """Open an index: its own folder, or the one `restd index --out` made."""
        folder = Path(folder)
        if not (folder / MANIFEST).is_file() and (folder / FOLDER / MANIFEST).is_file():
            folder = folder / FOLDER
        artifact = open_artifact(folder, kind=KIND, schema=SCHEMA)
        settings, files = artifact.manifest.settings, artifact.manifest.files
        items = artifact.table("items")
        layout = settings["layout"]
        ids, sids = items["id"].combine_chunks(), _codes_of(items["sid"])
        table = SidTable(ids, sids, tuple(layout["sizes"]), ends=layout.get("ends", False))
        raw = _codes_of(items["raw"])
        latents = artifact.tensors("latents")["latents"] if "latents.safetensors" in files else None
        codebooks = quantizer = None
        if "codebooks.safetensors" in files:
            arrays = artifact.tensors("codebooks")
            codebooks = Codebooks.from_arrays(arrays, sizes=table.sizes[: raw.shape[1]])
            if settings["quantizer"] is not None:
                learned = {
                    name.removeprefix(_LEARNED): array for name, array in arrays.items() if name.startswith(_LEARNED)
                }
                quantizer = restore_quantizer(settings["quantizer"], learned, codebooks)
            if codebooks.fingerprint() != settings["layout"]["codebooks"]:
                raise ArtifactError(
                    f"{folder}: its codebooks are not the ones that its manifest names. Build the index again."
                )
        generation = settings.get("generation", 0)
        came_in = items[_GENERATION].to_numpy() if _GENERATION in items.column_names else None
        state = (settings["policy"], settings["origin"], generation, came_in, settings.get("capacity"))
        return cls(table, raw, latents, codebooks, quantizer, *state)


def _lists_of(codes: Int16[np.ndarray, "item level"]) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(codes.ravel()), codes.shape[1])


def _codes_of(column: pa.ChunkedArray) -> Int16[np.ndarray, "item level"]:
    lists = column.combine_chunks()
    return lists.flatten().to_numpy().reshape(len(lists), lists.type.list_size)
