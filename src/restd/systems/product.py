"""What restd trains for a search that should win: the recipes `product-index` and `product`, without the fitted fusion.

It is judged as a generator alone, as all others are; with BM25 and dense search fused it ranks better, which
`restd fit` does for one model.
"""

from restd.config import read_recipe
from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "product",
        "Aligned latents, residual k-means, a decoder that starts as good as the index, and ResTD on heads and output.",
        source="",
        label="restd product",
        index=read_recipe("product-index"),
        train=read_recipe("product"),
        ours=True,
    )
)
