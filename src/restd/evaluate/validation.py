"""Early stopping by ranking: what a training run may call to judge a model it is still training."""

from restd.errors import DataError
from restd.evaluate.evaluation import evaluate
from restd.evaluate.metrics import Measure
from restd.evaluate.queries import read_tests, validation_queries
from restd.models import Backbone
from restd.search import BEAMS, Retriever, RetrieverRanker, SearchOptions
from restd.snapshot import Snapshot
from restd.train import Job
from restd.train.loop import Validate

MEASURE = Measure("NDCG", 10)
_OPTIONS = SearchOptions(beam=BEAMS["recommend"])
"""A narrow beam for both tasks: validation should cost less than training."""


def ranked_validation(job: Job) -> Validate | None:
    """NDCG@10 of the validation queries with a beam of 20, where `train.select` asks for it; None where it does not."""
    if job.config.train.select == "loss":
        return None
    snapshot = Snapshot.load(job.index)
    try:
        tests = read_tests(job.data, snapshot, split="valid", task=job.task)
    except DataError as error:
        raise DataError(f"{error} To validate by ranking, mark some as valid; or set train.select=loss.") from error
    tests = validation_queries(tests, job.config.train.judged)

    def validate(backbone: Backbone) -> float:
        ranker = RetrieverRanker(Retriever(backbone, snapshot), _OPTIONS)
        evaluation, _ = evaluate(ranker, tests, snapshot, name="validation", measures=(MEASURE,))
        return evaluation.mean(str(MEASURE))

    return validate
