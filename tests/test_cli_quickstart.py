"""One command from tables to a fitted search, as a new user would type it."""

import csv
import json

import pytest
from typer.testing import CliRunner

from restd.cli.app import app
from restd.cli.quickstart import has_histories_only
from restd.search import Retriever
from tests.training import add_walks, write_walks, write_world

FAST = ("--encoder", "tfidf-svd", "--minutes", "0.02")


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)


def as_csv(source, target, names):
    rows = [json.loads(line) for line in source.read_text("utf-8").splitlines()]
    with target.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(names.values())
        writer.writerows([[row.get(name, "") for name in names] for row in rows])


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    world = write_world(folder / "world", categories=False)
    as_csv(world / "items.jsonl", folder / "items.csv", {"id": "SKU", "title": "Product name"})
    names = {"query": "search term", "item": "sku", "split": "split"}
    as_csv(world / "judgments.jsonl", folder / "clicks.csv", names)
    lines = (folder / "clicks.csv").read_text("utf-8").replace(",valid", ",test").splitlines(keepends=True)
    (folder / "clicks.csv").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def finished(tables):
    result = invoke("quickstart", tables / "items.csv", tables / "clicks.csv", "--out", tables / "search", *FAST)
    assert result.exit_code == 0, result.output
    return tables / "search", result.output


def test_it_says_what_it_guessed_and_what_the_search_is_worth(finished):
    _, output = finished
    assert "SKU" in output
    assert "Product name" in output
    assert "hybrid" in output
    assert "restd search --model" in output


def test_its_summary_has_every_ranker(finished):
    summary = json.loads((finished[0] / "summary.json").read_text("utf-8"))
    assert {"bm25", "dense", "bm25_dense", "generator", "hybrid"} <= set(summary["rankers"])
    assert set(summary["rankers"]["hybrid"]) == {"ndcg10", "recall10", "recall100"}
    mean, low, high = summary["hybrid_over_bm25_dense"]["ndcg10"]
    assert low <= mean <= high
    assert summary["seconds"] > 0
    assert (finished[0] / "report" / "report.html").is_file()


def test_its_bundle_can_be_searched(finished):
    hits = Retriever.load(finished[0] / "bundle").search("oak desk", k=3)
    assert len(hits) == 3
    assert invoke("search", "--model", finished[0] / "bundle", "oak desk", "--mode", "generative").exit_code == 0


def test_it_continues_where_it_was(tables, finished):
    again = invoke("quickstart", tables / "items.csv", tables / "clicks.csv", "--out", tables / "search", *FAST)
    assert again.exit_code == 0, again.output
    assert "Kept the data" in again.output
    assert "Kept the model" in again.output


def test_items_alone_are_enough(tables, tmp_path):
    result = invoke("quickstart", tables / "items.csv", "--out", tmp_path / "search", *FAST, "--json")
    assert result.exit_code == 0, result.output
    assert "own words" in result.output
    settings = json.loads((tmp_path / "search" / "model" / "run.json").read_text("utf-8"))
    assert '"pseudo_queries": 0' in json.dumps(settings)


@pytest.fixture(scope="module")
def recommender(tmp_path_factory):
    """A recommender made of two tables of one's own."""
    folder = tmp_path_factory.mktemp("walks")
    walks = write_walks(folder / "walks")
    as_csv(walks / "items.jsonl", folder / "items.csv", {"id": "sku", "title": "name"})
    as_csv(walks / "histories.jsonl", folder / "orders.csv", {"user": "customer", "item": "sku", "time": "day"})
    result = invoke("quickstart", folder / "items.csv", folder / "orders.csv", "--out", folder / "out", *FAST)
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_histories_make_a_recommender(recommender):
    folder, output = recommender
    assert "restd recommend --model" in output
    summary = json.loads((folder / "out" / "summary.json").read_text("utf-8"))
    assert set(summary["rankers"]) == {"model", "popularity", "co-occurrence", "neighbours"}
    assert set(summary["rankers"]["model"]) >= {"ndcg10", "recall10"}
    report = (folder / "out" / "report" / "report.html").read_text("utf-8")
    assert "What the recommender is worth" in report
    items = Retriever.load(folder / "out" / "bundle")
    history = items.snapshot.ids.to_pylist()[:2]
    hits = items.recommend(history, k=3)
    assert not {hit.item for hit in hits} & set(history)


def test_a_folder_with_judgments_and_histories_is_searched(tmp_path):
    data = write_world(tmp_path)
    add_walks(data)
    assert not has_histories_only(data)
    (data / "judgments.jsonl").unlink()
    assert has_histories_only(data)


def test_a_recommender_continues_where_it_was(recommender):
    folder, _ = recommender
    again = invoke("quickstart", folder / "items.csv", folder / "orders.csv", "--out", folder / "out", *FAST, "--json")
    assert again.exit_code == 0, again.output
    assert "Kept the model" in again.output


def test_ablations_of_a_fitted_search(finished):
    result = invoke("evaluate", "--model", finished[0] / "model", "--ablate", "--json")
    assert result.exit_code == 0, result.output
    board = json.loads(result.stdout)
    assert "hybrid" in board["rankers"]
    assert set(board["hybrid_over"]) == set(board["rankers"]) - {"hybrid"}
