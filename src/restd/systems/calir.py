"""CaLIR: latent steps that name the category of what is sought, and a search inside the likeliest ones.

Four levels of an RQ-VAE with one substitution per collision, as the paper that ResTD is laid over has it. Its body is
the compact decoder, so that it is of the size of the others; the authors' is T5.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "calir",
        "Latent steps supervised by item categories, then RQ-VAE codes of four levels inside the likeliest categories.",
        source="Category-guided Latent Intent Reasoning, the retriever that the ResTD paper continues from",
        label="CaLIR",
        index={
            "index": {"quantizer": "rqvae", "policy": "single_substitution"},
            "align": {"enabled": "off"},
        },
        train={"model": {"backbone": "calir"}, "calir": {"body": "compact"}},
        needs=frozenset({"categories"}),
    )
)
