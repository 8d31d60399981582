"""What is served: models as immutable values, and the state that all routes share."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from restd.data import History, Task
from restd.distill.heads import FOLDER as HEADS
from restd.models.store import model_folder, task_of
from restd.search import Retriever, SearchOptions
from restd.search.fusion import FOLDER as FUSION
from restd.search.options import HeadUse, Mode
from restd.serve.batching import BatchQueue
from restd.serve.keys import Keys
from restd.serve.limits import Limits
from restd.serve.metrics import Metrics
from restd.serve.problems import InvalidError, NotReadyError
from restd.serve.request_log import RequestLog
from restd.snapshot import Snapshot

if TYPE_CHECKING:
    from restd.serve.item_updates import ItemUpdates

MAIN, BESIDE = "main", "beside"


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model and the snapshot it searches; neither changes. An update or a reload puts another value in its place.

    Args:
        retriever: model and snapshot; nobody changes it while it is served.
        path: folder it was loaded from.
        task: what it answers: texts (`search`) or histories (`recommend`).
        loaded_at: when, in seconds since 1970.
    """

    retriever: Retriever
    path: Path
    task: Task
    loaded_at: float

    @classmethod
    def load(
        cls, path: Path, *, index: Path | None = None, catalog: Path | None = None, device: str | None = None
    ) -> "ServedModel":
        """Open a run or a bundle with its heads and its fitted hybrid search, as far as it has them, and try it."""
        beside = model_folder(path).parent
        has_heads, is_fitted = (beside / HEADS).is_dir(), (beside / FUSION).is_dir()
        retriever = Retriever.load(path, index, catalog, keep_heads=has_heads, hybrid=is_fitted, device=device)
        served = cls(retriever, path, task_of(path), time.time())
        served.warm_up()
        return served

    @property
    def name(self) -> str:
        """Name of the folder it was loaded from."""
        return self.path.resolve().name

    @property
    def hash(self) -> str:
        """Hash of its snapshot, which every answer carries."""
        return self.retriever.snapshot.hash

    @property
    def snapshot(self) -> Snapshot:
        """What it searches."""
        return self.retriever.snapshot

    @cached_property
    def model_hash(self) -> str:
        """Content hash of the model's folder when it was loaded."""
        return self.retriever.model_hash

    @cached_property
    def layout(self) -> Mapping[str, Any]:
        """Level sizes and codebooks of its index."""
        return self.retriever.index.layout()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns of its items."""
        return tuple(self.snapshot.items.names())

    @property
    def is_fitted(self) -> bool:
        """Whether it has a fitted hybrid search."""
        return self.retriever.fusion is not None

    def default_mode(self, heads: HeadUse | None = None) -> Mode:
        """How it searches unless a request says otherwise; heads at inference are an option of the model alone."""
        return "hybrid" if self.is_fitted and heads is None else "generative"

    def with_snapshot(self, snapshot: Snapshot) -> "ServedModel":
        """The same model with another snapshot of the same layout."""
        return replace(self, retriever=self.retriever.with_snapshot(snapshot))

    def warm_up(self) -> None:
        """Compute once what every request needs, and answer one query in every mode: no client waits for that."""
        snapshot = self.snapshot
        query = str(snapshot.items.titles()[0]) if self.task == "search" else History((snapshot.ids[0].as_py(),))
        modes: tuple[Mode, ...] = ("generative", "hybrid") if self.is_fitted else ("generative",)
        for mode in modes:
            self.retriever.rank([query], options=SearchOptions(k=1, mode=mode))
        _ = self.hash, self.model_hash, self.layout, self.columns


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model is loaded from.

    Args:
        path: folder of a run, or a bundle.
        index: its index, where the run does not know it.
        catalog: its items, likewise.
        device: where it runs.
    """

    path: Path
    index: Path | None = None
    catalog: Path | None = None
    device: str | None = None

    def load(self) -> ServedModel:
        """Open the model."""
        return ServedModel.load(self.path, index=self.index, catalog=self.catalog, device=self.device)


@dataclass(eq=False)
class ServerState:
    """What all routes share; it is changed on the event loop, and by the one writer of items, which puts models.

    Args:
        limits: what is refused.
        keys: who may do what.
        queue: where requests wait for the model.
        metrics: counters for Prometheus.
        log: where requests are logged; None for nowhere.
        reloads: models that a client may ask for by name.
        updates: what adds and removes items; None where that is switched off.
        state_root: where updates of items are kept; None for each model's own folder.
        cors: origins of web pages that may call the service.
    """

    limits: Limits = field(default_factory=Limits)
    keys: Keys = field(default_factory=Keys)
    queue: BatchQueue = field(default_factory=BatchQueue)
    metrics: Metrics = field(default_factory=Metrics)
    log: RequestLog | None = None
    reloads: Mapping[str, ModelSource] = field(default_factory=dict)
    updates: "ItemUpdates | None" = None
    state_root: Path | None = None
    cors: tuple[str, ...] = ()
    started_at: float = field(default_factory=time.time)
    is_stopping: bool = False
    in_flight: int = 0
    _models: dict[str, ServedModel] = field(default_factory=dict)

    @classmethod
    def of(cls, limits: Limits | None = None, **others: Any) -> "ServerState":
        """A state whose queue follows the limits and is counted by the metrics."""
        limits, metrics = limits or Limits(), Metrics()
        queue = BatchQueue(
            capacity=limits.queue,
            max_batch=limits.max_batch,
            max_wait=limits.max_wait_ms / 1000,
            watcher=metrics,
        )
        return cls(limits=limits, queue=queue, metrics=metrics, **others)

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """What is served, by name: `main`, and `beside` where there is a second one."""
        return self._models

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered."""
        return MAIN in self._models and not self.is_stopping

    def model(self, name: str = MAIN) -> ServedModel:
        """What is served under a name now; a request takes it once, so that its answer belongs to one snapshot."""
        served = self._models.get(name)
        if served is not None:
            return served
        if MAIN not in self._models:
            raise NotReadyError("The model is being loaded; try again in a moment.", headers={"Retry-After": "1"})
        raise InvalidError(
            f"There is no model {name!r}; there is: {', '.join(self._models)}. A second one is served with --beside.",
            field="model",
        )

    def put(self, served: ServedModel, name: str = MAIN) -> None:
        """Serve this from now on; requests under way keep what they took."""
        self._models[name] = served
        self.metrics.items(name, len(served.snapshot))

    def deadline(self, arrived: float) -> float:
        """When a request that arrived at this `time.monotonic()` must be answered."""
        return arrived + self.limits.deadline_ms / 1000
