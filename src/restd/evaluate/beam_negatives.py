"""Negatives for ranking objectives: what a model's own beam ranks high for a training query and nobody judged right."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int64, Integer

from restd._arrow import pc
from restd.data import read_judgments
from restd.data.draws import draw_queries
from restd.errors import ConfigError, DataError
from restd.evaluate.teacher_scores import EnsembleTeacher
from restd.models import Backbone
from restd.search import SearchOptions
from restd.search.beam import beam_search
from restd.search.generate import Generator, Plan
from restd.search.results import RankedList
from restd.snapshot import Snapshot
from restd.train import OBJECTIVES, Job, Negatives, RankSettings, Refresh
from restd.train.loop import TrainingSet

_BATCH = 32


def beam_negatives(job: Job) -> Refresh | None:
    """What searches the negatives of a run; None where its objective needs none.

    Negatives of a query are the first items of the model's own beam that are none of its positives: no training pair
    has them, no judgment of the same text grades them above zero, and none of these shares its Semantic ID. Texts that
    are judged in the split `valid` or `test` are never searched.
    """
    spec = OBJECTIVES[job.config.objective]
    if spec.refresh is None:
        return None
    if job.task == "recommend":
        raise ConfigError(
            f"The objective {spec.name} searches negatives for texts, and this model recommends for histories. Choose "
            "another objective, such as restd."
        )
    snapshot, settings = Snapshot.load(job.index), job.config.rank
    teacher = None
    if spec.refresh == "teacher":
        teacher = EnsembleTeacher.of(snapshot, data=job.data, home=job.index, dense=settings.dense)
    normalized = job.config.train.loss_norm == "trie_children"
    norm = "trie_children" if normalized else "full_vocab"
    options = SearchOptions(k=settings.beam, beam=settings.beam, score_norm=norm).settled("search")
    return BeamNegatives(snapshot, read_judgments(job.data), settings, options, teacher, seed=job.config.train.seed)


@dataclass(frozen=True, slots=True, eq=False)
class Positives:
    """Right items of training queries, sorted by query and item."""

    query: Int64[np.ndarray, "positive"]
    item: Int64[np.ndarray, "positive"]
    grade: Float[np.ndarray, "positive"]
    """From 0 to 1, the highest grade of all judgments; 1 for a pair that nobody judged."""
    paired: Bool[np.ndarray, "positive"]
    """Whether it is a training pair."""
    held_out: Int64[np.ndarray, "_"]
    """Queries whose text is judged in another split than `train`."""

    @classmethod
    def of(cls, train: TrainingSet, judgments: pa.Table, ids: pa.StringArray) -> "Positives":
        """Of training pairs and judgments; items that the index does not have are left out."""
        pairs = train.pairs
        own = pairs.text < pairs.queries
        texts = pa.array([str(text) for text in pairs.texts[: pairs.queries]], pa.string())
        number = pc.index_in(judgments["query"], value_set=texts)
        row = pc.index_in(judgments["item"], value_set=ids)
        split = pc.and_(pc.is_valid(number), pc.not_equal(judgments["split"], "train"))
        held_out = np.unique(number.filter(split).to_numpy()).astype(np.int64)
        right = pc.and_(pc.and_(pc.is_valid(number), pc.is_valid(row)), pc.greater(judgments["grade"], 0.0))
        judged = [column.filter(right).to_numpy().astype(np.int64) for column in (number, row)]
        grades = judgments["grade"].filter(right).to_numpy().astype(np.float64)
        keys = np.concatenate([judged[0] * len(ids) + judged[1], pairs.text[own] * len(ids) + pairs.item[own]])
        distinct, place = np.unique(keys, return_inverse=True)
        grade, paired = np.zeros(len(distinct)), np.zeros(len(distinct), bool)
        np.maximum.at(grade, place[: len(grades)], grades / max(float(grades.max(initial=0.0)), 1e-12))
        paired[place[len(grades) :]] = True
        return cls(distinct // len(ids), distinct % len(ids), np.where(grade > 0, grade, 1.0), paired, held_out)


@dataclass(frozen=True, slots=True, eq=False)
class BeamNegatives:
    """Searches negatives with a model that is being trained.

    Args:
        snapshot: what is searched.
        judgments: of the data set.
        settings: the section [rank].
        options: how the beam is run.
        teacher: scores negatives and positives; None where nobody reads such scores.
        seed: random seed of the queries that are drawn.
    """

    snapshot: Snapshot
    judgments: pa.Table
    settings: RankSettings
    options: SearchOptions
    teacher: EnsembleTeacher | None
    seed: int

    def __call__(self, backbone: Backbone, train: TrainingSet, *, number: int) -> Negatives:
        """Negatives of some of the training queries."""
        positives = Positives.of(train, self.judgments, self.snapshot.ids)
        free = np.setdiff1d(np.arange(train.pairs.queries), positives.held_out)
        if not len(free):
            raise DataError(
                f"There is nothing to search negatives for: of {train.pairs.queries:,} training queries "
                f"{len(positives.held_out):,} are judged for validation or test too, and items' own texts are not "
                "searched. Mark other queries as train, or choose another objective."
            )
        count = self.settings.queries or len(free)
        queries = free[draw_queries(len(free), count, seed=_seed(self.seed, number))]
        lists = self._search(backbone, train, queries)
        items = without_positives(lists, queries, positives, self.snapshot.sids, count=self.settings.negatives)
        own = positives.paired & np.isin(positives.query, queries)
        negatives = Negatives(queries, items, positives.query[own], positives.item[own])
        if self.teacher is None:
            return negatives
        texts = [str(train.pairs.texts[query]) for query in queries]
        share = self.settings.grades
        return self.teacher.scored(negatives, texts, grades=positives.grade[own], share=share)

    @torch.inference_mode()
    def _search(
        self, backbone: Backbone, train: TrainingSet, queries: Int64[np.ndarray, "query"]
    ) -> list[Int64[np.ndarray, "_"]]:
        """Rows of the items in the beam of each query, best first; texts are read as training reads them."""
        generator = Generator(backbone)
        snapshot, stepper = generator.prepared(self.snapshot), generator.stepper(self.options.score_norm)
        plan = Plan.of(snapshot, [str(train.pairs.texts[query]) for query in queries], self.options)
        normalized = self.options.score_norm == "trie_children"
        order = np.argsort(train.texts.lengths[queries], kind="stable")
        lists = [np.zeros(0, np.int64)] * len(queries)
        for start in range(0, len(order), _BATCH):
            numbers = order[start : start + _BATCH].tolist()
            memory = backbone.encode(train.texts.batch(queries[numbers]).to(generator.device))
            for rows, trie in generator.tries(snapshot, plan, numbers, memory, self.options):
                part = memory.take(torch.tensor(rows, device=memory.mask.device))
                beams = beam_search(stepper, part, trie, width=self.settings.beam, trie_normalized=normalized)
                for row, leaves, scores in zip(rows, beams.leaves, beams.scores, strict=True):
                    lists[numbers[row]] = RankedList.of_leaves(trie, leaves, scores, self.settings.beam).rows
        return lists


def without_positives(
    lists: Sequence[Int64[np.ndarray, "_"]],
    queries: Int64[np.ndarray, "query"],
    positives: Positives,
    sids: Integer[np.ndarray, "item level"],
    *,
    count: int,
) -> Int64[np.ndarray, "query {count}"]:
    """The first `count` items of each list whose Semantic ID no positive of the query has; -1 behind the last one."""
    sid_of = np.unique(sids, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    right = np.unique(positives.query * len(sids) + sid_of[positives.item])
    items = np.full((len(queries), count), -1, np.int64)
    for place, (query, rows) in enumerate(zip(queries.tolist(), lists, strict=True)):
        kept = rows[~np.isin(query * len(sids) + sid_of[rows], right)][:count]
        items[place, : len(kept)] = kept
    return items


def _seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
