"""How good a ranking is: metrics, protocol cards, paired tests."""

from restd.evaluate.beam_negatives import beam_negatives
from restd.evaluate.card import ProtocolCard
from restd.evaluate.cold_start import ColdStart, measure_cold_start
from restd.evaluate.evaluation import Evaluation, depth_needed, evaluate, judge_ranking, refuse_incomparable
from restd.evaluate.fitting import FittingSet, collect, fit_fusion, fitting_queries
from restd.evaluate.judging import Judged, Ranking, judge, rank_all, ranking_table, read_ranking, units
from restd.evaluate.metrics import NEXT, PAPER, Measure, ndcg, recall, reciprocal_rank, relative_improvement
from restd.evaluate.queries import GROUPS, TestSet, read_tests, some_queries
from restd.evaluate.scoreboard import Scoreboard, score_board
from restd.evaluate.statistics import (
    CONDITIONAL,
    Difference,
    Interval,
    Spread,
    bootstrap_mean,
    holm,
    holm_grid,
    paired_difference,
    regression_hc3,
    sign_flip_p,
)
from restd.evaluate.validation import ranked_validation

__all__ = [
    "CONDITIONAL",
    "GROUPS",
    "NEXT",
    "PAPER",
    "ColdStart",
    "Difference",
    "Evaluation",
    "FittingSet",
    "Interval",
    "Judged",
    "Measure",
    "ProtocolCard",
    "Ranking",
    "Scoreboard",
    "Spread",
    "TestSet",
    "beam_negatives",
    "bootstrap_mean",
    "collect",
    "depth_needed",
    "evaluate",
    "fit_fusion",
    "fitting_queries",
    "holm",
    "holm_grid",
    "judge",
    "judge_ranking",
    "measure_cold_start",
    "ndcg",
    "paired_difference",
    "rank_all",
    "ranked_validation",
    "ranking_table",
    "read_ranking",
    "read_tests",
    "recall",
    "reciprocal_rank",
    "refuse_incomparable",
    "regression_hc3",
    "relative_improvement",
    "score_board",
    "sign_flip_p",
    "some_queries",
    "units",
]
