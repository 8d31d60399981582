"""Analyses of finished experiments: values in, an `AnalysisResult` out."""

from restd.analyses.comparison_tables import comparison_result
from restd.analyses.labels import label
from restd.analyses.result import AnalysisResult, Figure, Table
from restd.analyses.system_tables import study_result, systems_result

__all__ = ["AnalysisResult", "Figure", "Table", "comparison_result", "label", "study_result", "systems_result"]
