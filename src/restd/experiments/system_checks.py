"""What a data set must have for a system, checked before anything costly runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from restd._arrow import pc
from restd.artifacts.manifest import MANIFEST
from restd.data import Catalog, read_judgments, task_in
from restd.data.categories import read_category_paths
from restd.encode import default_encoder, is_fitted, load_encoder
from restd.encode.embeddings import AUTO
from restd.errors import ConfigError, RestdError
from restd.experiments.system_comparison import SystemComparison
from restd.experiments.system_stages import EMBEDDINGS
from restd.progress import Notify
from restd.quantize import QUANTIZERS
from restd.systems import ResolvedSystem

_LOOK_TEXTS = 500


@dataclass(frozen=True)
class _Available:
    """What a data set has; each part is read when it is first asked for."""

    comparison: SystemComparison

    @cached_property
    def catalog(self) -> Catalog:
        return Catalog(self.comparison.data)

    @cached_property
    def items(self) -> int:
        return len(self.catalog.ids())

    @cached_property
    def categories(self) -> bool:
        return read_category_paths(self.catalog, self.catalog.ids()) is not None

    @cached_property
    def without_encoder(self) -> str:
        """Why the encoder that all systems share cannot be had; empty where it can."""
        name, _ = self.comparison.encoder
        if (self.comparison.out / EMBEDDINGS / MANIFEST).is_file() or is_fitted(name):
            return ""
        try:
            if name == AUTO:
                batch = next(self.catalog.batches())
                name = default_encoder(self.catalog.texts(batch).to_pylist()[:_LOOK_TEXTS])
            load_encoder(name, device=self.comparison.device)
        except RestdError as error:
            return (
                f"its encoder {name!r} cannot be had ({str(error).removesuffix('.')}); name another one with --set "
                "index.encoder=NAME, such as tfidf-svd, which needs no weights"
            )
        return ""

    @cached_property
    def splits(self) -> frozenset[str]:
        """Splits that have a judgment with a grade above zero."""
        judgments = read_judgments(self.comparison.data)
        return frozenset(judgments.filter(pc.greater(judgments["grade"], 0.0))["split"].unique().to_pylist())


def check_systems(comparison: SystemComparison, *, everything: Iterable[str], notify: Notify) -> SystemComparison:
    """Leave out systems that cannot run on this data; systems that were named one by one are an error instead.

    Args:
        comparison: what to compare.
        everything: systems that nobody named: they came with `all`.
        notify: receives what is left out and why.
    """
    if task_in(comparison.data) != "search":
        raise ConfigError(f"{comparison.data} has histories; the systems that are known so far search by text.")
    available, unnamed = _Available(comparison), set(everything)
    reasons = {name: _reason(resolved, available) for name, resolved in comparison.resolved.items()}
    missing = {name: reason for name, reason in reasons.items() if reason}
    if not missing:
        return replace(comparison, left_out={})
    rest = [name for name in comparison.plans if name not in missing]
    if named := {name: reason for name, reason in missing.items() if name not in unnamed}:
        way_on = f"Compare the others: --systems {','.join(rest)}." if rest else "Choose other systems."
        raise ConfigError(f"{_joined(named)} {way_on}")
    if not rest:
        raise ConfigError(f"No system can run on {comparison.data}: {_joined(missing)}")
    for name, reason in missing.items():
        notify(f"{name} is left out: {reason}")
    return replace(comparison.without(missing), left_out=missing)


def _joined(reasons: Mapping[str, str]) -> str:
    """Reasons, with the systems that have the same one named together."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return " ".join(f"{', '.join(systems)}: {reason}." for reason, systems in names.items())


def _reason(resolved: ResolvedSystem, available: _Available) -> str:
    """Why a system cannot run on this data; empty where it can."""
    spec, config = resolved.spec, resolved.config
    if resolved.encodes and available.without_encoder:
        return available.without_encoder
    if "categories" in spec.needs and not available.categories:
        return (
            "it needs categories of the items, and the catalogue has none; name their column with --map category=… "
            "when the data set is made"
        )
    if "queries" in spec.needs and "train" not in available.splits:
        return "it learns from training queries, and no judgment of the split 'train' has a grade above zero"
    if config is not None and "train" not in available.splits:
        drawn = config.train.pseudo_queries or config.train.pseudo_table
        if not drawn:
            return (
                "it learns from training queries, and no judgment of the split 'train' has a grade above zero; a "
                "budget with train.pseudo_queries above 0 draws some"
            )
        if "valid" not in available.splits:
            return "it validates on queries, and no judgment of the splits 'train' and 'valid' has a grade above zero"
    index = resolved.index
    if index is not None and QUANTIZERS[index.quantizer].has_geometry:
        try:
            QUANTIZERS[index.quantizer].sizes(index.fit.codes, levels=index.fit.levels, items=available.items)
        except ConfigError as error:
            return str(error).removesuffix(".")
    return ""
