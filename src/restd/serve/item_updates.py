"""Adding, replacing and removing items while they are searched: durable first, then served, then acknowledged."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from restd._arrow import pc
from restd.errors import ArtifactError, RestdError
from restd.serve.item_fields import ItemLimits, check_ids, checked_batch
from restd.serve.item_records import ItemRecord, folded
from restd.serve.journal import Journal, JournalWriteError, read_records
from restd.serve.model_state import MAIN, ServedModel, ServerState
from restd.serve.problems import NotFoundError, NotReadyError, StorageError
from restd.snapshot import Snapshot

logger = logging.getLogger(__name__)

FOLDER = "served"
"""Where the updates of a model are kept, in its folder, unless the operator names another place."""
_FOLD_ABOVE = 64 << 20
"""Bytes of a journal that is worth folding."""


@dataclass(frozen=True, slots=True)
class ItemUpdate:
    """What one batch changed.

    Args:
        snapshot: hash of what is searched from now on.
        sequence: number of the update since the state folder was begun.
        added: items that are new.
        replaced: items that took the place of one with the same id.
        removed: items that were deleted.
    """

    snapshot: str
    sequence: int
    added: int = 0
    replaced: int = 0
    removed: int = 0


class ItemUpdates:
    """The one writer of the items of a served model. Safe for many threads: a batch waits for the one before it.

    A batch is checked, encoded and made into a snapshot, then written to the journal, then served; what fails on the
    way changes nothing. Searches never wait: they go on in the snapshot that they began with.

    Args:
        served: the model as it was loaded, without the updates of its journal.
        folder: where its journal is, or begins.
        publish: serves a model from now on; called with the model after every update, not with the first one.
        limits: bounds of one batch.
        fold_above: bytes of a journal that is worth folding into one record.
    """

    def __init__(
        self,
        served: ServedModel,
        folder: Path,
        *,
        publish: Callable[[ServedModel], None],
        limits: ItemLimits | None = None,
        fold_above: int = _FOLD_ABOVE,
    ) -> None:
        self.limits = limits or ItemLimits()
        self._publish = publish
        self._fold_above = self._fold_next = fold_above
        self._writing = threading.Lock()
        self._is_closed = False
        self._journal, self._served = _opened(served, folder)
        self._fold_if_large()

    @property
    def served(self) -> ServedModel:
        """The model with all updates."""
        return self._served

    @property
    def sequence(self) -> int:
        """Number of the last update."""
        return self._journal.sequence

    @property
    def journal_bytes(self) -> int:
        """Size of the journal."""
        return self._journal.size

    def put(self, items: Sequence[Mapping[str, Any]], texts: Sequence[str] | None = None) -> ItemUpdate:
        """Add items, or replace those of the same id; all of them or none.

        Args:
            items: each with an id and other fields, all JSON values.
            texts: what to encode them by; by default the columns that the catalogue's own items were encoded by.
        """
        with self._begun() as snapshot:
            batch = checked_batch(items, texts, snapshot.items, self.limits)
            ids = pa.array([item["id"] for item in batch.items], pa.string())
            replaced = ids.filter(pc.is_in(ids, value_set=snapshot.ids)).to_pylist()
            vectors = np.ascontiguousarray(self._served.retriever.encode_items(batch.texts), np.float32)
            added = snapshot.placed(batch.items, vectors, batch.texts)
            made = self._commit(ItemRecord(tuple(replaced), added, snapshot.index.generation + 1))
            return replace(made, added=len(ids) - len(replaced), replaced=len(replaced))

    def delete(self, ids: Sequence[str]) -> ItemUpdate:
        """Remove items; all of them or none."""
        with self._begun() as snapshot:
            check_ids(ids, self.limits)
            _refuse_unknown(ids, snapshot)
            made = self._commit(ItemRecord(tuple(ids), None, snapshot.index.generation))
            return replace(made, removed=len(ids))

    def move_to(self, served: ServedModel, folder: Path) -> ServedModel:
        """Serve another model from now on, with the updates of its own journal; if they do not fit, nothing changes.

        Updates that arrive meanwhile wait, and are made to the new model.
        """
        with self._begun():
            previous = self._journal
            if folder.resolve() == previous.path.parent.resolve():
                previous.close()  # a folder has one writer
                try:
                    journal, following = _opened(served, folder)
                except (RestdError, OSError):
                    self._journal = Journal.open(folder, previous.binding)
                    raise
            else:
                journal, following = _opened(served, folder)
                previous.close()
            self._journal, self._served, self._fold_next = journal, following, self._fold_above
            self._publish(following)
            return following

    def close(self) -> None:
        """Wait for the update under way and let go of the folder; later updates are refused."""
        with self._writing:
            if not self._is_closed:
                self._is_closed = True
                self._journal.close()

    @contextmanager
    def _begun(self) -> Iterator[Snapshot]:
        """The snapshot that one update starts from."""
        with self._writing:
            if self._is_closed:
                raise NotReadyError("The service is stopping; send the request to another one.")
            yield self._served.snapshot

    def _commit(self, record: ItemRecord) -> ItemUpdate:
        """Make an update durable, and then serve it."""
        served = _warm(self._served.with_snapshot(record.applied(self._served.snapshot)))
        try:
            sequence = self._journal.append(replace(record, snapshot=served.hash).to_bytes())
        except JournalWriteError as error:
            raise StorageError(str(error)) from error
        self._served = served
        self._publish(served)
        self._fold_if_large()
        return ItemUpdate(served.hash, sequence)

    def _fold_if_large(self) -> None:
        """Keep the journal in proportion to what it says; a failure costs space, and no update."""
        if self._journal.size <= self._fold_next:
            return
        try:
            record = folded(map(ItemRecord.from_bytes, self._journal.records()))
            payload = b"" if record is None else record.to_bytes()
            if payload and 2 * len(payload) < self._journal.size:
                self._journal.fold(payload)
        except (RestdError, OSError) as error:
            logger.warning("%s could not be folded and keeps growing: %s", self._journal.path, error)
        self._fold_next = max(self._fold_above, 2 * self._journal.size)


def with_updates(state: ServerState, served: ServedModel) -> ServedModel:
    """The model that a service begins with and the updates of its journal, open for more if the operator allows it."""
    folder = state_folder(served.path, MAIN, state.state_root)
    if not state.keys.can_write:
        return replayed(served, read_records(folder, binding_of(served)))
    state.updates = ItemUpdates(served, folder, publish=state.put)
    return state.updates.served


def state_folder(model: Path, name: str, root: Path | None) -> Path:
    """Where the updates of a model are kept.

    Args:
        model: its folder.
        name: what the operator calls it.
        root: the operator's choice for the model that the service begins with; None for the model's own folder.

    >>> state_folder(Path("run"), "main", None).as_posix(), state_folder(Path("new"), "new", Path("s")).as_posix()
    ('run/served', 's/new')
    """
    if root is None:
        return model / FOLDER
    return root if name == MAIN else root / name


def binding_of(served: ServedModel) -> dict[str, str]:
    """What updates belong to: a model, and the snapshot that it was loaded with."""
    return {"model": served.retriever.model_hash, "snapshot": served.hash}


def replayed(served: ServedModel, payloads: Iterable[bytes]) -> ServedModel:
    """A model as it was loaded, with all updates of a journal, in one step."""
    record = folded(map(ItemRecord.from_bytes, payloads))
    if record is None:
        return served
    following = _warm(served.with_snapshot(record.applied(served.snapshot)))
    if following.hash != record.snapshot:
        raise ArtifactError(
            f"The item updates of {served.name} give the snapshot {following.hash[:8]}, but {record.snapshot[:8]} was "
            "served when they were made. Use the version of restd that wrote them, or move the journal away to begin "
            "without them."
        )
    return following


def _opened(served: ServedModel, folder: Path) -> tuple[Journal, ServedModel]:
    journal = Journal.open(folder, binding_of(served))
    try:
        return journal, replayed(served, journal.records())
    except BaseException:
        journal.close()
        raise


def _warm(served: ServedModel) -> ServedModel:
    """Compute now what a search would compute once, so that no search waits for it."""
    snapshot = served.snapshot
    lazy: tuple[Any, ...] = (snapshot.trie, snapshot.items.titles(), served.columns, served.hash)
    if served.retriever.heads is not None:
        lazy += (snapshot.points,)
    logger.debug("%s searches %d items.", served.name, len(lazy[1]))
    return served


def _refuse_unknown(ids: Sequence[str], snapshot: Snapshot) -> None:
    known = pc.is_in(pa.array(ids, pa.string()), value_set=snapshot.ids).to_pylist()
    if not all(known):
        place = known.index(False)
        raise NotFoundError(f"There is no item {ids[place]!r}, so nothing was removed.", field=f"ids.{place}")
