"""The explorer in a real browser: every view, the keyboard, problems as sentences, and nothing that is run by mistake."""

import json
import re
from itertools import pairwise
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright", reason="playwright is in the extra dev")

from tests.browser import launched
from tests.serving import READ, WRITE, service, write_keys
from tests.training import make_index, run, write_walks

QUERY = "oak desk"
HOSTILE = """<script>window.wasRun=1</script> "quoted" & 'single' <img src=x onerror=window.wasRun=1> oak desk"""
WAIT = 10_000
"""Milliseconds until what should be on the page is missed."""


@pytest.fixture(scope="module")
def server(served_run, tmp_path_factory):
    """Two models, keys, and an item whose title would be a script."""
    folder = tmp_path_factory.mktemp("explorer")
    plain = run(served_run.parent / "index", served_run.parent / "data", folder / "plain", updates=5).folder.parent
    words = ["--model", served_run, "--beside", plain, "--api-key-file", write_keys(folder), "--state", folder / "state"]
    with service(*words) as running:
        with running.client(WRITE) as client:
            item = {"id": 'a"<b>/1', "title": HOSTILE, "category": ["Home", "desk"]}
            response = client.put("/v1/items", json={"items": [item]})
            assert response.status_code == 200, response.text
        yield running


@pytest.fixture(scope="module")
def client(server):
    with server.client(READ) as client:
        yield client


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


class Visit:
    """Opens pages, and keeps what a page should not do."""

    def __init__(self, browser, url):
        self.browser, self.url = browser, url
        self.faults, self.contexts = [], []
        self.expected_statuses = set()

    def __call__(self, address="", *, key=READ, width=1280, scheme="light", url=None):
        url = url or self.url
        context = self.browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.contexts.append(context)
        context.set_default_timeout(WAIT)
        if key is not None:
            context.add_init_script(f"sessionStorage.setItem('restd-key', {json.dumps(key)})")
        page = context.new_page()
        page.on("console", lambda message: self._heard(message))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("request", lambda request: self._sent(request, url))
        page.goto(f"{url}/{address}")
        return page

    def _heard(self, message):
        status = re.search(r"status of (\d+)", message.text)
        if message.type in ("error", "warning") and not (status and int(status[1]) in self.expected_statuses):
            self.faults.append(f"{message.type}: {message.text}")

    def _sent(self, request, url):
        if not request.url.startswith(f"{url}/"):
            self.faults.append(f"another host: {request.url}")


@pytest.fixture
def visit(browser, server):
    """Open the page; in the end there was no error on the console and no request to another host."""
    visit = Visit(browser, server.url)
    yield visit
    ran = [page.evaluate("window.wasRun") for context in visit.contexts for page in context.pages]
    for context in visit.contexts:
        context.close()
    assert not any(ran), "a title was run"
    assert visit.faults == []


def titles(page, selector=".hit-title"):
    return [text.split(", rank ")[0] for text in page.locator(selector).all_inner_texts()]


def state_of(page):
    return parse_qs(urlsplit(page.url).query)


def search(client, query=QUERY, **options):
    response = client.post("/v1/search", json={"query": query, "k": 10, **options})
    assert response.status_code == 200, response.text
    return response.json()["results"][0]["hits"]


def wait_for_titles(page, expected):
    page.wait_for_function(
        "expected => JSON.stringify([...document.querySelectorAll('.hit-title')].map(a => a.firstChild.data))"
        " === JSON.stringify(expected)",
        arg=expected,
    )


# --- search


def test_results_come_as_you_type_and_are_those_of_the_service(visit, client):
    page = visit()
    page.locator("#query").press_sequentially(QUERY, delay=20)
    wait_for_titles(page, [hit["title"] for hit in search(client)])
    assert state_of(page) == {"q": [QUERY]}
    assert page.locator(".hit .chip").count() == sum(len(hit["sid"]) for hit in search(client))
    assert "10 results" in page.locator("#status").inner_text()
    page.reload()
    wait_for_titles(page, [hit["title"] for hit in search(client)])
    assert page.locator("#query").input_value() == QUERY


def test_a_late_answer_does_not_replace_a_newer_one(visit, client):
    page = visit()
    page.wait_for_selector("#query")
    late = []

    def hold_first(route):
        if json.loads(route.request.post_data)["query"] == "glass lamp":
            late.append(route)
        else:
            route.continue_()

    page.route("**/v1/search", hold_first)
    page.locator("#query").fill("glass lamp")
    page.wait_for_selector("[aria-busy=true]")
    page.locator("#query").fill(QUERY)
    expected = [hit["title"] for hit in search(client)]
    wait_for_titles(page, expected)
    assert len(late) == 1
    late[0].fulfill(json={"results": [{"hits": [], "partial": False}], "mode": "hybrid"})
    page.wait_for_timeout(200)
    wait_for_titles(page, expected)


def test_the_keyboard_is_enough(visit, client):
    page = visit(f"?q={QUERY}")
    hits = search(client)
    wait_for_titles(page, [hit["title"] for hit in hits])
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".verdict")
    assert state_of(page)["item"] == [hits[1]["item"]]
    page.keyboard.press("Escape")
    page.wait_for_selector(".hits")
    assert "view" not in state_of(page)
    page.go_back()
    page.wait_for_selector(".verdict")


def test_settings_are_sent_and_are_in_the_address(visit, client):
    page = visit(f"?q={QUERY}")
    page.wait_for_selector(".hit-title")
    page.locator("#set-k").fill("3")
    page.locator("#set-k").press("Enter")
    page.locator("#set-mode").select_option("generative")
    page.locator("#set-beam").fill("7")
    page.locator("#set-beam").press("Enter")
    page.locator("#set-norm").select_option("trie_children")
    hits = search(client, k=3, beam=7, mode="generative", score_norm="trie_children")
    wait_for_titles(page, [hit["title"] for hit in hits])
    assert state_of(page) == {
        "q": [QUERY],
        "k": ["3"],
        "mode": ["generative"],
        "beam": ["7"],
        "norm": ["trie_children"],
    }
    page.locator("#set-model").select_option("beside")
    hits = search(client, k=3, beam=7, model="beside", score_norm="trie_children")
    wait_for_titles(page, [hit["title"] for hit in hits])


def test_a_filter_is_chosen_by_its_count(visit, client):
    page = visit(f"?q={QUERY}&k=30")
    page.wait_for_selector(".hit-title")
    button = page.get_by_role("button", name=re.compile(r"^kettle\s*12$"))
    button.click()
    expected = search(client, k=30, where=["category=Home > kettle"])
    wait_for_titles(page, [hit["title"] for hit in expected])
    assert len(expected) == 12
    assert state_of(page)["where"] == ["category=Home > kettle"]
    assert page.get_by_role("button", name=re.compile(r"^kettle\s*12$")).get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Remove the filter category=Home > kettle").click()
    wait_for_titles(page, [hit["title"] for hit in search(client, k=30)])


def test_the_parts_of_a_score_fill_its_bar(visit, client):
    page = visit(f"?q={QUERY}")
    page.wait_for_selector(".hit .parts-bar")
    hits = search(client, contributions=True)
    best = max(hit["score"] for hit in hits)
    for place in (0, 4):
        bar = page.locator(".hit").nth(place).locator(".parts-bar")
        widths = bar.locator("span").evaluate_all("spans => spans.map(one => parseFloat(one.style.cssText.slice(8)))")
        shares = [part["share"] for part in hits[place]["parts"].values() if part["share"] > 0]
        assert sum(widths) == pytest.approx(100 * hits[place]["score"] / best, abs=0.1)
        assert len(widths) == len(shares)


# --- why


def test_why_draws_the_beam_with_the_path_of_the_item(visit, client):
    hit = search(client)[1]
    page = visit(f"?q={QUERY}&view=why&item={hit['item']}")
    page.wait_for_selector(".beam-column .node")
    answer = client.post("/v1/explain", json={"query": QUERY, "item": hit["item"], "k": 10}).json()
    assert page.locator(".beam-column").count() == len(answer["tree"]["levels"]) == 3
    path = page.locator(".node.path")
    assert [int(code) for code in path.locator(".chip").all_inner_texts()] == hit["sid"]
    assert page.locator(".edge.path text").count() == 3
    for level, column in zip(answer["tree"]["levels"], page.locator(".beam-column").all(), strict=True):
        known = {"-".join(map(str, node["prefix"])) for node in level["nodes"]}
        drawn = {re.search(r"Prefix ([\d-]+)", label)[1] for label in column.locator(".node").evaluate_all(
            "nodes => nodes.map(node => node.getAttribute('aria-label'))"
        )}
        assert drawn <= known
    rows = page.locator(".parts-table tbody tr").count()
    assert rows == len(answer["parts"])
    total = page.locator(".parts-table tfoot strong").inner_text()
    assert float(total) == pytest.approx(hit["score"], abs=1e-3)
    assert page.locator("details.levels tbody tr").count() == 3


def test_no_two_edges_of_the_beam_cross_and_all_have_their_parents(visit, client):
    page = visit(f"?q={QUERY}&view=why&item={search(client)[0]['item']}&mode=generative&beam=10")
    page.wait_for_selector(".beam-column .node")
    columns = page.locator(".beam-column").evaluate_all(
        "columns => columns.map(one => [...one.querySelectorAll('.node')].map(n => [n.dataset.id, n.dataset.parent]))"
    )
    for above, below in pairwise(columns):
        ids = [own for own, _ in above]
        places = [ids.index(parent) for _, parent in below]
        assert places == sorted(places)
    more = page.get_by_role("button", name="Show more prefixes")
    before = page.locator(".node").count()
    more.click()
    assert page.locator(".node").count() > before
    page.locator(".node").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.parent") == columns[0][0][0]
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.dataset.id") == columns[0][0][0]


def lost_item(client):
    """An item that a beam of one loses, and a wider one that is allowed finds."""
    options = {"mode": "generative", "beam": 1, "k": 1}
    for title in ("red steel kettle", "black glass lamp", "blue steel chair", "green glass mug"):
        body = {"query": QUERY, "item": title.replace(" ", "-"), **options}
        explanation = client.post("/v1/explain", json=body).json()["explanation"]
        if explanation["lost_at"] and explanation["beam_needed"]:
            return title, explanation
    raise AssertionError("a beam of one lost nothing")


def test_why_not_names_the_level_and_the_beam_that_would_do(visit, client):
    title, explanation = lost_item(client)
    page = visit(f"?q={QUERY}&view=why&mode=generative&beam=1&k=1")
    page.get_by_label("Why not another item?").fill(title)
    page.get_by_role("option", name=title).click()
    page.wait_for_selector(".verdict.lost")
    assert f"lost at level {explanation['lost_at']}" in page.locator(".verdict").inner_text()
    assert "Why not" in page.locator(".eyebrow").text_content()
    needed = explanation["beam_needed"]
    page.get_by_role("link", name=f"Search with a beam of {needed}").click()
    page.wait_for_function("needed => document.querySelectorAll('.node.path:not(.pruned)').length === 3", arg=needed)
    assert state_of(page)["beam"] == [str(needed)]


# --- the other views


def test_the_tree_is_walked_down_to_an_item(visit, client):
    page = visit("?view=catalogue")
    page.wait_for_selector(".branch")
    prefix = []
    while True:
        node = client.get("/v1/tree", params={"prefix": "-".join(map(str, prefix))}).json()
        counts = [int(text.split()[0]) for text in page.locator(".branch .count").all_inner_texts()]
        assert counts == [child["items"] for child in node["children"]]
        assert page.locator(".crumbs .chip").all_inner_texts() == [str(code) for code in prefix]
        first = node["children"][0]
        if first["items"] == 1:
            break
        assert all(word in page.locator(".branch").first.inner_text() for word in first["words"][:2])
        page.locator(".branch-link").first.focus()
        page.keyboard.press("Enter")
        prefix = first["prefix"]
        page.wait_for_function("level => document.querySelectorAll('.crumbs .chip').length === level", arg=len(prefix))
        page.wait_for_function("() => !document.querySelector('.branches[aria-busy]')")
    assert prefix, "the first branch has items to tell apart"
    page.locator(".branch-link").first.click()
    page.wait_for_selector("dialog[open] h2")
    assert state_of(page)["show"] == [first["examples"][0]["item"]]
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="hidden")
    assert "show" not in state_of(page)


def test_two_models_are_side_by_side_with_rank_changes(visit, client):
    page = visit(f"?q={QUERY}&view=compare&left=beside:generative&right=main:hybrid")
    page.wait_for_selector(".slope-list.right .hit-title")
    left, right = search(client, model="beside"), search(client, mode="hybrid")
    assert titles(page, ".slope-list.left .hit-title") == [hit["title"] for hit in left]
    assert titles(page, ".slope-list.right .hit-title") == [hit["title"] for hit in right]
    shared = {hit["item"] for hit in left} & {hit["item"] for hit in right}
    assert f"{len(shared)} of 10 items are in both lists" in page.locator(".compare-summary").inner_text()
    assert page.locator(".slope-lines path:not(.gone)").count() == len(shared)
    ranks = {hit["item"]: rank for rank, hit in enumerate(left)}
    for place, hit in enumerate(right):
        text = page.locator(".slope-list.right li").nth(place).inner_text()
        before = ranks.get(hit["item"])
        change = "new" if before is None else "▲" if before > place else "▼" if before < place else ""
        assert change in text
    page.locator("#compare-left").select_option("main:generative")
    page.wait_for_function("() => new URLSearchParams(location.search).get('left') === 'main:generative'")


def test_the_map_has_the_items_and_the_query(visit, client):
    page = visit(f"?q={QUERY}&view=map")
    page.wait_for_function("() => document.querySelector('canvas').ariaLabel.includes('61 items')")
    page.wait_for_selector(".map-list li")
    assert "horizon head" in page.locator(".map-side").inner_text()
    coloured = (
        "() => { const c = document.querySelector('canvas'); const d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; const s = new Set(); for (let i = 0; i < d.length; i += 4)"
        " if (d[i + 3] > 200) s.add(d[i] + ',' + d[i + 1] + ',' + d[i + 2]); return s.size }"
    )
    assert page.evaluate(coloured) > 8
    codes = client.get("/v1/tree").json()["children"]
    assert page.locator(".code-list .chip").all_inner_texts() == [str(child["code"]) for child in codes]
    button = page.locator(".code-list .value").first
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    page.locator("canvas").focus()
    page.keyboard.press("+")
    page.locator(".map-list a").first.click()
    page.wait_for_selector("dialog[open] h2")


def test_the_report_has_the_quality_of_the_index(visit, client):
    page = visit("?view=report")
    page.wait_for_selector(".panel table")
    quality = client.get("/v1/quality").json()["quality"]
    text = page.locator(".report-view").inner_text()
    for level in quality["levels"]:
        assert f"{level['used']} of {level['codes']}" in text
    assert "61" in text


def test_a_title_with_markup_is_text_everywhere(visit, client):
    item = next(hit["item"] for hit in search(client, "quoted single oak desk") if hit["title"] == HOSTILE)
    for address in ("?q=quoted single oak desk", "?q=quoted&view=compare", f"?show={item.replace('/', '%2F')}"):
        page = visit(address)
        page.get_by_text("<script>window.wasRun=1</script>").first.wait_for()
        assert page.locator("main img, main script").count() == 0
    page = visit("?view=catalogue")
    page.get_by_label("Find an item in the tree").fill("<script>")
    page.get_by_role("option").first.wait_for()
    assert HOSTILE in page.get_by_role("option").first.inner_text()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] h2")
    assert page.locator("dialog h2").inner_text() == HOSTILE
    page.get_by_role("link", name="Show in the catalogue").click()
    page.wait_for_selector(".crumbs .chip")
    page = visit("?q=<img src=x onerror=window.wasRun=1>&where=title~<b>&item=<i>&prefix=<u>")
    page.wait_for_selector(".hit-title, .problem, .empty")
    visit.expected_statuses.add(422)


# --- keys, problems


def test_a_service_with_keys_asks_for_one_and_keeps_it_out_of_the_address(visit):
    visit.expected_statuses.add(401)
    page = visit(f"?q={QUERY}", key=None)
    page.get_by_role("button", name="Enter a key").click()
    page.get_by_label("Key").fill("not-the-key-of-anyone")
    page.get_by_role("button", name="Continue").click()
    page.get_by_text("not known to this service").first.wait_for()
    page.get_by_role("button", name="Enter a key").click()
    page.get_by_label("Key").fill(READ)
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector(".hit-title")
    assert READ not in page.url
    assert page.evaluate("sessionStorage.getItem('restd-key')") == READ
    assert page.evaluate("Object.values(localStorage)") == []


@pytest.mark.parametrize(
    ("status", "title"),
    [(429, "The service is busy"), (503, "The model is not ready"), (504, "The answer took too long")],
)
def test_a_problem_is_a_sentence_with_a_way_on(visit, status, title):
    visit.expected_statuses.add(status)
    page = visit()
    page.wait_for_selector("#query")
    body = {"error": {"code": "any", "message": "It said why.", "field": None}}
    page.route("**/v1/search", lambda route: route.fulfill(status=status, json=body, headers={"Retry-After": "3"}))
    page.locator("#query").fill(QUERY)
    page.wait_for_selector(".problem")
    text = page.locator(".results .problem p").inner_text()
    assert text == f"{title}. It said why. Try again in 3 s."
    page.unroute("**/v1/search")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".hit-title")


def test_a_service_that_does_not_answer_is_a_sentence(visit):
    page = visit()
    page.wait_for_selector("#query")
    page.route("**/v1/search", lambda route: route.abort())
    page.locator("#query").fill(QUERY)
    page.get_by_text("The service cannot be reached").first.wait_for()
    visit.faults = [fault for fault in visit.faults if "ERR_FAILED" not in fault]


# --- accessibility, narrow screens


VIEWS = {
    "search": (f"?q={QUERY}", ".hit-title"),
    "why": (f"?q={QUERY}&view=why&item=red-oak-desk", ".node"),
    "compare": (f"?q={QUERY}&view=compare", ".slope-list"),
    "catalogue": ("?view=catalogue", ".branch"),
    "map": (f"?q={QUERY}&view=map", ".map-list li"),
    "report": ("?view=report", ".panel table"),
    "item": ("?show=red-oak-desk", "dialog .prefixes"),
    "nothing": ("", ".empty"),
}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_no_view_has_serious_accessibility_faults_or_is_wider_than_the_screen(visit, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="in the extra dev").Axe()
    page = visit(width=width, scheme=scheme)
    for name, (address, ready) in VIEWS.items():
        page.goto(f"{visit.url}/{address}")
        page.wait_for_selector(ready)
        page.wait_for_function("() => !document.querySelector('[aria-busy]')")
        violations = axe.run(page).response["violations"]
        serious = [
            (name, one["id"], one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"][:300])
            for one in violations
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


def test_colours_are_those_of_the_system_until_somebody_chooses(visit):
    page = visit(scheme="dark")
    page.wait_for_selector("#query")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(19, 20, 23)"
    page.get_by_role("button", name="Use light colours").click()
    assert page.evaluate(background) == "rgb(247, 246, 243)"
    page.reload()
    page.get_by_role("button", name="Use dark colours").wait_for()
    assert page.evaluate(background) == "rgb(247, 246, 243)"


# --- recommenders


@pytest.fixture(scope="module")
def recommender(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recommender")
    data = write_walks(folder / "data")
    index = make_index(data, folder / "index")
    trained = run(index, data, folder / "run", backbone="tiger", objective="restd", updates=20).folder.parent
    with service("--model", trained) as running:
        yield running


def test_a_history_is_picked_and_continued_and_explained(visit, recommender):
    page = visit(url=recommender.url, key=None)
    box = page.get_by_role("combobox")
    for title in ("red steel kettle", "green oak lamp"):
        box.fill(title)
        page.get_by_role("option", name=title).wait_for()
        box.press("ArrowDown")
        box.press("Enter")
    page.wait_for_selector(".hit-title")
    history = ["red-steel-kettle", "green-oak-lamp"]
    assert state_of(page)["history"] == history
    with recommender.client() as client:
        hits = client.post("/v1/recommend", json={"history": history, "k": 10}).json()["results"][0]["hits"]
        wait_for_titles(page, [hit["title"] for hit in hits])
        page.locator(".hit-title").nth(2).click()
        page.wait_for_selector(".node.path")
        assert state_of(page)["item"] == [hits[2]["item"]]
        page.get_by_role("button", name="Remove: red steel kettle").click()
        page.wait_for_selector(".hits")
        rest = client.post("/v1/recommend", json={"history": history[1:], "k": 10}).json()["results"][0]["hits"]
        wait_for_titles(page, [hit["title"] for hit in rest])
