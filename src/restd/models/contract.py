"""What a generative retriever must offer, whatever network it is."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd._arrow import pc
from restd.artifacts import Artifact
from restd.artifacts.store import Writer
from restd.codes.ending import is_padding
from restd.config import plain
from restd.data import Query
from restd.data.categories import Categories
from restd.encode import Inputs, Ragged
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.models.categories import CategorySettings
from restd.models.decode_protocol import Memory, Normalizer, Stepper
from restd.models.inputs import only_texts
from restd.models.prefix_stepper import PrefixStepper

IGNORED = -100
"""A target that a cross-entropy leaves out of its mean, as torch has it."""


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Decoder states under teacher forcing."""

    states: Float[Tensor, "row level width"]
    """The states that predict each code; `states[:, 0]` predicts the first one."""
    latents: Float[Tensor, "row step width"] | None = None
    """States of the latent steps; the last of them is `states[:, 0]`."""
    ending: Float[Tensor, "row width"] | None = None
    """The state that predicts the end, where the model has an end-of-sequence token."""


@runtime_checkable
class TrainingPairs(Protocol):
    """Pairs of a text and an item: what a backbone with losses of its own may look at."""

    @property
    def texts(self) -> Sequence[Query]:
        """Every text once."""
        ...

    @property
    def text(self) -> Int64[np.ndarray, "pair"]:
        """Number of each pair's text."""
        ...

    @property
    def item(self) -> Int64[np.ndarray, "pair"]:
        """Row of each pair's item in the index."""
        ...


class Backbone(nn.Module, ABC):
    """A generative retriever; `BACKBONES` has an entry for each kind.

    The abstract methods are what training and search need. The others are optional: their defaults suit a backbone
    that reads texts and is nothing but its weights, and say that it does not have further capabilities.

    Args:
        sizes: codes of each level.
        width: width of the decoder's states.
        config: its settings, a frozen dataclass.
        ends: whether code 0 ends an identifier, so that Semantic IDs may be of unequal length.
    """

    kind: ClassVar[str]
    """Name of its entry in `BACKBONES`."""

    def __init__(self, sizes: tuple[int, ...], width: int, config: Any, *, ends: bool = False) -> None:
        super().__init__()
        self.sizes, self.width, self.config, self.ends = sizes, width, config, ends
        self.categories: Categories | None = None
        """Categories that a search can be restricted to, where the backbone knows any."""
        self.category_ids: pa.StringArray | None = None
        """Items that have these categories; unset in training, where they are the index's own, row by row."""

    @abstractmethod
    def prepare(self, texts: Any, *, role: str = "query", cache: Path | None = None) -> Ragged:
        """Turn texts into what `encode` reads.

        Args:
            texts: texts, or for a backbone that recommends, histories as Semantic IDs.
            role: `query`, or `item` for items' own texts.
            cache: folder for results that are costly to compute.
        """

    @abstractmethod
    def encode(self, inputs: Inputs) -> Memory:
        """Read a batch."""

    @abstractmethod
    def states(self, memory: Memory, sids: Int64[Tensor, "row given"]) -> Output:
        """States that predict the codes after none, one, … all of the given ones: one more than given, at most all."""

    @abstractmethod
    def logits(self, states: Float[Tensor, "row level width"]) -> Float[Tensor, "row level code"]:
        """Scores over each level's codes, from the first level on; codes that a level lacks get -inf."""

    @abstractmethod
    def sid_loss(self, output: Output, sids: Int64[Tensor, "row level"]) -> Float[Tensor, ""]:
        """The model's own generation loss, a mean over its positions (the end included where there is one).

        Where Semantic IDs end early, positions behind a terminal code have no part in it: see `learned`.
        """

    @property
    def soft_targets(self) -> bool:
        """Whether it has a generation loss of soft targets, `soft_sid_loss`."""
        return False

    def soft_sid_loss(
        self,
        output: Output,
        targets: Float[Tensor, "row level code"],
        *,
        allowed: Bool[Tensor, "row level code"] | None = None,
        weights: Float[Tensor, "position"] | None = None,
    ) -> Float[Tensor, ""]:
        """The generation loss with a distribution over the codes of each level in place of one code.

        Where every distribution is a single code, nothing is disallowed and all weights are equal, it is `sid_loss`.
        Where Semantic IDs end early (`ends`), positions behind a terminal code come without any probability and have no
        part in the mean.

        Args:
            output: of `states`, for whole Semantic IDs.
            targets: probabilities over each level's codes.
            allowed: codes among which the model chooses; scores of the others have no part in the loss.
            weights: of the positions, for `position_mean`: one per level, and one for the end, which a backbone without
                an end ignores.
        """
        raise ConfigError(
            f"The backbone {self.kind} has no generation loss of soft targets. Leave train.multi_positive at 'off', "
            "train.loss_norm at 'full_vocab', train.level_weights at 'even' and train.soft_credit at 0, or implement "
            "soft_sid_loss."
        )

    def learned(
        self, targets: Int64[Tensor, "row level"], sids: Int64[Tensor, "row level"]
    ) -> Int64[Tensor, "row level"]:
        """Targets of a cross-entropy for the codes of `sids`, without the positions that follow with certainty."""
        return targets.masked_fill(is_padding(sids), IGNORED) if self.ends else targets

    def stepper(self, *, normalizer: Normalizer = "full_vocab") -> Stepper:
        """Copy what decodes level by level, as it is now and without dropout.

        It knows nothing of identifiers that end early: `restd.models.make_stepper` gives one that does.
        """
        return PrefixStepper(self)

    def prepare_queries(
        self, queries: Sequence[Query], index: SidIndex, *, role: str = "query", cache: Path | None = None
    ) -> Ragged:
        """Turn queries into what `encode` reads; `index` knows the Semantic IDs of a history's items."""
        return self.prepare(only_texts(queries), role=role, cache=cache)

    def describe(self) -> dict[str, Any]:
        """What a manifest must say so that the backbone can be built again."""
        own = {"kind": self.kind, "body": self.kind, "config": plain(self.config), "sizes": list(self.sizes)}
        return {**own, "ends": True} if self.ends else own

    def write(self, writer: Writer, state: Mapping[str, Tensor], ids: pa.StringArray) -> None:
        """Write the weights `state`, and whatever else it needs to be read again, into an artefact.

        Args:
            writer: of the artefact.
            state: weights, by the names of `state_dict`.
            ids: items of the index it was trained for.
        """
        writer.tensors("model", to_arrays(state))

    @property
    def rates(self) -> dict[str, float]:
        """Learning rates of parameters by the start of their names, relative to the run's; none by default."""
        return {}

    @property
    def unused_parameters(self) -> bool:
        """Whether some trained parameters have no part in the loss, which distributed training must know."""
        return False

    def start_continuation(self) -> None:
        """Freeze whatever a run that continues from this trained model must not change; nothing by default."""

    def extra_loss(self, pairs: TrainingPairs, settings: CategorySettings) -> nn.Module | None:
        """Build losses of its own beside the generation loss; None for none.

        The module is called with the output, the items' rows and the numbers of the texts, and returns the loss to be
        added and its parts for the log.

        Args:
            pairs: what is trained on.
            settings: the section [category]; a backbone with other settings has them in its own section.
        """
        return None

    @property
    def knows_users(self) -> bool:
        """Whether it reads who a history belongs to."""
        return False

    @property
    def routes(self) -> bool:
        """Whether it knows categories of items, and so can restrict a search to a query's likeliest ones."""
        return self.categories is not None

    def route(self, memory: Memory, *, width: int) -> Int64[Tensor, "row width"] | None:
        """The `width` likeliest categories of each row; None for the whole catalogue: without categories, always."""
        return None

    def item_categories(self, ids: pa.StringArray) -> Int64[np.ndarray, "item"] | None:
        """Deepest category of each of the items `ids`, as `route` numbers them; None where it knows no categories.

        Items that were added after training have no category (-1), and are searched with all of them.
        """
        if self.categories is None:
            return None
        deepest = self.categories.of_item[:, -1]
        if self.category_ids is None:
            return deepest
        rows = pc.index_in(ids, value_set=self.category_ids)
        return pc.fill_null(pa.array(deepest).take(rows), -1).to_numpy(zero_copy_only=False)


BackboneType = TypeVar("BackboneType", bound=Backbone)


def to_arrays(state: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Weights as arrays that an artefact can hold."""
    return {name: value.detach().cpu().numpy() for name, value in state.items()}


def load_weights(backbone: BackboneType, artifact: Artifact) -> BackboneType:
    """Load the weights that `Backbone.write` wrote; returns the backbone."""
    backbone.load_state_dict({name: torch.from_numpy(value) for name, value in artifact.tensors("model").items()})
    return backbone


def code_mask(sizes: Sequence[int]) -> Bool[Tensor, "level code"]:
    """Which codes each level has.

    >>> code_mask((1, 3)).tolist()
    [[True, False, False], [True, True, True]]
    """
    return torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]


def code_loss(logits: Float[Tensor, "row level code"], sids: Int64[Tensor, "row level"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of the stored codes over rows and levels."""
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), sids.flatten())


def soft_code_loss(
    logits: Float[Tensor, "row level code"],
    targets: Float[Tensor, "row level code"],
    *,
    allowed: Bool[Tensor, "row level code"] | None = None,
    weights: Float[Tensor, "position"] | None = None,
    ends: bool = False,
) -> Float[Tensor, ""]:
    """Mean cross-entropy of distributions over the codes, among those that are allowed.

    With `ends`, the mean is over the positions that have any probability.

    >>> logits, targets = torch.zeros(1, 1, 4), torch.tensor([[[0.5, 0.5, 0.0, 0.0]]])
    >>> float(soft_code_loss(logits, targets).exp()), float(soft_code_loss(logits, targets, allowed=targets > 0).exp())
    (4.0, 2.0)
    """
    scores = logits.float()
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    losses = -expected_score(scores.log_softmax(dim=-1), targets)
    return position_mean(losses, weights, learned=has_targets(targets) if ends else None)


def has_targets(targets: Float[Tensor, "*batch code"]) -> Bool[Tensor, "*batch"]:
    """Which positions have a distribution to learn; those behind an identifier's end have none."""
    return targets.sum(dim=-1) > 0


def position_mean(
    losses: Float[Tensor, "row position"],
    weights: Float[Tensor, "_"] | None = None,
    *,
    learned: Bool[Tensor, "row position"] | None = None,
) -> Float[Tensor, ""]:
    """Mean over rows and positions, weighted by as many of the weights as there are positions.

    Weights are scaled to a mean of one, so that only their ratios count.

    Args:
        losses: of each position; 0 where nothing is learned.
        weights: of the positions; None where they count the same.
        learned: where there is something to learn; None for everywhere.

    >>> losses, learned = torch.tensor([[3.0, 1.0], [1.0, 0.0]]), torch.tensor([[True, True], [True, False]])
    >>> float(position_mean(losses)), round(float(position_mean(losses, learned=learned)), 3)
    (1.25, 1.667)
    >>> float(position_mean(losses, torch.tensor([6.0, 2.0, 1.0]))), round(
    ...     float(position_mean(losses, torch.tensor([6.0, 2.0, 1.0]), learned=learned)), 3
    ... )
    (1.625, 1.857)
    """
    if weights is None:
        return losses.mean() if learned is None else losses.sum() / learned.sum()
    own = weights[: losses.shape[1]]
    if learned is None:
        return (losses * (own / own.mean())).mean()
    return (losses * own).sum() / (own * learned).sum()


def expected_score(
    scores: Float[Tensor, "*batch code"], targets: Float[Tensor, "*batch code"]
) -> Float[Tensor, "*batch"]:
    """Mean score under a distribution; codes of no probability may have a score of -inf."""
    return (targets * scores.masked_fill(targets == 0, 0.0)).sum(dim=-1)


def refuse_bad_steps(steps: int) -> None:
    """Refuse a negative number of latent steps."""
    if steps < 0:
        raise ConfigError(f"The number of latent steps must be 0 (none) or more, got {steps}.")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw first weights from a seed, and leave the caller's randomness where it was.

    >>> before = torch.get_rng_state()
    >>> with seeded(1):
    ...     first = nn.Linear(2, 2)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
