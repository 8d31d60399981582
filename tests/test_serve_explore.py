"""The explorer's routes: what they say is what the snapshot has, and their work does not grow with the catalogue."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from restd.codes import Codebooks
from restd.data import Catalog, History, write_dataset
from restd.errors import ConfigError
from restd.evaluate import evaluate, read_tests
from restd.index import IndexConfig, SidIndex, build_index, with_shape
from restd.index.table import SidTable
from restd.search import Fusion, Retriever, RetrieverRanker, SearchOptions
from restd.serve.app import make_app
from restd.serve.catalog_items import neighbours_of
from restd.serve.catalog_tree import distinguishing_words
from restd.serve.facets import Facets, measure_facets
from restd.serve.item_map import ItemMap, MapAxes, place_query
from restd.serve.limits import Limits
from restd.serve.model_state import BESIDE, ModelSource, ServerState
from restd.serve.run_reports import find_evaluations, find_summary, quality_report
from restd.shop import ShopSpec, shop_source
from restd.snapshot import Items, Snapshot
from tests.training import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    write_dataset(shop_source(ShopSpec(items=500)), folder / "data")
    config = with_shape(IndexConfig(encoder="tfidf-svd"), levels=3, codes=16, dim=8)
    build_index(Catalog(folder / "data"), folder / "index", config)
    run(folder / "index", folder / "data", folder / "run", objective="restd", updates=2)
    run(folder / "index", folder / "data", folder / "plain", updates=2)
    Fusion({"generator": 2.0, "heads": 1.0, "bm25": 1.0, "dense": 0.5}).save(folder / "run" / "fusion")
    retriever = Retriever.load(folder / "plain")
    tests = read_tests(folder / "data", retriever.snapshot, split="test")
    options = SearchOptions().settled("search")
    evaluation, _ = evaluate(RetrieverRanker(retriever, options), tests, retriever.snapshot, name="plain")
    evaluation.save(folder / "result" / "evaluation")
    (folder / "summary.json").write_text(json.dumps({"rankers": {"hybrid": {"ndcg10": 0.5}}}), "utf-8")
    return folder


@pytest.fixture(scope="module")
def state(folder):
    state = ServerState.of(Limits(deadline_ms=60_000))
    state.put(ModelSource(folder / "run").load())
    state.put(ModelSource(folder / "plain").load(), BESIDE)
    return state


@pytest.fixture(scope="module")
def client(state):
    with TestClient(make_app(state)) as client:
        yield client


@pytest.fixture
def snapshot(state):
    return state.model().snapshot


def good(response):
    assert response.status_code == 200, response.text
    values = response.json()
    assert response.headers["X-Restd-Snapshot"] == values["snapshot"]
    return values


def problem(response, status, field):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["field"] == field
    return error["message"]


# --- explain: tree and parts


def test_an_explanation_has_the_tree_and_the_parts(client, state):
    body = {"query": "red kettle", "k": 5, "mode": "hybrid", "contributions": True}
    hits = good(client.post("/v1/search", json=body))["results"][0]["hits"]
    assert len(hits) == 5
    for hit in hits:
        assert sum(part["share"] for part in hit["parts"].values()) == pytest.approx(hit["score"], abs=1e-6)
        explained = good(client.post("/v1/explain", json={"query": "red kettle", "item": hit["item"]}))
        assert explained["parts"] == explained["explanation"]["parts"]
        assert explained["parts"].keys() == hit["parts"].keys() == {"generator", "heads", "bm25", "dense"}
        path = [[node for node in level["nodes"] if node["on_path"]] for level in explained["tree"]["levels"]]
        for nodes, trace in zip(path, explained["explanation"]["levels"], strict=True):
            assert [node["rank"] for node in nodes] == [trace["rank"]] * (trace["rank"] is not None)
        assert all(len(level["nodes"]) <= 60 for level in explained["tree"]["levels"])


def test_a_search_of_the_model_alone_has_no_parts(client):
    body = {"query": "red kettle", "k": 2, "mode": "generative", "contributions": True, "model": "beside"}
    assert [hit["parts"] for hit in good(client.post("/v1/search", json=body))["results"][0]["hits"]] == [None, None]
    plain = good(client.post("/v1/search", json={"query": "red kettle", "k": 2}))
    assert [hit["parts"] for hit in plain["results"][0]["hits"]] == [None, None], "parts are for those who want them"
    item = plain["results"][0]["hits"][0]["item"]
    explained = good(client.post("/v1/explain", json={"query": "red kettle", "item": item, "mode": "generative"}))
    assert explained["parts"] is None
    one_shot = {"query": "kettle", "item": item, "mode": "generative", "heads": {"mode": "one-shot"}}
    assert "no beam to explain" in problem(client.post("/v1/explain", json=one_shot), 422, None)


# --- items


def test_an_item_has_its_columns_and_its_neighbours(client, snapshot):
    item = snapshot.ids[17].as_py()
    shown = good(client.get(f"/v1/items/{item}"))
    assert (shown["item"], shown["title"]) == (item, snapshot.items.titles()[17].as_py())
    assert shown["sid"] == snapshot.sids[17].tolist()
    assert shown["fields"]["price"] == snapshot.items.column("price")[17].as_py()
    assert shown["fields"].keys() == set(snapshot.items.names()) - {"id", "title"}
    assert shown["new"] is False
    for entry in shown["prefixes"]:
        level = len(entry["prefix"])
        assert entry["items"] == (snapshot.sids[:, :level] == entry["prefix"]).all(axis=1).sum()
    assert [len(entry["prefix"]) for entry in shown["prefixes"]] == [1, 2, 3]
    assert item not in {neighbour["item"] for neighbour in shown["neighbours"]}


@pytest.mark.parametrize("item", ["nobody", "../../etc/passwd", "a/b", "%00", "<script>alert(1)</script>", "x" * 3_000])
def test_an_unknown_item_is_not_found(client, item):
    response = client.get(f"/v1/items/{item}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


def test_neighbours_share_the_longest_beginnings(snapshot):
    for row in (0, 100, 499):
        neighbours = neighbours_of(snapshot, row, limit=10)
        same = np.logical_and.accumulate(snapshot.sids == snapshot.sids[row], axis=1).sum(axis=1)
        assert all(same[one.shown.row] == one.shared_levels for one in neighbours)
        others = np.sort(np.delete(same, row))[::-1]
        expected = others[others > 0][:10]
        assert [one.shared_levels for one in neighbours] == expected.tolist()
        assert len({one.shown.row for one in neighbours} | {row}) == len(neighbours) + 1


def test_items_that_came_after_training_are_new(folder):
    from restd.serve.explore_routes import _item

    served = ModelSource(folder / "plain").load()
    served.retriever.add([{"id": "added", "title": "purple oak desk"}])
    assert _item(served, "added")["new"] is True
    assert _item(served, "added")["fields"]["price"] is None


def test_items_are_picked_by_a_text_in_any_case(client, snapshot):
    titles, ids = snapshot.items.titles().to_pylist(), snapshot.ids.to_pylist()
    word = titles[0].split()[0]
    expected = {item for item, title in zip(ids, titles, strict=True) if word.lower() in title.lower()}
    listed = good(client.get("/v1/items", params={"contains": word.upper(), "limit": 200}))
    assert {item["item"] for item in listed["items"]} == expected
    assert listed["total"] == len(expected)
    few = good(client.get("/v1/items", params={"contains": word, "limit": 1}))
    assert (len(few["items"]), few["total"]) == (1, len(expected))
    assert few["items"][0]["title"].lower().startswith(word.lower())
    exact = good(client.get("/v1/items", params={"contains": ids[5].lower(), "limit": 1}))
    assert exact["items"][0]["item"] == ids[5]
    nothing = good(client.get("/v1/items", params={"contains": "%_.*[(nothing"}))
    assert (nothing["items"], nothing["total"]) == ([], 0)


# --- the tree of the catalogue


def test_a_walk_through_the_tree_visits_every_item_once(client, snapshot):
    met = []

    def visit(prefix):
        node = good(client.get("/v1/tree", params={"prefix": "-".join(map(str, prefix)), "limit": 256}))
        below = (snapshot.sids[:, : len(prefix)] == list(prefix)).all(axis=1)
        assert node["items"] == below.sum()
        assert (node["prefix"], node["level"], node["hidden"]) == (list(prefix), len(prefix), 0)
        if len(prefix) == 3:
            assert node["children"] == []
            met.extend(member["item"] for member in node["members"])
            return
        assert sum(child["items"] for child in node["children"]) == node["items"]
        counts = [child["items"] for child in node["children"]]
        assert counts == sorted(counts, reverse=True)
        for child in node["children"]:
            assert child["prefix"] == [*prefix, child["code"]]
            assert 1 <= len(child["examples"]) <= 3
            if prefix == () or child["items"] > 3:
                visit(child["prefix"])
            else:
                rows = np.flatnonzero((snapshot.sids[:, : len(prefix) + 1] == child["prefix"]).all(axis=1))
                met.extend(snapshot.ids.take(pa.array(rows)).to_pylist())

    visit(())
    assert sorted(met) == sorted(snapshot.ids.to_pylist())


def test_a_limit_hides_the_smallest_children(client):
    whole = good(client.get("/v1/tree", params={"limit": 256}))
    part = good(client.get("/v1/tree", params={"limit": 2, "examples": 0}))
    assert part["hidden"] == len(whole["children"]) - 2
    assert [child["code"] for child in part["children"]] == [child["code"] for child in whole["children"][:2]]
    assert part["children"][0]["examples"] == []


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("x", "is not a prefix"),
        ("1-", "is not a prefix"),
        ("-1", "is not a prefix"),
        ("１", "is not a prefix"),
        ("../..", "is not a prefix"),
        ("9999999999999999999", "is not a prefix"),
        ("1-2-3-4", "has 4 codes"),
        ("1-16", "Code 16 at level 2"),
        ("0-0-0", "No item has"),
    ],
)
def test_a_bad_prefix_is_refused(client, snapshot, prefix, message):
    if prefix == "0-0-0":
        taken = set(map(tuple, snapshot.sids.tolist()))
        free = next(sid for sid in np.ndindex(16, 16, 16) if sid not in taken)
        prefix = "-".join(map(str, free))
    assert message in problem(client.get("/v1/tree", params={"prefix": prefix}), 422, "prefix")


def test_words_tell_siblings_apart():
    kettles = ["red steel kettle 1.7l", "blue steel kettle", "steel kettle with whistle"]
    desks = ["red oak desk", "steel desk", "desk of oak 120"]
    lamps = ["steel lamp", "lamp", "red lamp"]
    kettle, desk, lamp = distinguishing_words([kettles, desks, lamps], count=2)
    assert kettle[0] == "kettle"
    assert desk[:2] == ["desk", "oak"]
    assert lamp[0] == "lamp"
    assert "steel" not in desk + lamp, "a word that siblings have more often does not tell them"
    assert distinguishing_words([["a 1.7l", "by 1.7l"], ["9 cm"]], count=3) == [[], []], "sizes tell nothing"
    assert distinguishing_words([["電気ケトル"], ["木の机"]], count=1) == [["ケト"], ["の机"]]
    assert distinguishing_words([["oak desk", "oak lamp"]], count=2) == [["oak", "desk"]], "a lone child is described"
    assert distinguishing_words([["every"], ["every"]], count=2) == [[], []], "what all titles have tells nothing"


# --- facets


def test_facets_count_what_filters_find(client, snapshot, state):
    facets = {facet["column"]: facet for facet in good(client.get("/v1/facets"))["facets"]}
    assert facets.keys() == {"category", "brand", "color", "price", "popularity"}
    assert "description" not in facets, "prose is no facet"
    assert [facets[name]["kind"] for name in ("category", "brand", "price")] == ["path", "text", "number"]
    for column in ("category", "brand", "color"):
        for value in facets[column]["values"][:6]:
            found = snapshot.matching([f"{column}={value['value']}"])
            if column == "category" and ">" not in value["value"]:
                assert value["count"] <= found.sum(), "the filter also finds a name further down a path"
            else:
                assert value["count"] == found.sum()
    prices = snapshot.items.column("price").to_numpy()
    price = facets["price"]
    assert (price["min"], price["max"]) == (prices.min(), prices.max())
    assert price["quantiles"] == pytest.approx(np.quantile(prices, np.linspace(0, 1, 11)))


def test_facets_of_a_filter_are_those_of_its_items(client, snapshot):
    where = ["price<=20"]
    keep = snapshot.matching(where)
    facets = {facet["column"]: facet for facet in good(client.get("/v1/facets", params={"where": where}))["facets"]}
    assert facets["price"]["max"] <= 20
    counts = {value["value"]: value["count"] for value in facets["color"]["values"]}
    colours = [colour for colour, kept in zip(snapshot.items.column("color").to_pylist(), keep, strict=True) if kept]
    assert counts == {colour: colours.count(colour) for colour in set(colours) - {None}}
    assert facets["color"]["missing"] == colours.count(None)


def test_prose_is_no_facet_of_the_few_items_that_a_filter_leaves(client, snapshot):
    price = max(snapshot.items.column("price").to_pylist())
    facets = good(client.get("/v1/facets", params={"where": [f"price>={price}"]}))["facets"]
    assert {facet["column"] for facet in facets} <= {"category", "brand", "color", "price", "popularity"}
    assert sum(value["count"] for facet in facets if facet["column"] == "brand" for value in facet["values"]) < 5


@pytest.mark.parametrize("where", ["nonsense", "nothing=1", "price<=cheap", "brand=nobody at all", "category<3"])
def test_a_bad_filter_is_refused(client, where):
    problem(client.get("/v1/facets", params={"where": where}), 422, "where")


def test_columns_of_every_kind_are_counted_or_left_out():
    columns = {
        "flag": pa.array([True, None, False, True]),
        "tags": pa.array([["a", "b"], ["a"], [], None]),
        "size": pa.array([1.5, float("nan"), None, 2.5]),
        "day": pa.array([1, 2, 3, 4], pa.date32()),
        "empty": pa.nulls(4, pa.string()),
        "named": pa.array(["x", "y", "x", "x"]).dictionary_encode(),
        "nothing": pa.array([None] * 4, pa.float64()),
    }
    ids = pa.array(list("abcd"))
    numbered = Snapshot.numbered(ids)
    snapshot = Snapshot(numbered.index, Items(ids, None, _columns=columns))
    facets = {facet.column: facet.to_dict() for facet in measure_facets(snapshot, list(columns))}
    assert facets.keys() == {"flag", "tags", "size", "named"}
    assert facets["flag"]["values"] == [{"value": "true", "count": 2}, {"value": "false", "count": 1}]
    assert facets["tags"]["values"] == [{"value": "a", "count": 2}, {"value": "a > b", "count": 1}]
    assert (facets["tags"]["missing"], facets["flag"]["missing"], facets["size"]["missing"]) == (2, 1, 2)
    assert (facets["size"]["min"], facets["size"]["max"]) == (1.5, 2.5)
    assert facets["named"]["values"] == [{"value": "x", "count": 3}, {"value": "y", "count": 1}]
    (cut,) = measure_facets(snapshot, ["named"], limit=1)
    assert (cut.values, cut.more) == ([("x", 3)], 1)


def test_facets_are_computed_once(snapshot, monkeypatch):
    facets = Facets(snapshot, ("brand", "price"))
    first = facets.of(["price<=50"])
    monkeypatch.setattr("restd.serve.facets.measure_facets", lambda *_, **__: pytest.fail("measured again"))
    assert facets.of(["price<=50"]) is first


# --- the map


def test_the_map_has_the_principal_axes(client, snapshot):
    placed = good(client.get("/v1/map"))
    assert len(placed["points"]) == len(placed["items"]) == len(placed["titles"]) == 500
    assert placed["sampled"] is False
    assert placed["absent"] is None
    rows = [row for *_, row in placed["points"]]
    assert placed["items"] == snapshot.ids.take(pa.array(rows)).to_pylist()
    assert [code for *_, code, _ in placed["points"]] == snapshot.sids[rows, 0].tolist()
    latents = snapshot.latents.astype(np.float64)
    centred = latents - latents.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    coordinates = np.array([point[:2] for point in placed["points"]])
    expected = (centred @ axes[:2].T)[rows]
    signs = np.sign((coordinates * expected).sum(axis=0))
    assert np.allclose(coordinates, expected * signs, atol=1e-6)
    assert placed["shares"] == pytest.approx((sizes**2 / (sizes**2).sum())[:2].tolist())
    few = good(client.get("/v1/map", params={"points": 7}))
    assert (len(few["points"]), few["sampled"]) == (7, True)
    whole = {row: point for *point, row in placed["points"]}
    assert all(whole[row] == point for *point, row in few["points"]), "the axes do not depend on the number of points"


def test_a_query_is_placed_where_the_heads_point(client, state):
    retriever = state.model().retriever
    placed = good(client.post("/v1/map/query", json={"query": "red kettle"}))
    assert "head" in placed["source"]
    generator, heads = retriever.generator, retriever.heads
    from restd.search.generate import Plan

    plan = Plan.of(retriever.snapshot, ["red kettle"], SearchOptions().settled("search"))
    ((_, memory),) = generator.memories(retriever.snapshot, plan)
    with torch.inference_mode():
        first = generator.stepper("full_vocab").start(memory)[1].first[:, 0]
        near = heads.nearness(first, retriever.snapshot.points)[0]
    axes = MapAxes.of(retriever.snapshot)
    target = retriever.snapshot_search.expected_latent("red kettle", SearchOptions().settled("search"))
    distances = np.square(retriever.snapshot.latents.astype(float) - target).sum(axis=1)
    assert distances.argmin() == int(near.argmax())
    assert axes.place(target[None])[0].tolist() == pytest.approx([placed["x"], placed["y"]])


def test_without_heads_a_query_is_placed_by_its_own_latent(client, state):
    placed = good(client.post("/v1/map/query", json={"query": "red kettle", "model": "beside"}))
    assert "embedding" in placed["source"]
    retriever = state.model(BESIDE).retriever
    title = retriever.snapshot.items.texts()[3]
    at = good(client.post("/v1/map/query", json={"query": title[:2_000], "model": "beside"}))
    own = MapAxes.of(retriever.snapshot).place(retriever.snapshot.latents[3:4])[0]
    assert [at["x"], at["y"]] == pytest.approx(own.tolist(), abs=0.02), "the text of an item is where the item is"


def test_what_has_no_point_says_why(state):
    retriever, options = state.model(BESIDE).retriever, SearchOptions().settled("recommend")
    axes = MapAxes.of(retriever.snapshot)
    history = History((retriever.snapshot.ids[0].as_py(),))
    with pytest.raises(ConfigError, match="only where the model has horizon heads"):
        place_query(retriever.snapshot_search, axes, history, options, encoder=retriever.encoder)
    bare = Snapshot.numbered(pa.array(["a", "b"]))
    with pytest.raises(ConfigError, match="without latents"):
        MapAxes.of(bare)


def test_a_map_of_a_line_is_a_line():
    latents = np.array([[1.0], [2.0], [4.0]], np.float16)
    sids = np.array([[0], [1], [2]], np.int16)
    books = Codebooks.of([torch.tensor([[1.0], [2.0], [4.0]])])
    index = SidIndex(SidTable(pa.array(list("abc")), sids, (3,)), sids, latents, books, None, "none")
    snapshot = Snapshot.of(index)
    axes = MapAxes.of(snapshot)
    placed = ItemMap.of(snapshot, axes, points=10)
    assert placed.coordinates[:, 0].tolist() == pytest.approx((latents[:, 0] - latents.mean()).tolist(), abs=1e-2)
    assert placed.coordinates[:, 1].tolist() == [0, 0, 0]
    assert axes.shares == (pytest.approx(1.0), 0.0)


# --- quality


def test_quality_comes_with_what_lies_beside_the_run(client, folder, snapshot):
    reports = good(client.get("/v1/quality"))
    assert reports["quality"]["items"] == 500
    assert len(reports["quality"]["levels"]) == 3
    assert reports["quality_source"] == "measured", "no report was written when this index was built"
    (evaluation,) = reports["evaluations"]
    assert (evaluation["name"], evaluation["folder"]) == ("plain", "result/evaluation")
    assert evaluation["same_snapshot"] is True
    assert evaluation["card"]["split"] == "test"
    assert "NDCG@10" in evaluation["summary"]["sid"]
    assert reports["summary"] == {"rankers": {"hybrid": {"ndcg10": 0.5}}}
    assert str(folder) not in json.dumps(reports["evaluations"])


def test_a_stored_report_is_taken_while_its_items_are_served(folder, tmp_path):
    retriever = Retriever.load(folder / "plain")
    report = folder / "index" / "quality.json"
    report.write_text('{"items": 500, "kept": 1}', "utf-8")
    try:
        assert quality_report(retriever.snapshot, retriever.home) == ({"items": 500, "kept": 1}, "quality.json")
        retriever.remove([retriever.snapshot.ids[0].as_py()])
        measured, source = quality_report(retriever.snapshot, retriever.home)
        assert (measured["items"], source) == (499, "measured")
        report.write_text("not JSON", "utf-8")
        assert quality_report(Retriever.load(folder / "plain").snapshot, retriever.home)[1] == "measured"
    finally:
        report.unlink()


def test_a_damaged_evaluation_does_not_hide_the_others(folder, snapshot, caplog):
    broken = folder / "aaa"
    broken.mkdir()
    (broken / "manifest.json").write_text("{}", "utf-8")
    try:
        assert [one["name"] for one in find_evaluations(folder / "run", snapshot)] == ["plain"]
        assert "damaged" in caplog.text
        assert find_summary(folder / "run" / "model") is None
    finally:
        (broken / "manifest.json").unlink()
        broken.rmdir()


# --- both models, unknown parameters


def test_both_models_are_explored(client, state):
    for path in ("/v1/tree", "/v1/facets", "/v1/map", "/v1/quality", "/v1/items?contains=a"):
        response = client.get(path, params=None if "?" in path else {"model": "beside"})
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/tree?depth=3", "depth"),
        ("/v1/tree?limit=0", "limit"),
        ("/v1/tree?limit=many", "limit"),
        ("/v1/map?points=1000000", "points"),
        ("/v1/items", "contains"),
        ("/v1/items?contains=", "contains"),
        ("/v1/facets?model=other", "model"),
        ("/v1/quality?path=/etc", "path"),
    ],
)
def test_what_is_not_expected_is_refused_by_name(client, path, field):
    problem(client.get(path), 422, field)


@pytest.mark.parametrize("body", [{}, {"query": "a", "history": ["b"]}, {"query": "  "}, {"query": "a", "k": 3}])
def test_a_bad_query_of_the_map_is_refused(client, body):
    assert client.post("/v1/map/query", json=body).status_code == 422


def test_a_history_is_refused_by_a_model_that_searches(client, snapshot):
    body = {"history": [snapshot.ids[0].as_py()]}
    assert "does not recommend" in problem(client.post("/v1/map/query", json=body), 422, "model")


def test_the_document_describes_every_route(client):
    paths = client.get("/openapi.json").json()["paths"]
    for path in ("/v1/items", "/v1/items/{item}", "/v1/tree", "/v1/facets", "/v1/map", "/v1/map/query", "/v1/quality"):
        assert path in paths
    assert {"200", "404", "422"} <= paths["/v1/items/{item}"]["get"]["responses"].keys()
