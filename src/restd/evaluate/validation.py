"""Early stopping by ranking: what a training run may call to judge a model it is still training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from restd.data import Query
from restd.errors import DataError
from restd.evaluate.evaluation import evaluate
from restd.evaluate.metrics import Measure
from restd.evaluate.queries import read_tests, some_queries
from restd.index import SidIndex
from restd.models import AnyBackbone
from restd.search import NEXT_WIDTH, Retriever
from restd.train import Job
from restd.train.loop import Validate

MEASURE = Measure("NDCG", 10)


@dataclass(frozen=True, slots=True, eq=False)
class _Beam:
    """A model as it is now, with the beam of a validation."""

    retriever: Retriever

    def rank(self, queries: Sequence[Query], k: int) -> Any:
        """Rows and scores."""
        return self.retriever.rank(queries, k, width=NEXT_WIDTH, widen=False)


def ranked_validation(job: Job) -> Validate | None:
    """NDCG@10 of the validation queries with a beam of 20, where `train.select` asks for it; None where it does not."""
    if job.config.train.select == "loss":
        return None
    index = SidIndex.load(job.index)
    try:
        tests = read_tests(job.data, index.table.ids, split="valid", task=job.task)
    except DataError as error:
        raise DataError(f"{error} To validate by ranking, mark some as valid; or set train.select=loss.") from error
    if job.config.train.judged:
        tests = some_queries(tests, job.config.train.judged)

    def validate(backbone: AnyBackbone) -> float:
        ranker = _Beam(Retriever(backbone, index))
        found, _ = evaluate(ranker, tests, index, name="validation", measures=(MEASURE,))
        return found.mean(str(MEASURE))

    return validate
