"""`mteb` evaluates a retriever on a task made here: it is indexed, trained on drawn queries, and searched."""

import json
import sys
import warnings

import pytest

from restd.data import read_judgments
from restd.errors import ConfigError, DataError, MissingExtraError
from restd.evaluate.mteb import MtebRetriever
from restd.index import IndexConfig, with_shape
from restd.models import CompactConfig, ModelConfig
from restd.train import RunConfig, TrainConfig
from tests.training import write_world

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of libraries that it imports
    mteb = pytest.importorskip("mteb", reason="needs the extra mteb")
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
INDEX = with_shape(IndexConfig(encoder="tfidf-svd"), levels=3, codes=8, dim=8)
MODEL = ModelConfig(compact=CompactConfig(width=32, heads=2, blocks=1))
TRAIN = TrainConfig(updates=40, batch=16, micro=16, lr=0.01, warm_up=0.1, pseudo_queries=2)
CALL = {"task_metadata": None, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}


def made(folder, **options):
    return MtebRetriever(folder, **{"index": INDEX, "model": MODEL, "run": RunConfig(train=TRAIN), **options})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Data, and its items as a corpus."""
    data = write_world(tmp_path_factory.mktemp("world"))
    items = [json.loads(line) for line in (data / "items.jsonl").read_text("utf-8").splitlines()]
    return data, Dataset.from_list([{"id": item["id"], "title": "", "text": item["title"]} for item in items])


class TinyRetrieval(AbsTaskRetrieval):
    """Two queries over the items of a world."""

    metadata = TaskMetadata(
        name="TinyRetrieval",
        dataset={"path": "none/none", "revision": "1"},
        description="Two queries.",
        type="Retrieval",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def load_data(self, *args, **kwargs):
        queries = Dataset.from_list([{"id": "q1", "text": "steel lamp"}, {"id": "q2", "text": "oak desk"}])
        relevant = {"q1": {"red-steel-lamp": 2, "blue-steel-lamp": 1}, "q2": {"red-oak-desk": 1}}
        part = {"corpus": self.corpus_rows, "queries": queries, "relevant_docs": relevant, "top_ranked": None}
        self.dataset = {"default": {"test": part}}
        self.data_loaded = True


def test_a_benchmark_runs_it(world, tmp_path):
    task = TinyRetrieval()
    task.corpus_rows = world[1]
    messages = []
    model = made(tmp_path / "work", notify=messages.append)
    assert isinstance(model, mteb.models.SearchProtocol)
    result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
    scores = result.task_results[0].scores["test"][0]
    assert scores["ndcg_at_10"] > 0.3
    assert result.model_revision == model.mteb_model_meta.revision
    (folder,) = (tmp_path / "work").iterdir()
    judged = read_judgments(folder / "data").to_pylist()
    assert {row["split"] for row in judged} == {"valid"}
    messages.clear()
    again = made(tmp_path / "work", notify=messages.append)
    again.index(world[1], **CALL)
    assert any("nothing has changed since it was trained" in message for message in messages)
    assert len(list((tmp_path / "work").iterdir())) == 1


def test_answers_are_scores_by_query_and_of_given_documents_only(world, tmp_path):
    model = made(tmp_path / "work", judgments=world[0], run=RunConfig(train=TrainConfig(updates=2, batch=8, micro=8)))
    model.index(world[1], **CALL)
    (folder,) = (tmp_path / "work").iterdir()
    assert {row["split"] for row in read_judgments(folder / "data").to_pylist()} == {"train", "valid"}
    queries = Dataset.from_list([{"id": "a", "text": "oak desk", "instruction": "Find furniture"}])
    answers = model.search(queries, top_k=1_000, **CALL)
    assert list(answers) == ["a"]
    assert len(answers["a"]) == 60
    assert list(answers["a"].values()) == sorted(answers["a"].values(), reverse=True)
    few = ["red-oak-desk", "blue-glass-mug"]
    assert set(model.search(queries, top_k=1_000, top_ranked={"a": few}, **CALL)["a"]) == set(few)


def test_the_revision_is_of_all_settings(tmp_path):
    one = made(tmp_path).mteb_model_meta
    assert one.name == "restd/compact"
    assert one.revision == made(tmp_path / "elsewhere").mteb_model_meta.revision
    others = [
        made(tmp_path, index=with_shape(INDEX, seed=1)),
        made(tmp_path, run=RunConfig(train=TrainConfig(updates=41))),
        made(tmp_path, model=ModelConfig()),
    ]
    revisions = {other.mteb_model_meta.revision for other in others}
    assert len(revisions | {one.revision}) == 4
    assert MtebRetriever(tmp_path).settings.run.train.pseudo_queries == 4


def test_what_cannot_be_done_is_a_sentence(world, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="mteb's tasks are searches, and the backbone tiger is for recommend"):
        MtebRetriever(tmp_path, model=ModelConfig("tiger"))
    with pytest.raises(ConfigError, match="No corpus was indexed"):
        made(tmp_path).search(Dataset.from_list([{"id": "a", "text": "x"}]), top_k=1, **CALL)
    with pytest.raises(DataError, match=r"columns id and text, got id, image: text is missing\. Choose a task"):
        made(tmp_path).index(Dataset.from_list([{"id": "a", "image": "x"}]), **CALL)
    monkeypatch.setitem(sys.modules, "mteb.models.model_meta", None)
    with pytest.raises(MissingExtraError, match=r"restd-retrieval\[mteb\]"):
        _ = made(tmp_path).mteb_model_meta
