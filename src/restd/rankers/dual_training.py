"""The one trainer of dual encoders: DPR's contrastive loss, and the three losses that LaSER adds to it."""

import logging
import math
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.artifacts.swap import replace_folder
from restd.data import Pairs
from restd.errors import TrainingError
from restd.models.contract import seeded
from restd.models.store import FOLDER
from restd.progress import Advance, Notify, progress
from restd.quantize.known_pairs import KnownPairs, pull_towards
from restd.rankers.dual_data import ExplicitView, Texts, draw_negatives
from restd.rankers.dual_encoder import DualEncoder
from restd.rankers.dual_losses import contrast, divergence, score
from restd.rankers.dual_network import DualNetwork, View
from restd.rankers.dual_settings import DprConfig, DualConfig, LaserConfig
from restd.train.checkpoint import TrainerState, read_checkpoint, write_checkpoint
from restd.train.log import LOG, RunLog
from restd.train.schedule import learning_rate

logger = logging.getLogger(__name__)

CHECKPOINT, BEST = "checkpoint", "best"
_DEPTH = 10
_ROWS = 1_024
_WARM_UP = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Lessons:
    """Everything that is learned from, encoded.

    Args:
        pairs: training pairs.
        queries: texts of their queries.
        items: texts of all items.
        known: the same pairs, to recognise items that are no negatives.
        negatives: hard negatives of each query, best first; None where none are drawn.
        explicit: queries with their reasoning; None where no loss reads it.
        valid_pairs: pairs to choose the number of epochs by.
        valid: texts of their queries.
    """

    pairs: Pairs
    queries: Texts
    items: Texts
    known: KnownPairs
    negatives: Int64[np.ndarray, "query depth"] | None
    explicit: ExplicitView | None
    valid_pairs: Pairs
    valid: Texts


def dual_loss(
    network: DualNetwork,
    lessons: Lessons,
    chosen: Int64[np.ndarray, "row"],
    config: DualConfig,
    *,
    seed: tuple[int, ...],
) -> Float[Tensor, ""]:
    """Loss of some training pairs.

    Each query is contrasted with its own item, the items of the other pairs and its hard negatives. An item that
    answers the query too is no negative.

    Args:
        network: both towers.
        lessons: the pairs.
        chosen: numbers of the pairs.
        config: settings; those of LaSER add their losses.
        seed: of the hard negatives that are drawn.
    """
    query, item = lessons.pairs.text[chosen], lessons.pairs.item[chosen]
    candidates = item
    if lessons.negatives is not None:
        count = len(lessons.items)
        drawn = draw_negatives(lessons.negatives, query, per_row=config.hard_negatives, items=count, seed=seed)
        candidates = np.concatenate([item, drawn.ravel()])
    view = network.queries(lessons.queries.batch(query))
    items = network.items(lessons.items.batch(candidates))
    mask = lessons.known.others(torch.from_numpy(query), torch.from_numpy(candidates))
    scores = score(view.vectors, items, mask, temperature=config.temperature)
    loss = contrast(scores)
    if isinstance(config, LaserConfig) and lessons.explicit is not None:
        loss = loss + _explicit_losses(network, lessons.explicit, chosen, view, items, scores, config)
    return loss


def _explicit_losses(
    network: DualNetwork,
    explicit: ExplicitView,
    chosen: Int64[np.ndarray, "row"],
    view: View,
    items: Float[Tensor, "candidate dim"],
    scores: Float[Tensor, "row candidate"],
    config: LaserConfig,
) -> Float[Tensor, ""] | float:
    """What the explicit view teaches: its own contrast, and divergences of the latent view and steps from it."""
    rows = explicit.row[chosen]
    places = np.flatnonzero(rows >= 0)
    if not len(places):
        return 0.0
    own = torch.from_numpy(places)
    batch = explicit.texts.batch(rows[places])
    mask = torch.isneginf(scores[own])
    teacher = score(network.explicit(batch), items, mask, temperature=config.temperature)
    loss = config.view_weight * divergence(teacher, scores[own])
    loss = loss + config.explicit_weight * torch.nn.functional.cross_entropy(teacher, own)
    if view.steps is None or not config.step_weight:
        return loss
    reasoning = network.reasoning(batch, explicit.shares(rows[places], config.steps))
    for step in range(config.steps):
        states = (reasoning[:, step], view.steps[own, step])
        of_reasoning, of_state = (score(s, items, mask, temperature=config.step_temperature) for s in states)
        loss = loss + config.step_weight / config.steps * divergence(of_reasoning, of_state)
    return loss


@torch.inference_mode()
def item_vectors(network: DualNetwork, items: Texts) -> Float[Tensor, "item dim"]:
    """Vectors of all items, a thousand at a time."""
    network.eval()
    return torch.cat([network.items(items.batch(rows)).clone() for rows in _slices(len(items))])


@torch.inference_mode()
def ndcg(network: DualNetwork, lessons: Lessons) -> float:
    """Mean NDCG@10 of the validation queries among all items, in percent; every positive gains 1."""
    items, pairs = item_vectors(network, lessons.items), lessons.valid_pairs
    answers = KnownPairs.of(pairs.text, pairs.item, items=len(items))
    positives = np.bincount(pairs.text, minlength=len(lessons.valid))
    discounts = 1 / np.log2(np.arange(_DEPTH) + 2)
    gained = np.zeros(len(lessons.valid))
    for rows in _slices(len(lessons.valid)):
        scores = network.queries(lessons.valid.batch(rows)).vectors @ items.T
        best = scores.topk(min(_DEPTH, len(items)), dim=1).indices
        hits = torch.isin(torch.from_numpy(rows)[:, None] * answers.items + best, answers.keys).numpy()
        gained[rows] = (hits * discounts[: hits.shape[1]]).sum(axis=1)
    ideal = np.append(0.0, discounts.cumsum())[np.minimum(positives, _DEPTH)]
    return float(100 * (gained / np.maximum(ideal, 1e-12))[positives > 0].mean())


def _slices(count: int) -> list[Int64[np.ndarray, "_"]]:
    return [np.arange(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS)]


@dataclass(frozen=True, slots=True, eq=False)
class DualRun:
    """One run: what is trained, on what, how, and where it is written.

    Args:
        model: the ranker whose network is trained.
        lessons: what it learns from.
        out: folder of the run.
        identity: hash of all that decides the result.
        notify: receives progress messages.
    """

    model: DualEncoder
    lessons: Lessons
    out: Path
    identity: str
    notify: Notify = logger.info

    @property
    def config(self) -> DualConfig:
        """The settings."""
        return self.model.config

    @property
    def per_epoch(self) -> int:
        """Updates in an epoch."""
        return -(-len(self.lessons.pairs) // self.config.batch)

    def train(self) -> None:
        """Train to the end, or to the patience's, and write the best weights; a run that was killed is resumed."""
        network, config, folder = self.model.network, self.config, self.out / CHECKPOINT
        optimizer, origins = _optimizer(network, config), [p.detach().clone() for p in network.parameters()]
        state = read_checkpoint(folder, network, optimizer, identity=self.identity)
        if state is not None:
            self.notify(f"Resuming after epoch {state.update // self.per_epoch:,}")
        total = config.epochs * self.per_epoch
        log = RunLog(self.out / LOG, from_update=0 if state is None else state.update)
        with seeded(config.seed), progress(f"Training {self.model.name}", total=total) as advance:
            if state is None:
                state = self._validated(TrainerState(), log, {})
            advance(state.update)
            while state.update < total and not 0 < config.patience <= state.stale:
                begin, epoch = time.perf_counter(), state.update // self.per_epoch
                loss = self._epoch(epoch, optimizer, origins, advance)
                state = replace(state, update=state.update + self.per_epoch, stale=state.stale + 1)
                state = self._validated(state, log, {"loss": loss, "seconds": time.perf_counter() - begin})
                advance(0, loss=loss, NDCG=state.best)
                write_checkpoint(folder, network, optimizer, state, identity=self.identity, write=True)
        assert state.best is not None
        self.notify(
            f"Trained {self.model.name} for {state.update // self.per_epoch:,} epochs; NDCG@10 of validation queries "
            f"was best after epoch {state.best_update // self.per_epoch:,}: {state.best:.2f}"
        )
        replace_folder(self.out / BEST, self.out / FOLDER)
        shutil.rmtree(folder, ignore_errors=True)

    def _validated(self, state: TrainerState, log: RunLog, record: dict[str, float]) -> TrainerState:
        """Judge the weights as they are, and keep them if they are the best so far."""
        value = ndcg(self.model.network, self.lessons)
        log.write({"update": state.update, **record, "validation": value})
        if state.best is not None and value <= state.best:
            return state
        state = replace(state, best=value, best_update=state.update, stale=0)
        summary = {"epochs": state.update // self.per_epoch, "validation": value}
        vectors = item_vectors(self.model.network, self.lessons.items).numpy()
        replace(self.model, summary=summary).save(self.out / BEST, vectors, identity=self.identity)
        return state

    def _epoch(self, epoch: int, optimizer: torch.optim.Optimizer, origins: list[Tensor], advance: Advance) -> float:
        """Every pair once; returns the mean loss of the updates."""
        network, config = self.model.network, self.config
        network.train()
        order = np.random.default_rng((config.seed, epoch)).permutation(len(self.lessons.pairs))
        warm_up, total = max(1, int(_WARM_UP * config.epochs * self.per_epoch)), config.epochs * self.per_epoch
        losses = []
        for number in range(self.per_epoch):
            chosen = order[number * config.batch : (number + 1) * config.batch]
            update = epoch * self.per_epoch + number
            rate = learning_rate(update + 1, peak=1.0, warm_up=warm_up, total=total + 1)
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate
            seed = (config.seed, epoch, number)
            torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))  # dropout of a trained encoder
            loss = dual_loss(network, self.lessons, chosen, config, seed=seed)
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                raise TrainingError(
                    f"The loss of update {number + 1:,} in epoch {epoch + 1:,} is NaN or infinite. Lower "
                    f"{config.section}.learning_rate, which is {config.learning_rate:g}."
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pull_towards(list(network.parameters()), origins, config.weight_decay * config.learning_rate * rate)
            advance(1)
        return float(np.mean(losses))


def _optimizer(network: DualNetwork, config: DualConfig) -> torch.optim.Optimizer:
    """AdamW without its own weight decay, with a smaller rate for a trained encoder."""
    share = config.encoder_rate if isinstance(config, DprConfig) else 1.0
    groups = []
    for inside, factor in ((True, share), (False, 1.0)):
        own = [p for name, p in network.named_parameters() if ("_encoder." in name) is inside]
        if own:
            groups.append({"params": own, "peak": config.learning_rate * factor})
    return torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=0.0)
