"""Residual trajectory distillation: the teacher an index holds, the heads that listen, and every matched control."""

from restd.distill.beyond import MeanTeacher, TrieTeacher
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
    AuxiliaryConfig,
    DistillConfig,
    DistillLog,
    OutputDistiller,
    ResidualDistiller,
    strip,
)
from restd.distill.geometry import Geometry, trajectory
from restd.distill.heads import HorizonHeads
from restd.distill.matching import MatchingQuality, shape_swap
from restd.distill.targets import Correction, ResidualTeacher, Targets, Teacher, trajectory_loss
from restd.distill.temperature import TeachingReport, TemperatureConfig, find_temperatures, report_teaching

__all__ = [
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
    "ResidualDistiller",
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
    "shuffled",
    "strip",
    "trajectory",
    "trajectory_loss",
]
