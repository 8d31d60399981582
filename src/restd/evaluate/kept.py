"""What an index keeps of its items: how well embeddings, latents and Semantic IDs rank, without any model."""

from pathlib import Path

from restd.errors import ConfigError
from restd.evaluate.evaluation import evaluate
from restd.evaluate.fitting import fitting_queries
from restd.evaluate.metrics import Measure
from restd.rankers import RankerContext, make_ranker
from restd.snapshot import Snapshot

MEASURES = (Measure("NDCG", 10), Measure("Recall", 100))
RANKERS = {"dense": "embeddings", "latent": "latents", "sids": "Semantic IDs"}


def measure_kept(snapshot: Snapshot, data: Path, home: Path) -> dict[str, dict[str, float]]:
    """Averages over validation queries, by item: of the embeddings, of the latents, and of Semantic IDs alone.

    Queries are projected as the index projects them; a generator can hardly know more than its Semantic IDs do.

    Args:
        snapshot: the index.
        data: folder with judgments.
        home: folder of the index, where embeddings are kept.
    """
    if snapshot.index.quantizer is None:
        raise ConfigError(f"This index {snapshot.index.why_no_quantizer}, so there are no latents to compare with.")
    tests = fitting_queries(data, snapshot)
    context = RankerContext(snapshot, data, home)
    kept = {}
    for name, label in RANKERS.items():
        evaluation, _ = evaluate(make_ranker(name, context), tests, snapshot, name=name, measures=MEASURES)
        kept[label] = {str(measure): evaluation.mean(str(measure), level="item") for measure in MEASURES}
    return kept
