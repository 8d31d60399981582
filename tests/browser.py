"""A real Chromium for tests of the explorer: the machine's own, or Debian's where this may install it."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.serving import READ

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
QUERY = "oak desk"
HOSTILE = """<script>window.wasRun=1</script> "quoted" & 'single' <img src=x onerror=window.wasRun=1> oak desk"""
WAIT = 10_000
"""Milliseconds until what should be on the page is missed."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_INSTALL = (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "chromium"])


@cache
def chromium() -> str | None:
    """Path of a Chromium; installed first where there is none and this is root on a machine with apt."""
    if _known() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in _INSTALL:
            subprocess.run(command, capture_output=True, timeout=600, check=False)
    return _known()


def _known() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def need_chromium() -> str:
    """Path of a Chromium; without one the test is skipped, and says so on the terminal."""
    path = chromium()
    if path is None:
        reason = "THE EXPLORER IS NOT TESTED: no Chromium here, and it cannot be installed. apt-get install chromium"
        print(reason, file=sys.__stderr__)
        pytest.skip(reason)
    return path


@contextmanager
def launched():
    """A running browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is in the extra dev")
    path = need_chromium()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """Opens pages, and keeps what a page should not do."""

    def __init__(self, browser, url):
        self.browser, self.url = browser, url
        self.faults, self.contexts = [], []
        self.expected_statuses = set()
        self.ran = False

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

    def close(self):
        """Close all pages; `ran` says whether a title was run in one."""
        self.ran = any(page.evaluate("window.wasRun") for context in self.contexts for page in context.pages)
        for context in self.contexts:
            context.close()

    def _heard(self, message):
        status = re.search(r"status of (\d+)", message.text)
        if message.type in ("error", "warning") and not (status and int(status[1]) in self.expected_statuses):
            self.faults.append(f"{message.type}: {message.text}")

    def _sent(self, request, url):
        if not request.url.startswith(f"{url}/"):
            self.faults.append(f"another host: {request.url}")


def titles(page, selector=".hit-title"):
    return page.locator(selector).evaluate_all("links => links.map(link => link.firstChild.data)")


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
