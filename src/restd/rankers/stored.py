"""Parts of a hybrid search in a bundle: those that need judgments or embeddings, which a bundle does not have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from restd.artifacts import create, open_artifact
from restd.rankers.registry import RankerContext, find_ranker
from restd.snapshot import Companion
from restd.snapshot.ranker import refuse_foreign

FOLDER = "companions"
_KIND, _SCHEMA = "companion", 1


@runtime_checkable
class Storable(Protocol):
    """A companion that a bundle keeps whole."""

    def arrays(self) -> dict[str, np.ndarray]:
        """All that it knows of the items."""
        ...


def write_companions(bundle: Path, companions: Sequence[Companion]) -> None:
    """Keep those companions in a bundle that could not be made from it again."""
    for companion in companions:
        if isinstance(companion, Storable):
            settings = {"name": companion.name, "snapshot": companion.snapshot_hash}
            with create(bundle / FOLDER / companion.name, kind=_KIND, schema=_SCHEMA, settings=settings) as writer:
                writer.tensors("companion", companion.arrays())


def read_companion(bundle: Path, name: str, context: RankerContext) -> Companion | None:
    """A companion that a bundle keeps; None where it keeps none of that name."""
    folder = bundle / FOLDER / name
    restore = find_ranker(name, context.task).restore if folder.is_dir() else None
    if restore is None:
        return None
    artifact = open_artifact(folder, kind=_KIND, schema=_SCHEMA)
    made_for = artifact.manifest.settings["snapshot"]
    refuse_foreign(str(folder), made_for, context.snapshot.hash, remedy="Save the bundle again.")
    return restore(artifact.tensors("companion"), context)
