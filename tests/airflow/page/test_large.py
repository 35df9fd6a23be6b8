"""Large things on the page, in a real browser, at night: 200 shards, and a shard with 10,000 commits.

The figures of docs/page.md are printed. Screenshots: `.cache/screenshots`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.airflow.page import shop
from tests.airflow.page.conftest import Browse
from tests.airflow.page.screen import BASE, DRAWN, TABS, shoot
from tests.core.inspection.test_many_commits import COMMITS, fill
from tests.core.inspection.test_many_commits import SHARD as BIG
from tests.sampling import is_long

if TYPE_CHECKING:
    from playwright.sync_api import Page

MANY = 200
pytestmark = pytest.mark.skipif(not is_long(), reason="large (PERSIST_PROFILE=nightly)")


def spent_s(ask: Callable[[], Any]) -> tuple[float, float]:
    """Processor seconds of this process, which is the server too, and seconds on the clock."""
    started_s, began_s = time.process_time(), time.monotonic()
    ask()
    return time.process_time() - started_s, time.monotonic() - began_s


def shown(name: str, spent: tuple[float, float]) -> str:
    return f"{name} {spent[0]:.2f} s of processor time, {spent[1]:.2f} s"


def test_the_list_of_200_shards_is_there_in_a_second(
    page: Page, url: str, browse: Browse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In processor seconds of the server, so that a busy machine changes nothing."""
    with shop.connected(tmp_path, "many", lambda client: shop.fill_many(client, shards=MANY, commits=3)):
        client = browse("ADMIN")
        spent = [spent_s(lambda: client.get("/persist/api/shards")) for _ in range(2)]
        found = client.get("/persist/api/shards").json()
        assert {each["conn_id"]: len(each["shards"]) for each in found["locations"]}["many"] == MANY

        def look() -> None:
            page.goto(f"{url}{BASE}/persist/")
            page.locator("table.list tbody tr").nth(MANY).wait_for()  # these, and the shop's

        drawn = spent_s(look)
        shoot(page, "list-200")
        assert page.evaluate("(e => e.scrollWidth - e.clientWidth)(document.querySelector('.scroll:has(.list)'))") <= 0
        page.set_viewport_size({"width": 390, "height": 844})
        shoot(page, "list-200-phone")
    with capsys.disabled():
        said = "; ".join(map(shown, ("first", "second", "in the browser"), (*spent, drawn)))
        print(f"list of {MANY} shards: {said}")  # noqa: T201 - a figure for the docs
    assert spent[0][0] < 1


def test_a_shard_with_10_000_commits_is_drawn_in_two_seconds(
    page: Page, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every tab, by day, at night and on a phone. At first the server has not read the shard yet."""
    with shop.connected(tmp_path, "large", fill):
        place = f"{url}{BASE}/persist/?conn_id=large&shard={BIG}"

        def look() -> None:
            page.goto(place)
            page.locator(DRAWN).first.wait_for()

        first, again = spent_s(look), spent_s(look)
        assert f"{COMMITS:,}" in page.locator("#facts").inner_text()
        assert f"The newest 100 of {COMMITS:,} commits" in page.locator("#charts").inner_text()
        assert f"commits of {COMMITS:,}; older ones" in page.locator("#days").inner_text()
        by_tab: dict[str, tuple[float, float]] = {}
        for tab in TABS:

            def choose(name: str = tab) -> None:
                page.get_by_role("tab", name=name).click()
                page.locator("[role=tabpanel]:not([hidden])[aria-busy=false]").wait_for()

            by_tab[tab] = spent_s(choose)
            shoot(page, f"large-{tab.lower()}", full_page=True)
        assert page.get_by_role("alert").count() == 0
        page.emulate_media(color_scheme="dark")
        look()
        shoot(page, "large-dark", full_page=True)
        page.set_viewport_size({"width": 390, "height": 844})
        look()
        shoot(page, "large-phone", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    with capsys.disabled():
        said = "; ".join(shown(name, spent) for name, spent in {"first": first, "again": again, **by_tab}.items())
        print(f"shard with {COMMITS} commits: {said}")  # noqa: T201 - a figure for the docs
    assert first[0] < 2  # days included
    assert again[0] < 1
    assert max(spent for spent, _ in by_tab.values()) < 2  # Storage counts every object
