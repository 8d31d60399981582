"""LaSER (Jin et al., 2026) on a frozen encoder: queries think in latent steps, taught by a view that reasons in words.

There are no written chains of thought here: the category path of a query's positive stands in for one, in training
only. The loss has the paper's four terms, and the trainer is that of DPR.
"""

from restd.rankers.dual_runs import describe_dual_encoder, make_dual_encoder
from restd.rankers.dual_settings import LaserConfig
from restd.rankers.registry import RANKERS, RankerEntry, RankerTask

RANKERS.add(
    RankerEntry(
        "laser",
        "LaSER: a dual encoder whose queries think in latent steps, taught by category paths as a surrogate for chains "
        "of thought.",
        {
            "search": RankerTask(
                lambda context: make_dual_encoder(context, context.config("laser")),
                {"search": "exact inner product"},
                describe=lambda context: describe_dual_encoder(context, context.config("laser")),
            )
        },
        source="Jin et al. 2026",
        argument="ENCODER",
        config=LaserConfig,
    )
)
