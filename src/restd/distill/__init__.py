"""Residual trajectory distillation: teachers from an index, heads that learn from them, and every matched control.

Needs torch, NumPy and jaxtyping only.
"""

from restd.distill.controls import (
    DonorTeacher,
    FutureHardTeacher,
    HardTeacher,
    PermutedTeacher,
    TableTeacher,
    code_mean,
    codebook_only,
    entropy_shuffle,
    shuffled,
)
from restd.distill.distiller import (
    DEFAULT_CAP,
    DEFAULT_DISCOUNT,
    DEFAULT_HORIZON,
    DEFAULT_WARM_UP,
    DEFAULT_WEIGHT,
    NONTARGET_CAP,
    NONTARGET_WEIGHT,
    AuxiliaryConfig,
    DistillConfig,
    DistillLog,
    OutputDistiller,
    ResidualDistiller,
    strip,
)
from restd.distill.extensions import MeanTeacher, TrieTeacher
from restd.distill.geometry import Geometry, ResidualIndex
from restd.distill.heads import HorizonHeads
from restd.distill.matching import MatchingQuality, shape_swap
from restd.distill.positives import Positives, share_prefix
from restd.distill.targets import Correction, ResidualTeacher, Targets, Teacher, trajectory_loss
from restd.distill.temperature import (
    DEFAULT_ENTROPY,
    DEFAULT_TEMPERATURE,
    TeachingReport,
    TemperatureConfig,
    find_temperatures,
    report_teaching,
)

__all__ = [
    "DEFAULT_CAP",
    "DEFAULT_DISCOUNT",
    "DEFAULT_ENTROPY",
    "DEFAULT_HORIZON",
    "DEFAULT_TEMPERATURE",
    "DEFAULT_WARM_UP",
    "DEFAULT_WEIGHT",
    "NONTARGET_CAP",
    "NONTARGET_WEIGHT",
    "AuxiliaryConfig",
    "Correction",
    "DistillConfig",
    "DistillLog",
    "DonorTeacher",
    "FutureHardTeacher",
    "Geometry",
    "HardTeacher",
    "HorizonHeads",
    "MatchingQuality",
    "MeanTeacher",
    "OutputDistiller",
    "PermutedTeacher",
    "Positives",
    "ResidualDistiller",
    "ResidualIndex",
    "ResidualTeacher",
    "TableTeacher",
    "Targets",
    "Teacher",
    "TeachingReport",
    "TemperatureConfig",
    "TrieTeacher",
    "code_mean",
    "codebook_only",
    "entropy_shuffle",
    "find_temperatures",
    "report_teaching",
    "shape_swap",
    "share_prefix",
    "shuffled",
    "strip",
    "trajectory_loss",
]
