"""What the explorer computes once per snapshot: facets, axes of the map, quality of the index."""

import asyncio
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from restd.serve.facets import Facets
from restd.serve.item_map import MapAxes
from restd.serve.model_state import ServedModel
from restd.serve.run_reports import find_evaluations, find_summary, quality_report


class ModelViews:
    """Views of one served model. All but `reports` is for the thread of the model alone.

    It does not refer to the `ServedModel`, and so goes when that goes.
    """

    def __init__(self, model: ServedModel) -> None:
        self.retriever, self.snapshot, self.path = model.retriever, model.snapshot, model.path
        self.facets = Facets(model.snapshot, model.columns)
        self._reports: asyncio.Task[dict[str, Any]] | None = None

    @cached_property
    def axes(self) -> MapAxes:
        """Axes of the map."""
        return MapAxes.of(self.snapshot)

    async def reports(self, *, seconds: float) -> dict[str, Any] | None:
        """Quality and evaluations; None where measuring takes longer than this. It goes on meanwhile.

        Measuring takes seconds for a large catalogue, so it has a thread of its own, beside that of the model.
        """
        if self._reports is None:
            self._reports = asyncio.create_task(asyncio.to_thread(self._read_reports))
        task = self._reports
        done, _ = await asyncio.wait({task}, timeout=max(0.0, seconds))
        if not done:
            return None
        if task.exception() is not None:
            self._reports = None  # a disk that could not be read may be back later
        return task.result()

    def _read_reports(self) -> dict[str, Any]:
        quality, source = quality_report(self.snapshot, self.retriever.home)
        fusion = self.retriever.fusion
        return {
            "quality": quality,
            "quality_source": source,
            "evaluations": find_evaluations(self.path, self.snapshot),
            "fit": None if fusion is None or not fusion.is_fitted else dict(fusion.report),
            "summary": find_summary(self.path),
        }


class ViewsOfModels:
    """Views of whatever is served; they are made when they are first needed."""

    def __init__(self) -> None:
        self._views: WeakKeyDictionary[ServedModel, ModelViews] = WeakKeyDictionary()

    def of(self, model: ServedModel) -> ModelViews:
        """Views of a model, the same ones for the same model."""
        if model not in self._views:
            self._views[model] = ModelViews(model)
        return self._views[model]
