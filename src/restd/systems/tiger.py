"""TIGER, which came from recommendation, for search: the base case of all systems that generate.

Three levels of an RQ-VAE and a code that numbers the items of one SID, as in the paper; there a sequence of SIDs is
read, here a query. The decoder has no geometry of the index, which is ours and not TIGER's.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "tiger",
        "RQ-VAE codes of three levels and a disambiguation code, generated from the query; plain generation loss.",
        source="Rajput et al., Recommender Systems with Generative Retrieval, NeurIPS 2023",
        label="TIGER",
        index={
            "index": {"quantizer": "rqvae", "policy": "suffix"},
            "rqvae": {"levels": 3},
            "align": {"enabled": "off"},
        },
        train={"model": {"backbone": "compact"}},
    )
)
