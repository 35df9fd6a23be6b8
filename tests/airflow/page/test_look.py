"""The looks of the page: charts, the calendar, tabs, times, a phone, and what a checker of accessibility says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from persist_core.clock import SystemClock
from persist_core.time_text import day_of, local_of, parse_time, show_time
from tests.airflow.page import shop
from tests.airflow.page.conftest import Browse
from tests.airflow.page.screen import BASE, DRAWN, SHARD, TABS, shoot

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_the_overview_has_charts_and_a_calendar_of_days(page: Page, url: str) -> None:
    """A cell for each day, and the rows of a day that is chosen. No dag run has left seconds by stage here."""
    page.goto(f"{url}{BASE}/{SHARD}customers")
    page.locator(DRAWN).first.wait_for()
    drawn = page.locator("#charts figure")
    titles = drawn.locator("figcaption").all_inner_texts()
    assert titles == [
        "Rows in total",
        "Changes",
        "Errors alive",
        "Bytes written",
        "Freshness: from the upper to the commit",
    ]
    said = drawn.nth(0).get_by_role("img").get_attribute("aria-label") or ""
    assert said.startswith("Rows in total: 12 points from ")
    assert "warn from" in drawn.nth(4).inner_text()  # the limits of the collection's file
    drawn.nth(1).locator(".u-over").hover()  # shows the values
    drawn.nth(1).locator(".u-legend").get_by_text(re.compile(r"^\d+$")).first.wait_for()
    days = page.locator("#days button.day")
    assert days.count() == 13  # 12 days with a commit, and today
    assert {each.split(": ")[1].split(",")[0] for each in _labels(days)} == {"loaded", "open"}
    shoot(page, "shard", full_page=True)
    days.nth(4).click()
    page.get_by_role("button", name="Rows at the end of this day").click()
    page.locator("#rows table").wait_for()
    day = (days.nth(4).get_attribute("aria-label") or "").split(":")[0]
    assert page.locator("#rows").get_by_label("As of", exact=True).input_value() == f"{day}T23:59:59.999Z"


def test_tabs_move_by_arrow_keys_and_are_in_the_address(page: Page, url: str) -> None:
    page.goto(f"{url}{BASE}/{SHARD}customers")
    page.get_by_role("tab", name="Overview").focus()
    for name in TABS[1:]:
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("tab", name=name).get_attribute("aria-selected") == "true"
    assert page.url.endswith("#definition")
    page.locator("#file pre").wait_for()
    assert "format: json" in page.locator("#file pre").inner_text()
    assert "max_errors" in page.locator("#defaults pre").inner_text()
    shoot(page, "definition", full_page=True)
    page.reload()
    page.locator("#file pre").wait_for()


def test_facts_are_read_again_while_somebody_looks(page: Page, url: str) -> None:
    page.clock.install()
    page.goto(f"{url}{BASE}/persist/")
    page.locator("table.list").wait_for()
    page.get_by_label("Filter").fill("cust")
    shown = page.locator("table.list tbody tr").count()
    with page.expect_response("**/persist/api/shards*"):
        page.clock.fast_forward(31_000)
    assert page.get_by_label("Filter").input_value() == "cust"
    assert page.locator("table.list tbody tr").count() == shown > 0


def test_local_time_stands_beside_utc(chromium: Any, url: str, browse: Browse) -> None:
    context = chromium.new_context(timezone_id="Asia/Kolkata")
    context.add_cookies([{"name": "_token", "value": browse("ADMIN").cookies["_token"], "url": url}])
    tab = context.new_page()
    tab.goto(f"{url}{BASE}/{SHARD}customers")
    tab.locator("#facts time .local").first.wait_for()
    assert re.search(r"05:30 GMT\+5:30", tab.locator("#facts").inner_text())  # the upper, at midnight UTC
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_on_any_tab(page: Page, url: str, theme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page.add_init_script(f"localStorage.setItem('theme', '{theme}')")
    axe, said = Axe(), []
    for place, tabs in (("persist/", ("list",)), (f"{SHARD}customers", TABS)):
        page.goto(f"{url}{BASE}/{place}")
        page.locator("main[aria-busy=false]").wait_for()
        for tab in tabs:
            if tab != "list":
                page.get_by_role("tab", name=tab).click()
                page.locator("[role=tabpanel]:not([hidden])[aria-busy=false]").wait_for()
            found = axe.run(page).response["violations"]
            said += [(tab, each["id"], each["help"], each["nodes"][0]["html"][:160]) for each in found]
    assert said == []


def test_a_phone_shows_cards_and_breaks_no_name(page: Page, url: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{url}{BASE}/persist/")
    page.locator("table.list").wait_for()
    link = page.get_by_role("link", name="customers-before-the-sale", exact=True).last
    heights = page.evaluate(
        "e => [e.getClientRects().length, document.documentElement.scrollWidth]", link.element_handle()
    )
    assert heights[0] == 1  # the name stands on one line
    assert heights[1] <= 390  # and nothing moves sideways
    hidden = "[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
    assert max(page.evaluate(hidden)) <= 0  # nor inside of the list of alerts
    shoot(page, "phone-list", full_page=True)
    page.goto(f"{url}{BASE}/{SHARD}customers")
    page.locator(DRAWN).first.wait_for()
    shoot(page, "phone-shard", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_damaged_manifest_hides_nothing_but_its_own_counts(page: Page, url: str, tmp_path: Path) -> None:
    with shop.connected(tmp_path, "troubled", shop.fill_damaged):
        page.goto(f"{url}{BASE}/persist/")
        line = page.locator("table.list tbody tr").filter(has_text="manifest")
        assert line.locator(".badge.fail").inner_text() == "damaged"
        assert "batches/" in line.inner_text(), "it names the manifest"
        shoot(page, "damaged-list")
        page.goto(f"{url}{BASE}/persist/?conn_id=troubled&shard=damaged")
        page.locator(DRAWN).first.wait_for()
        page.get_by_role("alert").filter(has_text="1 of 3 commits cannot be read").wait_for()
        shoot(page, "damaged", full_page=True)
        page.get_by_role("tab", name="History").click()
        rows = page.locator("#commits tbody tr")
        rows.first.wait_for()
        assert ["unreadable" in text for text in rows.all_inner_texts()] == [False, True, False]
        shoot(page, "damaged-history", full_page=True)
        page.get_by_role("tab", name="Rows").click()
        page.locator("#rows").get_by_role("alert").filter(has_text="manifest").wait_for()
        shoot(page, "damaged-rows", full_page=True)


def test_warnings_of_the_newest_run_are_on_the_page(
    page: Page, url: str, tmp_path: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.connected(tmp_path, "warned", shop.fill_warned):
        page.goto(f"{url}{BASE}/persist/")
        line = page.locator("table.list tbody tr").filter(has=page.get_by_role("link", name="warned", exact=True))
        assert line.locator(".badge.warn").inner_text() == "warnings"
        page.goto(f"{url}{BASE}/persist/?conn_id=warned&shard=warned")
        rows = page.locator("#warnings tbody tr")
        rows.first.wait_for()
        first, second, fields = rows.all_inner_texts()
        assert first.split() == ["check", "known_city", "12", '{"id":1}', '{"id":2}']
        assert shop.SCRIPT in second
        assert all(text in fields for text in ("not in `columns`", shop.SCRIPT, "color"))
        shoot(page, "warnings", full_page=True)
        page.get_by_role("tab", name="History").click()
        page.locator("#commits td[data-label=Warnings]").get_by_text("13").wait_for()
        monkeypatch.setenv("AIRFLOW__PERSIST__PAGE_ROWS", "False")
        answer = browse("ADMIN").get("/persist/api/shard", params={"conn_id": "warned", "shard": "warned"}).json()
        names = [shop.SCRIPT, "color"]
        assert [(each["count"], each["samples"]) for each in answer["warned"]] == [(12, []), (1, []), (0, names)]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_days_that_are_late_missing_or_corrected_look_so(page: Page, url: str, tmp_path: Path, zone: str) -> None:
    """In the zone of the collection; its clocks never change."""
    conn_id = zone[:3].lower()  # another connection: the page has one open for some time
    with shop.connected(tmp_path, conn_id, lambda client: shop.fill_dated(client, tmp_path / "feed", zone)):
        page.goto(f"{url}{BASE}/persist/?conn_id={conn_id}&shard=orders")
        days = page.locator("#days button.day")
        days.first.wait_for()
        states = [each.split(": ")[1].split(",")[0] for each in _labels(days)]
        assert states == ["late", "loaded", "missing", "late", "corrected", "open"]
        days.first.click()
        page.locator("#days .day-detail table").wait_for()
        assert page.get_by_text(f"Days of {zone}").count() == (zone != "UTC")
        shoot(page, "days", full_page=True)
        page.set_viewport_size({"width": 390, "height": 844})
        page.get_by_role("tab", name="Storage").click()
        page.locator("#holders table").wait_for()
        shoot(page, "phone-storage", full_page=True)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
@pytest.mark.parametrize("ago", [1, 2])
def test_a_typed_time_means_the_same_on_every_tab(tmp_path: Path, browse: Browse, zone: str, ago: int) -> None:
    """A date, a local time, a word: in the zone of the collection, as on the command line."""
    conn_id = f"typed_{zone[:4].lower()}_{ago}"
    with shop.connected(tmp_path, conn_id, lambda client: shop.fill_dated(client, tmp_path / "feed", zone)):
        admin, shown = browse("ADMIN"), {"conn_id": conn_id, "shard": "orders"}
        today = day_of(SystemClock().now_ms(), zone)
        day = local_of(day_of(today, zone, moved_by=-ago), zone).date()
        for text in (f"{day}", f"{day}T06:30", f"{day} 06:30 UTC", *(["yesterday"] if ago == 1 else [])):
            expected = parse_time(text, zone=zone, now_ms=today)
            for endpoint in ("rows", "errors", "changes"):
                given = {"as_of": text, "after": f"{day}T00:00"}
                page = admin.get(f"/persist/api/{endpoint}", params=shown | given).json()
                assert page["as_of"] == expected, (endpoint, text, page)
            said = admin.get("/persist/api/differences", params={**shown, "a": text, "b": text}).json()["said"]
            assert show_time(expected) in said


def _labels(found: Any) -> list[str]:
    return [each.get_attribute("aria-label") for each in found.all()]
