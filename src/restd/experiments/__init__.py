"""Experiments: matched objectives over paired seeds, sweeps and timings; resumable."""

from restd.experiments.comparison import Comparison
from restd.experiments.hybrid_cells import ColdCells, HybridCells, measure_cold_starts, measure_parts
from restd.experiments.objective_sets import SEEDS, SETS, parse_objectives
from restd.experiments.run import FinishedComparison, run_comparison
from restd.experiments.study import Study
from restd.experiments.study_file import load_study
from restd.experiments.summary import compare, comparison_identity, read_comparison, summarise
from restd.experiments.sweeps import run_sweep
from restd.experiments.system_comparison import ALL, BASE, SystemComparison, SystemPlan, plan_systems
from restd.experiments.system_summary import compare_systems
from restd.experiments.update_cost import measure_updates

__all__ = [
    "ALL",
    "BASE",
    "SEEDS",
    "SETS",
    "ColdCells",
    "Comparison",
    "FinishedComparison",
    "HybridCells",
    "Study",
    "SystemComparison",
    "SystemPlan",
    "compare",
    "compare_systems",
    "comparison_identity",
    "load_study",
    "measure_cold_starts",
    "measure_parts",
    "measure_updates",
    "parse_objectives",
    "plan_systems",
    "read_comparison",
    "run_comparison",
    "run_sweep",
    "summarise",
]
