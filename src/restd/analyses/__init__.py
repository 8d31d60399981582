"""Analyses of finished experiments: values in, an `AnalysisResult` out."""

from restd.analyses.comparison_tables import comparison_result
from restd.analyses.labels import label
from restd.analyses.result import AnalysisResult, Figure, Table

__all__ = ["AnalysisResult", "Figure", "Table", "comparison_result", "label"]
