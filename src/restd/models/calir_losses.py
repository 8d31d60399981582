"""CaLIR's losses: latent steps name the target's categories, and stand near those of all the query's positives."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from restd.data.categories import Categories
from restd.models.categories import CategorySettings
from restd.models.contract import Output, TrainingPairs

if TYPE_CHECKING:
    from restd.models.calir import CategoryHeads


def hsr_loss(scores: Sequence[Float[Tensor, "row _"]], targets: Int64[Tensor, "row step"]) -> Float[Tensor, ""]:
    """L_HSR = Σ_i CE(head_i(z_i), category of the target at depth i): a sum over steps of the mean over rows."""
    losses = [nn.functional.cross_entropy(logits.float(), targets[:, step]) for step, logits in enumerate(scores)]
    return torch.stack(losses).sum()


def qre_loss(
    embedded: Float[Tensor, "row width"],
    prototypes: Float[Tensor, "category width"],
    groups: Int64[Tensor, "row path"],
    *,
    temperature: float,
) -> Float[Tensor, ""]:
    """Multi-positive InfoNCE of one latent step against the category prototypes of the batch (L_QRE).

    `groups` has the categories of each row's query, -1 where there are fewer. Prototypes of other rows are negatives
    unless the row has the same category itself; padding belongs to no row.
    """
    categories = groups.flatten()
    owner = torch.arange(len(groups), device=groups.device).repeat_interleave(groups.shape[1])
    points = nn.functional.normalize(prototypes.float(), dim=-1)[categories.clamp_min(0)]
    scores = nn.functional.normalize(embedded.float(), dim=-1) @ points.T / temperature
    own = owner[None] == torch.arange(len(groups), device=groups.device)[:, None]
    shared = (groups[:, :, None] == categories).any(dim=1)  # the row has this category, whichever row it came from
    real = categories >= 0
    total = scores.masked_fill(~(real & (own | ~shared)), -torch.inf).logsumexp(dim=-1)
    positive = own & real
    return torch.where(positive, total[:, None] - scores, 0.0).sum() / positive.sum().clamp_min(1)


def query_groups(pairs: TrainingPairs, categories: Categories, *, paths: int) -> Int64[np.ndarray, "text path depth"]:
    """The first few distinct category paths of each text's items, in the order of their rows; -1 where there are fewer.

    Paths that differ only at a deeper depth stay two, so that a coarse category they share counts twice.
    """
    groups = np.full((len(pairs.texts), paths, categories.depth), -1, np.int64)
    filled = np.zeros(len(pairs.texts), np.int64)
    seen: set[tuple[int, int]] = set()
    for text, item in zip(pairs.text, pairs.item, strict=True):
        path = categories.of_item[item]
        key = (int(text), int(path[-1]))  # the deepest category implies the ones above it
        if key in seen or filled[text] == paths:
            continue
        seen.add(key)
        groups[text, filled[text]] = path
        filled[text] += 1
    return groups


class CategoryLoss(nn.Module):
    """α L_HSR + β L_QRE on the latent steps of a CaLIR backbone, with the backbone's own category heads."""

    def __init__(
        self, heads: "CategoryHeads", categories: Categories, pairs: TrainingPairs, settings: CategorySettings
    ) -> None:
        super().__init__()
        self.settings = settings
        self._heads = [heads]  # in a list, so that their parameters stay the backbone's alone
        self.of_item: Tensor
        self.groups: Tensor
        groups = query_groups(pairs, categories, paths=settings.paths)
        self.register_buffer("of_item", torch.from_numpy(categories.of_item), persistent=False)
        self.register_buffer("groups", torch.from_numpy(groups), persistent=False)

    def forward(
        self, output: Output, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"]
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """Loss to be added, and its parts."""
        heads = self._heads[0]
        assert output.latents is not None
        embedded = heads.embed(output.latents)
        hsr = hsr_loss(heads.scores(embedded), self.of_item[rows])
        groups = self.groups[queries]
        qre = torch.stack(
            [
                qre_loss(points, prototypes, groups[:, :, depth], temperature=self.settings.temperature)
                for depth, (points, prototypes) in enumerate(zip(embedded, heads.prototypes(), strict=True))
            ]
        ).sum()
        loss = self.settings.weight * hsr + self.settings.contrast * qre
        return loss, {"category": hsr.detach(), "contrast": qre.detach()}
