"""The explorer in a real browser: search, filters, the keyboard, why and why not."""

import json
import re
from itertools import pairwise

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright", reason="playwright is in the extra dev")

from tests.browser import QUERY, search, state_of, wait_for_titles

# --- search


def test_results_come_as_you_type_and_are_those_of_the_service(visit, reader):
    page = visit()
    page.locator("#query").press_sequentially(QUERY, delay=20)
    wait_for_titles(page, [hit["title"] for hit in search(reader)])
    assert state_of(page) == {"q": [QUERY]}
    assert page.locator(".hit .chip").count() == sum(len(hit["sid"]) for hit in search(reader))
    assert "10 results" in page.locator("#status").inner_text()
    page.reload()
    wait_for_titles(page, [hit["title"] for hit in search(reader)])
    assert page.locator("#query").input_value() == QUERY


def test_a_late_answer_does_not_replace_a_newer_one(visit, reader):
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
    expected = [hit["title"] for hit in search(reader)]
    wait_for_titles(page, expected)
    assert len(late) == 1
    late[0].fulfill(json={"results": [{"hits": [], "partial": False}], "mode": "hybrid"})
    page.wait_for_timeout(200)
    wait_for_titles(page, expected)


def test_the_keyboard_is_enough(visit, reader):
    page = visit(f"?q={QUERY}")
    hits = search(reader)
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


def test_settings_are_sent_and_are_in_the_address(visit, reader):
    page = visit(f"?q={QUERY}")
    page.wait_for_selector(".hit-title")
    page.locator("#set-k").fill("3")
    page.locator("#set-k").press("Enter")
    page.locator("#set-mode").select_option("generative")
    page.locator("#set-beam").fill("7")
    page.locator("#set-beam").press("Enter")
    page.locator("#set-norm").select_option("trie_children")
    hits = search(reader, k=3, beam=7, mode="generative", score_norm="trie_children")
    wait_for_titles(page, [hit["title"] for hit in hits])
    assert state_of(page) == {
        "q": [QUERY],
        "k": ["3"],
        "mode": ["generative"],
        "beam": ["7"],
        "norm": ["trie_children"],
    }
    page.locator("#set-model").select_option("beside")
    hits = search(reader, k=3, beam=7, model="beside", score_norm="trie_children")
    wait_for_titles(page, [hit["title"] for hit in hits])


def test_a_filter_is_chosen_by_its_count(visit, reader):
    page = visit(f"?q={QUERY}&k=30")
    page.wait_for_selector(".hit-title")
    button = page.get_by_role("button", name=re.compile(r"^kettle\s*12$"))
    button.click()
    expected = search(reader, k=30, where=["category=Home > kettle"])
    wait_for_titles(page, [hit["title"] for hit in expected])
    assert len(expected) == 12
    assert state_of(page)["where"] == ["category=Home > kettle"]
    assert page.get_by_role("button", name=re.compile(r"^kettle\s*12$")).get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Remove the filter category=Home > kettle").click()
    wait_for_titles(page, [hit["title"] for hit in search(reader, k=30)])


def test_the_parts_of_a_score_fill_its_bar(visit, reader):
    page = visit(f"?q={QUERY}")
    page.wait_for_selector(".hit .parts-bar")
    hits = search(reader, contributions=True)
    best = max(hit["score"] for hit in hits)
    for place in (0, 4):
        bar = page.locator(".hit").nth(place).locator(".parts-bar")
        widths = bar.locator("span").evaluate_all("spans => spans.map(one => parseFloat(one.style.cssText.slice(8)))")
        shares = [part["share"] for part in hits[place]["parts"].values() if part["share"] > 0]
        assert sum(widths) == pytest.approx(100 * hits[place]["score"] / best, abs=0.1)
        assert len(widths) == len(shares)


# --- why


def test_why_draws_the_beam_with_the_path_of_the_item(visit, reader):
    hit = search(reader)[1]
    page = visit(f"?q={QUERY}&view=why&item={hit['item']}")
    page.wait_for_selector(".beam-column .node")
    answer = reader.post("/v1/explain", json={"query": QUERY, "item": hit["item"], "k": 10}).json()
    assert page.locator(".beam-column").count() == len(answer["tree"]["levels"]) == 3
    path = page.locator(".node.path")
    assert [int(code) for code in path.locator(".chip").all_inner_texts()] == hit["sid"]
    assert page.locator(".edge.path text").count() == 3
    for level, column in zip(answer["tree"]["levels"], page.locator(".beam-column").all(), strict=True):
        known = {"-".join(map(str, node["prefix"])) for node in level["nodes"]}
        drawn = {
            re.search(r"Prefix ([\d-]+)", label)[1]
            for label in column.locator(".node").evaluate_all(
                "nodes => nodes.map(node => node.getAttribute('aria-label'))"
            )
        }
        assert drawn <= known
    rows = page.locator(".parts-table tbody tr").count()
    assert rows == len(answer["parts"])
    total = page.locator(".parts-table tfoot strong").inner_text()
    assert float(total) == pytest.approx(hit["score"], abs=1e-3)
    assert page.locator("details.levels tbody tr").count() == 3


def test_no_two_edges_of_the_beam_cross_and_all_have_their_parents(visit, reader):
    page = visit(f"?q={QUERY}&view=why&item={search(reader)[0]['item']}&mode=generative&beam=10")
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


def lost_item(reader):
    """An item that a beam of one loses, and a wider one that is allowed finds."""
    options = {"mode": "generative", "beam": 1, "k": 1}
    for title in ("red steel kettle", "black glass lamp", "blue steel chair", "green glass mug"):
        body = {"query": QUERY, "item": title.replace(" ", "-"), **options}
        explanation = reader.post("/v1/explain", json=body).json()["explanation"]
        if explanation["lost_at"] and explanation["beam_needed"]:
            return title, explanation
    raise AssertionError("a beam of one lost nothing")


def test_why_not_names_the_level_and_the_beam_that_would_do(visit, reader):
    title, explanation = lost_item(reader)
    page = visit(f"?q={QUERY}&view=why&mode=generative&beam=1&k=1")
    page.get_by_role("combobox", name="Why not another item?").fill(title)
    page.get_by_role("option", name=title).click()
    page.wait_for_selector(".verdict.lost")
    assert f"lost at level {explanation['lost_at']}" in page.locator(".verdict").inner_text()
    assert "Why not" in page.locator(".eyebrow").text_content()
    needed = explanation["beam_needed"]
    page.get_by_role("link", name=f"Search with a beam of {needed}").click()
    page.wait_for_function("needed => document.querySelectorAll('.node.path:not(.pruned)').length === 3", arg=needed)
    assert state_of(page)["beam"] == [str(needed)]
