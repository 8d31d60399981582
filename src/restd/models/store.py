"""Making a backbone from settings, and keeping it in an artefact."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import torch
from torch import Tensor

from restd.artifacts import Artifact, open_artifact
from restd.artifacts.manifest import MANIFEST
from restd.artifacts.store import Writer
from restd.config import plain
from restd.data import Task
from restd.encode import Embeddings, Encoder, TfidfSvdEncoder, load_encoder
from restd.encode.encoders import TFIDF_SVD
from restd.errors import ArtifactError, ConfigError
from restd.index import SidIndex
from restd.models.calir import CalirBackbone, CalirConfig
from restd.models.categories import Categories
from restd.models.code_t5 import CodeT5
from restd.models.compact import CompactBackbone, CompactConfig
from restd.models.t5 import T5Backbone, T5Config, load_pretrained
from restd.models.tiger import TigerBackbone, TigerConfig

AnyBackbone = CompactBackbone | T5Backbone | CalirBackbone | TigerBackbone
KIND = "model"
SCHEMA = 1
FOLDER = "model"
"""Where `restd train --out DIR` puts the model itself."""
_INDEX = "index"


def task_of(body: str) -> Task:
    """The task of a network, as models and manifests name it."""
    return "recommend" if body == "tiger" else "search"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which backbone, and the settings of its parts."""

    backbone: Literal["compact", "t5", "calir", "tiger"] = "compact"
    compact: CompactConfig = field(default_factory=CompactConfig)
    t5: T5Config = field(default_factory=T5Config)
    calir: CalirConfig = field(default_factory=CalirConfig)
    tiger: TigerConfig = field(default_factory=TigerConfig)

    @property
    def task(self) -> Task:
        """What it is asked: a text (`search`) or what a user took (`recommend`)."""
        return task_of(self.backbone)

    @property
    def body(self) -> str:
        """The network itself: `compact`, `t5` or `tiger`."""
        return self.calir.body if self.backbone == "calir" else self.backbone

    @property
    def used(self) -> dict[str, Any]:
        """Settings that matter for this backbone, as plain values."""
        parts = {self.body, self.backbone}
        return {"backbone": self.backbone, **{name: plain(getattr(self, name)) for name in sorted(parts)}}


def make_backbone(
    config: ModelConfig,
    index: SidIndex,
    *,
    folder: Path | None = None,
    texts: Sequence[str] = (),
    categories: Categories | None = None,
    seed: int,
) -> AnyBackbone:
    """Make a backbone with first weights.

    Args:
        config: which one, and its settings.
        index: whose Semantic IDs it will generate.
        folder: where `restd index` put the index; it knows an encoder that was fitted to the catalogue.
        texts: what a fresh tokenizer is trained on.
        categories: of the index's items, for CaLIR.
        seed: of every weight that is drawn.
    """
    if config.backbone == "tiger":
        return TigerBackbone.made(index.sizes, config.tiger, seed=seed)
    depth = config.calir.depth
    if config.backbone == "calir":
        given = (config.compact if config.body == "compact" else config.t5).steps
        if given not in (0, depth):
            raise ConfigError(
                f"{config.body}.steps = {given} contradicts calir.depth = {depth}: CaLIR ties latent steps to "
                "the depth of its categories; set calir.depth alone."
            )
    steps = {"steps": depth} if config.backbone == "calir" else {}
    if config.body == "compact":
        encoder = find_encoder(config.compact.encoder, index, folder)
        body = CompactBackbone(encoder, index.sizes, replace(config.compact, **steps), seed=seed)
    else:
        body = T5Backbone.made(index.sizes, replace(config.t5, **steps), texts=texts, seed=seed)
    if config.backbone != "calir":
        return body
    if categories is None:
        raise ConfigError("CaLIR needs categories of the items; take the catalogue's, or induce them.")
    return CalirBackbone(body, categories, config.calir, seed=seed)


def find_encoder(name: str, index: SidIndex, folder: Path | None) -> Encoder:
    """Load the encoder of this name; `index` stands for the one the index was made with."""
    if name != _INDEX:
        if name == TFIDF_SVD:
            raise ConfigError(
                f"{TFIDF_SVD} is fitted to a catalogue: make the index with it, and take compact.encoder=index."
            )
        return load_encoder(name)
    wanted = index.origin.get("encoder")
    if wanted is None or "file" in wanted:
        raise ConfigError(
            "The index does not know an encoder for queries: its Semantic IDs or vectors were brought from elsewhere; "
            "name one, as in --set compact.encoder=minilm."
        )
    if wanted["name"] != TFIDF_SVD:
        return _same(load_encoder(wanted["name"]), wanted)
    if folder is None or not (folder / "embeddings").is_dir():
        raise ConfigError(
            "The index was encoded with an encoder fitted to its catalogue, which is kept beside it in 'embeddings'; "
            "name the folder restd index made, or another encoder with --set compact.encoder=minilm."
        )
    return _same(Embeddings.open(folder / "embeddings").encoder(), wanted)


def _same(encoder: Encoder, wanted: Mapping[str, Any]) -> Encoder:
    if encoder.identity != wanted:
        raise ArtifactError(
            f"The encoder {wanted} is wanted, but the one here is {encoder.identity}; install the original, or make "
            "index and model again."
        )
    return encoder


def describe(backbone: AnyBackbone) -> dict[str, Any]:
    """What a manifest must say so that the backbone can be made again."""
    if isinstance(backbone, CalirBackbone):
        body = describe(backbone.body)
        return {**body, "calir": plain(backbone.config), "induced": backbone.table.induced}
    kinds = {CompactBackbone: "compact", T5Backbone: "t5", TigerBackbone: "tiger"}
    described = {"body": kinds[type(backbone)], "config": plain(backbone.config), "sizes": list(backbone.sizes)}
    if isinstance(backbone, CompactBackbone):
        described["encoder"] = backbone.sentence_encoder.identity
    return described


def write_backbone(writer: Writer, backbone: AnyBackbone, state: Mapping[str, Tensor], ids: pa.StringArray) -> None:
    """Put a backbone with the weights `state` into an artefact; plain `transformers` can load a T5 from there."""
    if isinstance(backbone, CalirBackbone):
        heads = {name: value for name, value in state.items() if name.startswith("heads.")}
        writer.tensors("category-heads", _arrays(heads))
        backbone.table.write(writer, ids)
        inside = {name.removeprefix("body."): value for name, value in state.items() if name.startswith("body.")}
        write_backbone(writer, backbone.body, inside, ids)
    elif isinstance(backbone, CodeT5):
        from transformers.utils.logging import disable_progress_bar

        weights = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
        disable_progress_bar()
        backbone.model.save_pretrained(writer.folder, state_dict=weights)
        if isinstance(backbone, T5Backbone):
            backbone.tokenizer.save_pretrained(writer.folder)
    else:
        writer.tensors("model", _arrays(state))
        if isinstance(backbone.sentence_encoder, TfidfSvdEncoder):
            tensors, vocabulary = backbone.sentence_encoder.state()
            writer.tensors("encoder", tensors)
            writer.table("vocabulary", vocabulary.to_batches(), schema=vocabulary.schema)


def read_backbone(artifact: Artifact, described: Mapping[str, Any]) -> AnyBackbone:
    """Make a backbone again from what `write_backbone` wrote."""
    sizes = tuple(described["sizes"])
    if described["body"] == "tiger":
        # those that do not say so had one table of codes
        return TigerBackbone.load(artifact.folder, sizes, TigerConfig(**{"tied": True, **described["config"]}))
    if described["body"] == "t5":
        model, tokenizer = load_pretrained(str(artifact.folder))
        body: T5Backbone | CompactBackbone = T5Backbone(model, tokenizer, sizes, T5Config(**described["config"]))
    else:
        wanted = described["encoder"]
        if wanted["name"] == TFIDF_SVD:
            encoder: Encoder = TfidfSvdEncoder.from_state(artifact.tensors("encoder"), artifact.table("vocabulary"))
        else:
            encoder = _same(load_encoder(wanted["name"]), wanted)
        body = CompactBackbone(encoder, sizes, CompactConfig(**described["config"]), seed=0)
        body.load_state_dict({name: torch.from_numpy(value) for name, value in artifact.tensors("model").items()})
    if "calir" not in described:
        return body
    categories, ids = Categories.read(artifact, induced=described["induced"])
    settings = {**described["calir"], "branching": tuple(described["calir"]["branching"])}
    calir = CalirBackbone(body, categories, CalirConfig(**settings), seed=0)
    heads = {name: torch.from_numpy(value) for name, value in artifact.tensors("category-heads").items()}
    calir.load_state_dict(heads, strict=False)
    calir.ids = ids
    return calir


def model_folder(folder: Path) -> Path:
    """Where the model itself is: this folder, or inside the one `restd train --out` made."""
    inside = folder / FOLDER
    return inside if not (folder / MANIFEST).is_file() and (inside / MANIFEST).is_file() else folder


def open_model(folder: Path) -> tuple[AnyBackbone, Artifact]:
    """Open a trained model: its own folder, or the one `restd train --out` made."""
    artifact = open_artifact(model_folder(folder), kind=KIND, schema=SCHEMA)
    return read_backbone(artifact, artifact.manifest.settings["backbone"]), artifact


def refuse_other_layout(artifact: Artifact, index: SidIndex) -> None:
    """Refuse a model that was trained with other codebooks or levels; items may have come and gone."""
    found, wanted = artifact.manifest.settings["layout"], index.layout()
    if found == wanted:
        return
    if found["sizes"] != wanted["sizes"]:
        differs = f"levels of {found['sizes']} codes, but the index has {wanted['sizes']}"
    else:
        differs = f"codebooks {str(found['codebooks'])[:8]}, but the index has {str(wanted['codebooks'])[:8]}"
    raise ArtifactError(
        f"{artifact.folder} was trained for {differs}; point to the index it was trained with, or train a model for "
        "this one."
    )


def _arrays(state: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: value.detach().cpu().numpy() for name, value in state.items()}
