"""PUT and DELETE /v1/items: keys, refusals, a full disk, and the real server while items change and after a kill."""

import threading
from contextlib import contextmanager

import httpx
import pytest
from starlette.testclient import TestClient

from restd.serve import ServerState, make_app
from restd.serve.item_updates import ItemUpdates, with_updates
from restd.serve.journal import FILE
from restd.serve.keys import Keys
from restd.serve.model_state import ModelSource
from tests.disks import small_disk
from tests.item_batches import SOFA, after, after_all, batch, opened_updates, titles_of, write_model, write_shop
from tests.serving import READ, WRITE, service, wait_for, write_keys

KEYS = Keys.parse([f"read: {READ}", f"write: {WRITE}"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return write_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def served(shop):
    return ModelSource(shop).load()


@contextmanager
def application(served, folder, keys=KEYS, **options):
    """The application in this process."""
    state = ServerState.of(keys=keys, state_root=folder, **options)
    state.put(with_updates(state, served))
    with TestClient(make_app(state), headers={"Authorization": f"Bearer {WRITE}"}) as client:
        client.state = state
        yield client


def problem(response):
    return response.status_code, response.json()["error"]["code"], response.json()["error"]["field"]


def test_the_routes_add_replace_and_remove(served, tmp_path):
    with application(served, tmp_path) as client:
        body = client.put("/v1/items", json={"items": [SOFA, {"id": "red-oak-desk", "title": "crimson desk"}]})
        assert body.status_code == 200
        made = body.json()
        assert made == {"snapshot": client.state.model().hash, "added": 1, "replaced": 1, "sequence": 1}
        assert body.headers["x-restd-snapshot"] == made["snapshot"] != served.hash
        hits = client.post("/v1/search", json={"query": "sofa", "where": ["price=99.5"], "fields": ["stock"]}).json()
        assert hits["snapshot"] == made["snapshot"]
        assert [(hit["item"], hit["fields"]) for hit in hits["results"][0]["hits"]] == [("sofa", {"stock": 3})]
        gone = client.request("DELETE", "/v1/items", json={"ids": ["sofa"]}).json()
        assert gone == {"snapshot": client.state.model().hash, "removed": 1, "sequence": 2}
        info = client.get("/v1/info").json()
        assert (info["writable"], info["snapshot"], info["sequence"]) == (True, gone["snapshot"], 2)
        assert info["journal_bytes"] == (tmp_path / FILE).stat().st_size


@pytest.mark.parametrize(
    ("method", "body", "expected"),
    [
        ("PUT", {"items": []}, (422, "invalid", "items")),
        ("PUT", {"items": [SOFA], "more": 1}, (422, "invalid", "more")),
        ("PUT", {"items": [5]}, (422, "invalid", "items.0")),
        ("PUT", {"items": [{"id": "a"}]}, (422, "invalid", "items.0")),
        ("PUT", {"items": [{**SOFA, "price": "x"}]}, (422, "invalid", "items.0.price")),
        ("PUT", {"items": [{**SOFA, "file": "../../etc/passwd", "price": [1]}]}, (422, "invalid", "items.0.price")),
        ("PUT", {"items": [SOFA], "texts": [5]}, (422, "invalid", "texts.0")),
        ("DELETE", {"ids": []}, (422, "invalid", "ids")),
        ("DELETE", {"ids": ["nobody"]}, (404, "not_found", "ids.0")),
        ("DELETE", {}, (422, "invalid", "ids")),
    ],
)
def test_the_routes_refuse_with_a_field(served, tmp_path, method, body, expected):
    with application(served, tmp_path) as client:
        assert problem(client.request(method, "/v1/items", json=body)) == expected
        raw = client.request(
            method, "/v1/items", content=b'{"items": [{"id": "a", "title": "b", "price": NaN}], "ids": [NaN]}',
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        assert raw.status_code == 422
        assert client.state.updates.sequence == 0


def test_keys_decide_who_writes(served, tmp_path):
    with application(served, tmp_path) as client:
        for key, status in ((READ, 403), ("nobody's", 401)):
            answer = client.put("/v1/items", json={"items": [SOFA]}, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == status
        client.put("/v1/items", json={"items": [SOFA]}).raise_for_status()
    with application(served, tmp_path, keys=Keys()) as reader:
        assert "sofa" in titles_of(reader.state.model()), "what was acknowledged is there without a write key too"
        answer = reader.put("/v1/items", json={"items": [SOFA]})
        assert problem(answer) == (403, "forbidden", None)
        assert "--api-key-file" in answer.json()["error"]["message"]
        assert reader.get("/v1/info").json()["sequence"] is None
        with application(served, tmp_path) as writer:
            assert writer.state.updates.sequence == 1, "a reader locks nobody out"


def test_a_full_disk_refuses_writes_and_goes_on_searching(served, tmp_path):
    folder = tmp_path / "disk"
    wide = [{"id": f"item-{number}", "title": "steel mug", "note": "x" * 15_000} for number in range(10)]
    with small_disk(folder) as make_room, application(served, folder) as client:
        statuses = []
        while not statuses or (statuses[-1] == 200 and len(statuses) < 20):
            answer = client.put("/v1/items", json={"items": wide})
            statuses.append(answer.status_code)
        assert statuses == [200] * (len(statuses) - 1) + [507]
        assert len(statuses) > 1
        assert answer.json()["error"]["code"] == "storage"
        assert "The disk is full" in answer.json()["error"]["message"]
        now = client.state.model().hash
        assert answer.headers["x-restd-snapshot"] == now
        found = client.post("/v1/search", json={"query": "steel mug", "k": 100})
        assert (found.status_code, found.json()["snapshot"]) == (200, now)
        make_room()
        later = client.put("/v1/items", json={"items": wide})
        assert (later.status_code, later.json()["sequence"]) == (200, len(statuses))
        with_room = client.state.model().hash
        client.state.updates.close()
        with opened_updates(served, folder) as again:
            assert (again.served.hash, again.sequence) == (with_room, len(statuses))


def test_too_many_waiting_updates_are_refused(served, tmp_path, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    put = ItemUpdates.put

    def slow(self, items, texts=None):
        begun.set()
        assert go_on.wait(60)
        return put(self, items, texts)

    monkeypatch.setattr(ItemUpdates, "put", slow)
    monkeypatch.setattr("restd.serve.item_routes._WAITING", 1)
    with application(served, tmp_path) as client:
        answers = []
        first = threading.Thread(target=lambda: answers.append(client.put("/v1/items", json={"items": [SOFA]})))
        first.start()
        assert begun.wait(60)
        second = client.put("/v1/items", json={"items": [SOFA]})
        assert client.post("/v1/search", json={"query": "desk"}).status_code == 200, "searches never wait for updates"
        go_on.set()
        first.join()
        assert problem(second) == (429, "overloaded", None)
        assert second.headers["retry-after"] == "1"
        assert answers[0].status_code == 200


def test_answers_under_updates_belong_to_one_snapshot_each_and_a_kill_loses_none(shop, tmp_path):
    """The real server: searches while items change, `kill -9` in the middle of it, and a second start."""
    words = ("--model", shop, "--state", tmp_path / "state", "--api-key-file", write_keys(tmp_path))
    everything = {"query": "red oak desk", "k": 1000, "beam": 500, "mode": "generative"}
    base = titles_of(ModelSource(shop).load())
    rows_by_snapshot, faults, answers = {}, [], []

    def search(running):
        with running.client(READ) as client:
            while True:
                try:
                    answer = client.post("/v1/search", json=everything)
                except httpx.TransportError:
                    return  # killed
                body = answer.json()
                rows = tuple(sorted((hit["item"], hit["title"]) for hit in body["results"][0]["hits"]))
                answers.append(rows)
                if answer.headers["x-restd-snapshot"] != body["snapshot"]:
                    faults.append(answer.headers["x-restd-snapshot"])
                if rows_by_snapshot.setdefault(body["snapshot"], rows) != rows:
                    faults.append(rows)

    with service(*words) as running:
        searchers = [threading.Thread(target=search, args=(running,)) for _ in range(3)]
        for searcher in searchers:
            searcher.start()
        titles, snapshots = base, {}
        with running.client(WRITE) as client:
            for number in range(1, 13):
                kind, what = change = batch(number, titles)
                method, field = ("PUT", "items") if kind == "put" else ("DELETE", "ids")
                made = client.request(method, "/v1/items", json={field: what})
                assert made.status_code == 200, made.text
                titles = after(change, titles)
                snapshots[made.json()["snapshot"]] = titles
                before = len(answers)
                wait_for(lambda before=before: len(answers) > before, what="a search between two updates")
        running.process.kill()
        for searcher in searchers:
            searcher.join()
    assert faults == []
    assert len(set(rows_by_snapshot)) > 6
    known = {snapshot: tuple(sorted(rows.items())) for snapshot, rows in snapshots.items()}
    assert {snapshot: known.get(snapshot, tuple(sorted(base.items()))) for snapshot in rows_by_snapshot} == (
        rows_by_snapshot
    )
    with service(*words) as again, again.client(READ) as client:
        body = client.post("/v1/search", json=everything).json()
        rows = {hit["item"]: hit["title"] for hit in body["results"][0]["hits"]}
        assert rows == titles == after_all(12, base)
        assert client.get("/v1/info").json()["sequence"] == 12
        assert again.stop() == 0


def test_a_server_reloads_a_model_with_its_own_updates(shop, served, tmp_path):
    other = write_model(tmp_path, shop, seed=1)
    root = tmp_path / "state"
    with opened_updates(ModelSource(other).load(), root / "second") as updates:
        updates.put([{"id": "rug", "title": "red rug"}])
    sources = {"main": ModelSource(shop), "second": ModelSource(other)}
    with application(ModelSource(shop).load(), root, reloads=sources) as client:
        client.put("/v1/items", json={"items": [SOFA]}).raise_for_status()
        first = client.state.model().hash
        reloaded = client.post("/v1/reload", json={"model": "second"})
        assert reloaded.status_code == 200, reloaded.text
        assert reloaded.json()["snapshot"] == updates.served.hash
        assert client.put("/v1/items", json={"items": [{**SOFA, "id": "two"}]}).json()["sequence"] == 2
        assert {"rug", "two"} <= titles_of(client.state.model()).keys()
        assert "sofa" not in titles_of(client.state.model())
        assert client.post("/v1/reload", json={"model": "main"}).json()["snapshot"] == first
        (root / "second" / FILE).write_bytes(b"damage")
        refused = client.post("/v1/reload", json={"model": "second"})
        assert problem(refused) == (422, "invalid", "model")
        assert "damaged" in refused.json()["error"]["message"]
        assert client.state.model().hash == first
