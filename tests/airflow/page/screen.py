"""Views of a browser: the frame of our page in Airflow's UI, and screenshots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.test_house import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

FACTS_TIMEOUT_MS = 30_000
BASE = "/airflow"
SHARD = "persist/?conn_id=persist_default&shard="
DRAWN = "#charts figure:first-child canvas"
TABS = ("Overview", "Rows", "Changes", "Differences", "Errors", "History", "Storage", "Definition")
SCREENSHOTS = ROOT / ".cache" / "screenshots"


def frame_of(page: Page, *, until: str) -> Frame:
    """The frame in which Airflow's UI shows our page, once it has what `until` selects."""
    page.wait_for_selector("iframe")
    deadline = time.monotonic() + FACTS_TIMEOUT_MS / 1000
    while time.monotonic() < deadline:
        found = [each for each in page.frames if each != page.main_frame and "/persist/" in each.url]
        if found:
            found[0].wait_for_selector(until)
            return found[0]
        page.wait_for_timeout(100)
    raise AssertionError("Airflow's UI shows no frame with the page")


def shoot(page: Page, name: str, **options: Any) -> None:
    """A screenshot for people to look at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", **options)
