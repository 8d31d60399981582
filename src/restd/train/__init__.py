"""Training: one loop, objectives by name, batches that pair, checkpoints that resume exactly."""

from restd.train.config import CategorySettings, DistillSettings, RunConfig, TrainConfig, default_training
from restd.train.job import Job
from restd.train.log import read_log
from restd.train.objectives import OBJECTIVES
from restd.train.run import Trained, category_recall, make_loop, train_retriever

__all__ = [
    "OBJECTIVES",
    "CategorySettings",
    "DistillSettings",
    "Job",
    "RunConfig",
    "TrainConfig",
    "Trained",
    "category_recall",
    "default_training",
    "make_loop",
    "read_log",
    "train_retriever",
]
