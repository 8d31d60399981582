"""A real Chromium for tests of the explorer: the machine's own, or Debian's where this may install it."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import cache

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
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
