"""DPR (Karpukhin et al., 2020): two towers that are trained so that a query lies near its items.

On a CPU the towers are maps over the vectors of a frozen encoder, which start as the identity; the whole encoder is
trained where the settings say so.
"""

from restd.rankers.dual_runs import describe_dual_encoder, make_dual_encoder
from restd.rankers.dual_settings import DprConfig
from restd.rankers.registry import RANKERS, RankerEntry, RankerTask

RANKERS.add(
    RankerEntry(
        "dpr",
        "DPR: a dual encoder trained on judged queries with in-batch and BM25 hard negatives, over the index's encoder "
        "or another (dpr:ENCODER).",
        {
            "search": RankerTask(
                lambda context: make_dual_encoder(context, context.config("dpr")),
                {"search": "exact inner product"},
                describe=lambda context: describe_dual_encoder(context, context.config("dpr")),
            )
        },
        source="Karpukhin et al. 2020",
        argument="ENCODER",
        config=DprConfig,
    )
)
