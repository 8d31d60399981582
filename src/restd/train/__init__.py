"""Training: one loop, objectives by name, batches that pair, checkpoints that resume exactly."""

from restd.train.config import DistillSettings, RunConfig, TrainConfig, default_training
from restd.train.job import Job
from restd.train.log import read_log
from restd.train.model_writer import category_recall
from restd.train.module import Batch, Forward
from restd.train.negatives import Negatives, Refresh
from restd.train.objectives import OBJECTIVES, ObjectiveContext, ObjectiveSpec
from restd.train.rank_settings import RankSettings
from restd.train.run import Trained, make_loop, train_retriever
from restd.train.run_record import run_sources

__all__ = [
    "OBJECTIVES",
    "Batch",
    "DistillSettings",
    "Forward",
    "Job",
    "Negatives",
    "ObjectiveContext",
    "ObjectiveSpec",
    "RankSettings",
    "Refresh",
    "RunConfig",
    "TrainConfig",
    "Trained",
    "category_recall",
    "default_training",
    "make_loop",
    "read_log",
    "run_sources",
    "train_retriever",
]
