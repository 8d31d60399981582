"""CaLIR's losses: latent steps name the target's categories, and stand near those of all the query's positives."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from restd.models import CalirBackbone, Categories
from restd.train.config import CategorySettings
from restd.train.examples import Pairs
from restd.train.module import Batch, Forward


def naming_loss(scores: Sequence[Float[Tensor, "row _"]], wanted: Int64[Tensor, "row step"]) -> Float[Tensor, ""]:
    """L_HSR = Σ_i CE(head_i(z_i), category of the target at depth i); summed over steps, a mean over rows."""
    losses = [nn.functional.cross_entropy(held.float(), wanted[:, step]) for step, held in enumerate(scores)]
    return torch.stack(losses).sum()


def contrast_loss(
    embedded: Float[Tensor, "row width"],
    prototypes: Float[Tensor, "category width"],
    groups: Int64[Tensor, "row path"],
    *,
    temperature: float,
) -> Float[Tensor, ""]:
    """Multi-positive InfoNCE of one latent step against the category prototypes of the batch (L_QRE).

    `groups` holds the categories of each row's query, -1 where there are fewer. Prototypes of other rows are negatives
    unless the row has the same category itself; padding is nobody's.
    """
    found = groups.flatten()
    owner = torch.arange(len(groups), device=groups.device).repeat_interleave(groups.shape[1])
    points = nn.functional.normalize(prototypes.float(), dim=-1)[found.clamp_min(0)]
    scores = nn.functional.normalize(embedded.float(), dim=-1) @ points.T / temperature
    own = owner[None] == torch.arange(len(groups), device=groups.device)[:, None]
    mine = (groups[:, :, None] == found).any(dim=1)  # the same category, whoever brought it
    real = found >= 0
    total = scores.masked_fill(~(real & (own | ~mine)), -torch.inf).logsumexp(dim=-1)
    positive = own & real
    return torch.where(positive, total[:, None] - scores, 0.0).sum() / positive.sum().clamp_min(1)


def query_groups(pairs: Pairs, categories: Categories, *, paths: int) -> Int64[np.ndarray, "text path depth"]:
    """The first few distinct category paths of each text's items, in the order of their rows; -1 where there are fewer.

    Paths that part only at a deeper depth stay two, so that a shared coarse category counts twice.
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


class CategoryObjective(nn.Module):
    """α L_HSR + β L_QRE on the latent steps of a CaLIR backbone, whose heads it borrows."""

    def __init__(self, backbone: CalirBackbone, pairs: Pairs, settings: CategorySettings) -> None:
        super().__init__()
        self.settings = settings
        self._heads = [backbone.heads]  # in a list: the backbone owns them
        self.of_item: Tensor
        self.groups: Tensor
        groups = query_groups(pairs, backbone.table, paths=settings.paths)
        self.register_buffer("of_item", torch.from_numpy(backbone.table.of_item), persistent=False)
        self.register_buffer("groups", torch.from_numpy(groups), persistent=False)

    def forward(self, batch: Batch, found: Forward, *, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss to be added, and its parts."""
        heads = self._heads[0]
        assert found.output.latents is not None
        embedded = heads.embed(found.output.latents)
        naming = naming_loss(heads.scores(embedded), self.of_item[batch.rows])
        groups = self.groups[batch.queries]
        contrast = torch.stack(
            [
                contrast_loss(held, points, groups[:, :, depth], temperature=self.settings.temperature)
                for depth, (held, points) in enumerate(zip(embedded, heads.prototypes(), strict=True))
            ]
        ).sum()
        loss = self.settings.weight * naming + self.settings.contrast * contrast
        return loss, {"category": naming.detach(), "contrast": contrast.detach()}
