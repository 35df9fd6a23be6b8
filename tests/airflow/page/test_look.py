"""The looks of the page: charts, the calendar, tabs, times, a phone, and what a checker of accessibility says."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from persist_core.clock import SystemClock
from persist_core.shard.state import ShardState
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


@pytest.mark.parametrize(
    ("zone", "day"), [("UTC", "2026-01-05"), ("Asia/Kolkata", "2026-01-05"), ("Asia/Tokyo", "2026-01-06")]
)
def test_a_failed_run_is_of_the_day_in_which_its_interval_ends(zone: str, day: str) -> None:
    """The newest run of a day decides; the end of a daily run, midnight, is of the day before."""
    from persist_airflow.page.metadata import failed_days

    midnight_in_kolkata = datetime(2026, 1, 5, 18, 30, tzinfo=UTC)
    ended = [("dag", "again", "failed", midnight_in_kolkata), ("dag", "first", "success", midnight_in_kolkata)]
    session = SimpleNamespace(execute=lambda _: ended)
    found = failed_days(session, "orders", ["dag"], after_ms=0, zone=zone)
    assert found == {parse_time(day, zone=zone): ("dag", "again")}
    ended.reverse()
    assert failed_days(session, "orders", ["dag"], after_ms=0, zone=zone) == {}


@pytest.mark.parametrize("newer", ["success", "running", "failed"])
def test_a_run_of_one_dag_hides_no_failure_of_another(newer: str) -> None:
    from persist_airflow.page.metadata import failed_days

    end = datetime(2026, 1, 5, 12, tzinfo=UTC)
    ended = [("other", "newest", newer, end), ("dag", "again", "failed", end), ("dag", "first", "success", end)]
    session = SimpleNamespace(execute=lambda _: ended)
    expected = ("other", "newest") if newer == "failed" else ("dag", "again")
    found = failed_days(session, "orders", ["dag", "other"], after_ms=0, zone="UTC")
    assert found == {parse_time("2026-01-05"): expected}


def test_a_groups_failed_run_failed_for_what_it_did_not_commit() -> None:
    from persist_airflow.page.metadata import DagFacts, GroupResult, failed_days, group_results

    dag_id, end = "persist_group__crm", datetime(2026, 1, 5, 18, 30, tzinfo=UTC)
    minted = {name: {"seconds": 1.0, "is_done": name == "idle"} for name in ("orders", "bills", "idle")}
    appended = {"orders": {"seconds": 0.5, "is_done": True}, "bills": {"seconds": 0.5, "is_done": False}}
    tries = [(dag_id, "run", json.dumps(minted)), (dag_id, "run", appended), (dag_id, "run", 2.5)]
    found = group_results(SimpleNamespace(execute=lambda _: tries), [(dag_id, "run")])[dag_id, "run"]
    expected = {"orders": (True, 1.5), "bills": (False, 1.5), "idle": (True, 1.0)}
    assert found == {name: GroupResult(*each) for name, each in expected.items()}
    facts = DagFacts(dag_id, False, None, None, "run", "failed", "crm", found)
    states = {name: facts.of(name)["last_run_state"] for name in (*expected, "not come to")}
    assert states == {"orders": "success", "bills": "failed", "idle": "success", "not come to": "failed"}
    for name, days in {"orders": 0, "bills": 1}.items():
        answers = iter([[(dag_id, "run", "failed", end)], tries])
        session = SimpleNamespace(execute=lambda _, answers=answers: next(answers))
        assert len(failed_days(session, name, [dag_id], after_ms=0, zone="UTC")) == days


def test_a_connection_with_a_slash_is_found_by_its_assets() -> None:
    from persist_airflow.page.metadata import writers

    session = SimpleNamespace(execute=lambda _: [("persist://team%2Flake%231/fruit", False, "dag")])
    assert writers(session) == {"team/lake#1": {"fruit": ("dag",)}}


@pytest.mark.parametrize("kept", ["file:///xcom/seconds", '"s3://xcom/seconds"', {"at": "s3://xcom/seconds"}, None])
def test_seconds_that_an_xcom_backend_keeps_are_unknown(kept: object) -> None:
    """The database then has only what the backend made of them."""
    from persist_airflow.page.metadata import group_results, stage_seconds

    rows = [("dag", "run", kept), ("dag", "run", {"orders": {"seconds": 0.5, "is_done": True}})]
    found = group_results(SimpleNamespace(execute=lambda _: rows), [("dag", "run")])
    assert {shard: each.seconds for shard, each in found["dag", "run"].items()} == {"orders": 0.5}
    rows = [("run", "mint", kept), ("run", "append", 2.5), ("elsewhere", "mint", kept)]
    seconds = stage_seconds(SimpleNamespace(execute=lambda _: rows), "orders", ["dag/run", "dag/elsewhere"])
    assert seconds == {"dag/run": {"append": 2.5}}


def test_a_slow_store_holds_no_connection_of_airflows_database(monkeypatch: pytest.MonkeyPatch) -> None:
    from persist_airflow.page import metadata, site

    held: list[object] = []

    @contextmanager
    def create_session() -> Iterator[object]:
        held.append(object())
        yield held[-1]
        held.pop()

    class Reads:
        def state(self, shard: str) -> ShardState:
            assert not held
            return ShardState(shard)

        def loads(self, *_: Any, **__: Any) -> list[Any]:
            assert not held
            return []

    access: Any = SimpleNamespace(readable_dags=lambda: frozenset({"dag"}), reads_values=lambda _: True)
    monkeypatch.setattr(site, "create_session", create_session)
    monkeypatch.setattr(metadata, "writers", lambda _: {"location": {"fruit": ("dag",)}})
    for name in ("dags", "failed_days"):
        monkeypatch.setattr(metadata, name, lambda session, *_, **__: {} if session else None)
    monkeypatch.setattr(site.Site, "_place", lambda *_: SimpleNamespace(inspector=Reads()))
    found = site.Site().days(access, "location", "fruit", limit=3, check=lambda: None)
    assert found["airflow"] == {"failed_runs": {}}


def test_a_connection_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from persist_airflow.page import site

    begun, released = threading.Event(), threading.Event()

    class Hook:
        def __init__(self, conn_id: str) -> None:
            self.conn_id = conn_id

        def get_conn(self) -> Any:
            if self.conn_id == "slow":
                begun.set()
                assert released.wait(60)
            return MagicMock()

    monkeypatch.setattr(site, "PersistHook", Hook)
    of_all = site.Site()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(of_all._place, "slow")
        try:
            assert begun.wait(60)
            assert pool.submit(of_all._place, "fast").result(20) is of_all._place("fast")
            assert not slow.done()
        finally:
            released.set()
        assert slow.result(20) is of_all._place("slow")


@pytest.mark.parametrize("level", ["off", "no", "n", "'off'"])
def test_a_level_of_a_document_that_is_off_hides_no_other(level: str) -> None:
    from persist_airflow.page.metadata import limits

    found = limits(f"Mine:\n```yaml\nfreshness: {{warn: {level}, fail: 6h}}\n```")
    assert found == ({"freshness": {"warn": None, "fail": 21_600_000}} if "off" in level else {})


@pytest.mark.parametrize("freshness", ["soon", "{warn_after: 10 foo}", "'{{ x }}'", "[1]", "{warn: 1 x}"])
def test_another_freshness_in_a_document_has_no_limits(freshness: str) -> None:
    from persist_airflow.page.metadata import limits

    assert limits(f"Example:\n```yaml\nfreshness: {freshness}\n```") == {}


def _labels(found: Any) -> list[str]:
    return [each.get_attribute("aria-label") for each in found.all()]
