"""The explorer in a real browser: its other views, keys, problems, accessibility, recommenders."""

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright", reason="playwright is in the extra dev")

from tests.browser import HOSTILE, QUERY, search, state_of, titles, wait_for_titles
from tests.serving import READ, service
from tests.training import make_index, run, write_walks

# --- the other views


def test_the_tree_is_walked_down_to_an_item(visit, reader):
    page = visit("?view=catalogue")
    page.wait_for_selector(".branch")
    prefix = []
    while True:
        node = reader.get("/v1/tree", params={"prefix": "-".join(map(str, prefix))}).json()
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
    page.wait_for_function("() => !new URLSearchParams(location.search).has('show')")
    assert not page.locator("dialog").is_visible()


def test_two_models_are_side_by_side_with_rank_changes(visit, reader):
    page = visit(f"?q={QUERY}&view=compare&left=beside:generative&right=main:hybrid")
    page.wait_for_selector(".slope-list.right .hit-title")
    left, right = search(reader, model="beside"), search(reader, mode="hybrid")
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


def test_the_map_has_the_items_and_the_query(visit, reader):
    page = visit(f"?q={QUERY}&view=map")
    page.wait_for_function("() => document.querySelector('canvas')?.ariaLabel.includes('61 items')")
    page.wait_for_selector(".map-list li")
    assert "horizon head" in page.locator(".map-side").inner_text()
    coloured = (
        "() => { const c = document.querySelector('canvas'); const d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; const s = new Set(); for (let i = 0; i < d.length; i += 4)"
        " if (d[i + 3] > 200) s.add(d[i] + ',' + d[i + 1] + ',' + d[i + 2]); return s.size }"
    )
    assert page.evaluate(coloured) > 8
    codes = reader.get("/v1/tree").json()["children"]
    assert page.locator(".code-list .chip").all_inner_texts() == [str(child["code"]) for child in codes]
    button = page.locator(".code-list .value").first
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    page.locator("canvas").focus()
    page.keyboard.press("+")
    page.locator(".map-list a").first.click()
    page.wait_for_selector("dialog[open] h2")


def test_the_report_has_the_quality_of_the_index(visit, reader):
    page = visit("?view=report")
    page.wait_for_selector(".panel table")
    quality = reader.get("/v1/quality").json()["quality"]
    text = page.locator(".report-view").inner_text()
    for level in quality["levels"]:
        assert f"{level['used']} of {level['codes']}" in text
    assert "61" in text


def test_a_title_with_markup_is_text_everywhere(visit, reader):
    item = next(hit["item"] for hit in search(reader, "quoted single oak desk") if hit["title"] == HOSTILE)
    for address in ("?q=quoted single oak desk", "?q=quoted&view=compare", f"?show={item.replace('/', '%2F')}"):
        page = visit(address)
        page.get_by_text("<script>window.wasRun=1</script>").first.wait_for()
        assert page.locator("main img, main script").count() == 0
    page = visit("?view=catalogue")
    page.get_by_role("combobox", name="Find an item in the tree").fill("<script>")
    page.get_by_role("option").first.wait_for()
    assert HOSTILE in page.get_by_role("option").first.inner_text()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] h2")
    assert page.locator("dialog h2").inner_text() == HOSTILE
    page.get_by_role("link", name="Show in the catalogue").click()
    page.wait_for_selector(".crumbs .chip")
    visit.expected_statuses.add(422)
    page = visit("?q=<img src=x onerror=window.wasRun=1>&where=title~<b>&item=<i>&prefix=<u>")
    page.wait_for_selector(".hit-title, .problem, .empty")


# --- keys, problems


def test_a_service_with_keys_asks_for_one_and_keeps_it_out_of_the_address(visit):
    visit.expected_statuses.add(401)
    page = visit(f"?q={QUERY}", key=None)
    page.get_by_text("Ask whoever runs it").first.wait_for()
    page.get_by_role("button", name="Enter a key").click()
    page.get_by_role("textbox", name="Key").fill("not-the-key-of-anyone")
    page.get_by_role("button", name="Continue").click()
    page.get_by_text("not known to this service").first.wait_for()
    page.get_by_role("button", name="Enter a key").click()
    page.get_by_role("textbox", name="Key").fill(READ)
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
    box = page.get_by_role("combobox", name="History")
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
