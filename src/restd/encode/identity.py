"""Whether an encoder is the one that an artefact was made with: hashes of all that decides the vectors."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from restd.artifacts import hash_file, hash_json
from restd.encode.contract import Encoder

logger = getLogger(__name__)

_WITHOUT_CONTENT = ("name", "dim", "max_tokens", "version")
_PROBES = ("A plain sentence.", "Élan, №5  CAPS_and-dashes 3.14 km²!", "電気ケトル 빨간 주전자 красный чайник", "")
"""Texts whose token ids tell tokenizers apart that share a vocabulary: case, accents, spaces, other scripts."""


def same_encoder(encoder: Encoder, recorded: Mapping[str, Any]) -> bool:
    """Return whether an encoder is the recorded one, as its identity tells.

    Artefacts written before identities had a `content` are accepted when name, width, longest input and version agree;
    a warning says that the weights could not be compared.
    """
    identity = encoder.identity
    if "content" in recorded or "content" not in identity:
        return identity == dict(recorded)
    same = all(recorded[key] == identity.get(key) for key in _WITHOUT_CONTENT if key in recorded)
    if same:
        logger.warning(
            "The encoder %r was recorded by an earlier version of restd, without a hash of its whole content: it is "
            "accepted by its name, and its weights are not compared.",
            recorded["name"],
        )
    return same


def hash_files(paths: Iterable[Path]) -> str:
    """Hash of files by name and content, in any order."""
    return hash_json({path.name: hash_file(path) for path in paths})


def hash_sentence_model(model: Any) -> str:
    """Hash of a SentenceTransformer: weights, tokenizer, prompt, pooling, normalisation and every other module.

    The transformer's own configuration file is left out: what it decides is in the weights' names and shapes, and its
    keys differ between versions of the library.
    """
    settings = {
        "modules": [[type(module).__name__, _settings_of(module)] for module in model],
        "max_tokens": max_tokens(model),
        "prompt": (model.prompts or {}).get(model.default_prompt_name),
        "truncated_to": model.truncate_dim,
    }
    parts = {"weights": hash_weights(model.state_dict()), "tokens": _hash_tokenizer(model), "settings": settings}
    return hash_json(parts)


def max_tokens(model: Any) -> int | None:
    """Longest input of a SentenceTransformer; None where any length will do, as with static embeddings."""
    return model.max_seq_length if isinstance(model.max_seq_length, int) else None


def hash_weights(weights: Mapping[str, Tensor]) -> str:
    """Hash of every tensor's name, type, shape and bytes.

    >>> one = {"a": torch.zeros(100)}
    >>> other = {"a": torch.cat([torch.zeros(99), torch.ones(1)])}
    >>> hash_weights(one) == hash_weights(other)
    False
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _settings_of(module: Any) -> Any:
    from sentence_transformers.sentence_transformer.modules import Transformer

    if isinstance(module, Transformer) or not hasattr(module, "get_config_dict"):
        return None
    return json.loads(json.dumps(module.get_config_dict(), default=str))


def _hash_tokenizer(model: Any) -> str:
    vocabulary = model.tokenizer.get_vocab() if hasattr(model.tokenizer, "get_vocab") else None
    features = model.preprocess(list(_PROBES))
    ids = {name: value.tolist() for name, value in sorted(features.items()) if isinstance(value, Tensor)}
    return hash_json([vocabulary, ids])
