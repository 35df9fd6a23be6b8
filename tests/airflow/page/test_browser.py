"""The page in a real browser: in Airflow's own UI, and alone behind a base path. Screenshots: `.cache/screenshots`.

The browser is the machine's Chromium, driven by Playwright. Without one these tests are skipped, and the closing list
of real parts names it as missing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.airflow.page import shop
from tests.airflow.page.conftest import Browse
from tests.airflow.page.screen import BASE, DRAWN, SHARD, TABS, frame_of, shoot

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_navigation_leads_to_the_list_and_a_shard(page: Page, url: str) -> None:
    page.goto(f"{url}/")
    page.get_by_role("link", name="Shards").click()
    frame = frame_of(page, until="table.list")
    names = frame.locator("tbody th a").all_inner_texts()
    assert names == ["customers", "menace", "customers-before-the-sale", "just-made"]  # red, yellow and gray, yellow
    shoot(page, "list")
    frame.locator("table.list").get_by_role("link", name="customers", exact=True).click()
    frame = frame_of(page, until=DRAWN)
    page.wait_for_url("**/plugin/shards/persist/?conn_id=persist_default&shard=customers")
    shoot(page, "shard")
    page.reload()  # the address of the window leads back to the same shard
    frame = frame_of(page, until=DRAWN)
    frame.locator("a[data-airflow]", has_text="persist_upsert__customers").first.click()
    page.wait_for_url("**/dags/persist_upsert__customers**")


def test_the_link_of_a_task_opens_the_page(page: Page, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from persist_airflow.links import shard_page

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", url)
    page.goto(str(shard_page("persist_default", "customers")))
    assert frame_of(page, until="h1").locator("h1").inner_text().startswith("customers")


def test_all_of_the_ui_and_the_page_live_below_a_base_path(page: Page, api_server: str, browse: Browse) -> None:
    """As `[api] base_url` sets it: navigation, frame, links in both directions and assets."""
    page.context.add_cookies([{"name": "_token", "value": browse("ADMIN").cookies["_token"], "url": api_server}])
    missing: list[str] = []
    page.on("response", lambda answer: missing.append(answer.url) if answer.status >= 400 else None)
    page.goto(f"{api_server}/")
    page.get_by_role("link", name="Shards").click()
    frame = frame_of(page, until="table.list")
    assert frame.url.startswith(f"{api_server}/persist/")
    frame.locator("table.list").get_by_role("link", name="customers", exact=True).click()
    frame = frame_of(page, until=DRAWN)
    shoot(page, "base-path")
    frame.get_by_role("link", name="persist://persist_default/customers").click()
    page.wait_for_url(f"{api_server}/assets?name_pattern=**")
    page.get_by_role("link", name="persist://persist_default/customers", exact=True).wait_for()
    shoot(page, "asset")
    page.go_back()
    frame = frame_of(page, until=DRAWN)
    frame.locator("a[data-airflow]", has_text="persist_upsert__customers").first.click()
    page.wait_for_url(f"{api_server}/dags/persist_upsert__customers**")
    assert [url for url in missing if "/persist" in url or "/static" in url] == []


def test_batches_and_checkpoints_are_drawn_and_listed(page: Page, url: str) -> None:
    page.goto(f"{url}{BASE}/{SHARD}customers#storage")
    chart = page.get_by_role("img", name="Bytes of batches and runs: 7 points")
    chart.locator("canvas").wait_for()
    assert "batches" in page.locator("#stored tbody").inner_text()
    page.get_by_role("img", name="Bytes in the state after each commit: 12 points").locator("canvas").wait_for()
    shoot(page, "shard-storage", full_page=True)
    page.get_by_role("tab", name="History").click()
    checkpoints = page.locator("#checkpoints table")
    checkpoints.wait_for(state="attached")
    assert "a newer one is made" in (checkpoints.locator("tbody tr").first.text_content() or "")
    assert page.locator("#commits tbody tr").count() == 12
    shoot(page, "shard-history", full_page=True)


def test_the_plan_is_told_in_words(page: Page, url: str) -> None:
    page.goto(f"{url}{BASE}/{SHARD}customers#definition")
    page.locator("#plan tbody").wait_for()
    rows = page.locator("#plan tbody tr").all_inner_texts()
    plan = dict(row.split("\t", 1) for row in rows)
    assert list(plan) == ["shard", "source", "key", "columns", "order", "time", "schedule", "limits"]
    assert (plan["key"], plan["order"]) == ("id", "file and row; the last batch wins")
    assert plan["limits"] == "a run reads at most 100000 files and accepts at most 1000 or 5 % errors"


def test_a_shard_without_a_commit_says_so(page: Page, url: str) -> None:
    """Each part of its page: nothing is blank, nothing fails."""
    page.goto(f"{url}{BASE}/{SHARD}just-made")
    page.locator("main[aria-busy=false]").wait_for()
    text = ""
    for tab in TABS:
        page.get_by_role("tab", name=tab).click()
        page.locator("[role=tabpanel]:not([hidden])[aria-busy=false]").wait_for()
        text += page.locator("main").inner_text()
    for said in (
        "never",
        "Nothing has been committed yet.",
        "No days",
        "No conflicts.",
        "No checkpoints.",
        "No batches.",
    ):
        assert said in text, said
    assert page.get_by_role("alert").count() == 0
    shoot(page, "shard-empty", full_page=True)


def test_open_alerts_are_on_the_list_and_on_the_shard(page: Page, url: str) -> None:
    page.goto(f"{url}{BASE}/persist/")
    page.get_by_text("4 open alerts, 1 acknowledged").wait_for()
    alerts = page.get_by_role("region", name="Open alerts of persist_default, the most urgent first")
    first, *rest = alerts.locator("tbody tr").all_inner_texts()
    assert first.split()[:2] == ["fail", "late"]
    assert any("not-there-yet (not committed yet)" in row for row in rest)
    shown = page.locator("table.list tbody tr").filter(has=page.get_by_role("link", name="customers", exact=True))
    assert shown.locator("td .badge").all_inner_texts()[:2] == ["alert: late", "alert: errors alive"]
    assert shown.locator("td .badge.fail").all_inner_texts() == ["alert: late"]
    assert shown.locator("td .badge.warn").all_inner_texts() == ["alert: errors alive", "conflicts"]
    assert page.locator("table.list tbody tr").first.get_attribute("class") == "attention fail"
    fork = page.locator("table.list tbody tr").filter(has_text="customers-before-the-sale")
    assert fork.locator("td .badge.warn").all_inner_texts() == ["errors"]  # alive, and no alert watches them
    silent = page.locator("table.list tbody tr").filter(has=page.get_by_role("link", name="menace", exact=True))
    assert silent.locator("td .badge.note").first.inner_text() == "acknowledged: errors alive"
    shoot(page, "list-alerts", full_page=True)
    alerts.get_by_role("link", name="customers").first.click()
    row = page.locator("#alerts tbody tr").first
    row.wait_for()
    said = row.inner_text()
    for expected in ("late", "persist describe customers", "persist ack customers freshness --reason TEXT"):
        assert expected in said
    row.get_by_role("button", name="Acknowledge").click()
    dialog, conf = conf_of(page, "Acknowledge")
    assert conf == {"action": "ack", "shard": "customers", "alert": "freshness", "reason": "TEXT"}
    assert dialog.get_by_role("link").all_inner_texts() == ["persist_actions"]
    dialog.get_by_role("button", name="Close").click()
    assert page.locator("#alerts tbody tr").nth(1).locator(".badge").inner_text() == "warn"
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    shoot(page, "shard-alerts-dark", full_page=True)


def test_a_damaged_record_of_alerts_hides_no_shard(page: Page, url: str) -> None:
    def without_alerts(route: Any) -> None:
        body = route.fetch().json()
        for each in body.get("locations", [body]):
            each["alerts"] = None
        route.fulfill(json=body)

    page.route("**/persist/api/shard*", without_alerts)
    for place, what in (("persist/", "table.list"), (f"{SHARD}customers", DRAWN)):
        page.goto(f"{url}{BASE}/{place}")
        page.get_by_role("alert").get_by_text("The record of alerts is damaged").wait_for()
        page.locator(what).wait_for()


def test_rows_follow_the_slider(page: Page, url: str) -> None:
    page.goto(f"{url}{BASE}/{SHARD}customers#rows")
    rows, slider = page.locator("#rows"), page.locator("#rows input[type=range]")
    rows.locator("table").wait_for()
    newest = rows.get_by_role("status").inner_text()
    slider.focus()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    rows.get_by_role("status").filter(has_not_text=newest.split(" as of ")[1]).wait_for()
    assert "T23:59:59.999Z" in (slider.get_attribute("aria-valuetext") or "")
    shoot(page, "rows", full_page=True)
    page.get_by_role("tab", name="Changes").click()
    changes = page.locator("#changes")
    changes.get_by_text("changes after").first.wait_for()
    shoot(page, "changes", full_page=True)
    changes.get_by_label("of errors").check()
    changes.get_by_text("changes of errors after").first.wait_for()
    changes.get_by_label("As of", exact=True).fill("some time")
    page.keyboard.press("Enter")
    changes.get_by_role("alert").filter(has_text="invalid_time").wait_for()


def test_changes_of_a_table_are_marks_and_differences(page: Page, url: str, tmp_path: Path) -> None:
    with shop.connected(tmp_path, "changing", shop.fill_changed):
        page.goto(f"{url}{BASE}/persist/?conn_id=changing&shard=changed#history")
        rows = page.locator("#commits tbody tr")
        rows.first.wait_for()
        marks = [row.locator(".mark").all_inner_texts() for row in rows.all()]
        added = "schema: note (string) is added: null in earlier rows"
        assert [[mark.strip() for mark in each] for each in marks] == [
            ["another generation"], ["correction"], [added], [], [], [],
        ]  # fmt: skip
        shoot(page, "changed-history", full_page=True)
        page.get_by_role("tab", name="Differences").click()
        differences = page.locator("#differences")
        differences.get_by_text("0 of 0 differences from changed as of").wait_for()  # a swap's commit is empty
        differences.get_by_label("From").fill("changed~g5")
        page.keyboard.press("Enter")
        said = "1 to 8 of 8 differences from changed~g5 as of"
        differences.get_by_text(said).wait_for()
        assert "0 rows added, 0 removed, 4 changed (city 4)" in differences.get_by_role("status").inner_text()
        assert differences.locator("tbody tr").first.inner_text().split("\t")[0] == "before"
        shoot(page, "changed-differences", full_page=True)
        differences.get_by_label("From").fill("no-such-shard")
        page.keyboard.press("Enter")
        differences.get_by_role("alert").filter(
            has_text="expected a checkpoint of changed, a time, or a shard"
        ).wait_for()


def test_errors_that_no_record_removes_say_what_does(page: Page, url: str) -> None:
    page.goto(f"{url}{BASE}/{SHARD}customers#errors")
    errors = page.locator("#errors")
    errors.get_by_text("persist resolve customers --all").wait_for()
    shoot(page, "errors")
    errors.get_by_role("button", name="Resolve").click()
    dialog, conf = conf_of(page, "Resolve")
    assert conf == {"action": "resolve", "shard": "customers", "at": "*", "dry_run": True}
    shoot(page, "action")
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("tab", name="Rows").click()
    page.locator("#rows").get_by_role("status").filter(has_text=" rows as of").wait_for()
    assert "persist resolve" not in page.locator("#rows").inner_text()


def test_a_button_leads_to_the_dags_that_may_do_it(page: Page, url: str) -> None:
    page.goto(f"{url}{BASE}/{SHARD}just-made")
    for name, dags in (("Check (fsck)", ["persist_actions", "team_actions"]), ("Maintain", ["persist_actions"])):
        page.get_by_role("button", name=name).click()
        dialog, _ = conf_of(page, name)
        assert dialog.get_by_role("link").all_inner_texts() == dags
        dialog.get_by_role("button", name="Close").click()


def conf_of(page: Page, title: str) -> tuple[Any, Any]:
    """The open dialog of an action, and the conf that it offers."""
    dialog = page.get_by_role("dialog", name=title)
    return dialog, json.loads(dialog.get_by_label("Configuration JSON").input_value())


def test_dark_mode_follows_airflow(page: Page, url: str) -> None:
    page.goto(f"{url}/plugin/shards")
    assert frame_of(page, until="table.list").evaluate("document.documentElement.dataset.theme") == "light"
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.reload()
    frame = frame_of(page, until="table.list")
    frame.wait_for_selector("html[data-theme=dark]", state="attached")
    shoot(page, "list-dark")
    page.evaluate("document.documentElement.classList.replace('dark', 'light')")
    frame.wait_for_selector("html[data-theme=light]", state="attached")


def test_an_empty_location_says_what_to_do(page: Page, url: str) -> None:
    empty = {
        "now_ms": 0,
        "locations": [{"conn_id": "persist_default", "location": "mem:", "error": None, "shards": [], "alerts": []}],
    }
    page.route("**/persist/api/shards*", lambda route: route.fulfill(json=empty))
    page.goto(f"{url}{BASE}/persist/")
    page.get_by_text("No shards yet").wait_for()
    shoot(page, "empty")


def test_hostile_content_stays_text(page: Page, url: str) -> None:
    page.goto(f"{url}{BASE}/{SHARD}menace")
    page.locator("#alerts tbody tr").get_by_text(f"by {shop.SCRIPT} at ").wait_for()
    for tab in TABS:
        page.get_by_role("tab", name=tab).click()
        page.locator("[role=tabpanel]:not([hidden])[aria-busy=false]").wait_for()
        if tab in ("Rows", "Changes", "Errors"):
            panel = page.locator(f"#{tab.lower()}")
            panel.get_by_text(re.compile(rf"of \d+ {tab.lower()} a")).wait_for()
            assert panel.get_by_text(shop.SCRIPT).count() > 0
        for opened in page.locator("details").all():
            opened.evaluate("each => { each.open = true; }")
        assert page.evaluate("window.hacked") is None
        assert page.locator("main script, main img, main [autofocus], main a[href^='javascript']").count() == 0
        shoot(page, f"hostile-{tab.lower()}", full_page=True)
    page.goto(f"{url}{BASE}/persist/")
    page.locator("table.list").wait_for()
    assert page.locator("main script, main img, main a[href^='javascript']").count() == 0
    assert page.evaluate("window.hacked") is None


def test_the_list_is_sorted_and_filtered_by_keyboard(page: Page, url: str) -> None:
    page.goto(f"{url}{BASE}/persist/")
    page.locator("table.list").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.get_by_role("button", name="Rows").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.get_by_role("columnheader", name="Rows").get_attribute("aria-sort") == "descending"
    assert page.locator("tbody th a").first.inner_text() == "customers"
    page.get_by_label("Filter").fill("menace")
    assert page.locator("table.list tbody tr").count() == 1
    assert "1 of 4 shards" in page.get_by_role("status").inner_text()
    page.reload()  # the view is in the address
    page.locator("table.list").wait_for()
    assert page.locator("table.list tbody tr").count() == 1


def test_the_list_has_a_column_of_groups_if_there_are_any(page: Page, url: str) -> None:
    def in_a_group(route: Any) -> None:
        answer = route.fetch()
        body = answer.json()
        dags = {shard["shard"]: shard["airflow"]["dags"] for place in body["locations"] for shard in place["shards"]}
        dags["customers"][0] |= {"group": "crm", "last_run_id": "r", "last_run_state": "success", "seconds": 3.0}
        route.fulfill(response=answer, json=body)

    page.goto(f"{url}{BASE}/persist/")
    page.locator("table.list").wait_for()
    assert page.get_by_role("columnheader", name="Group").count() == 0
    page.route("**/api/shards*", in_a_group)
    page.goto(f"{url}{BASE}/persist/?sort=12&descending=1")
    page.get_by_role("columnheader", name="Group").wait_for()
    first = page.locator("table.list tbody tr").first
    assert first.locator("th a").first.inner_text() == "customers"
    assert first.locator("td").last.inner_text().split("\n") == ["crm", "success, 3 s"]


@pytest.mark.parametrize("place", ["persist/", f"{SHARD}customers"])
def test_every_field_has_a_name_and_every_image_a_text(page: Page, url: str, place: str) -> None:
    page.goto(f"{url}{BASE}/{place}")
    page.locator("main[aria-busy=false]").wait_for()
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select, button, [role=img]')].filter("
        "e => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)"
    )
    assert unnamed == []
    assert page.evaluate("document.querySelectorAll('h1').length") == 1


def test_a_stranger_is_sent_to_the_login(chromium: Any, url: str) -> None:
    context = chromium.new_context()
    tab = context.new_page()
    tab.goto(f"{url}{BASE}/{SHARD}customers")
    tab.wait_for_url("**/auth/login**")
    assert tab.locator("text=Oslo").count() == 0
    context.close()
