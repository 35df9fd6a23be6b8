"""Newer facts on the page of a shard, and what a user has chosen on it; numbers that browsers cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.state import ShardState
from tests.airflow.page import shop
from tests.airflow.page.screen import BASE, DRAWN, TABS, shoot
from tests.plain_commit import commit

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

DAY_MS = 86_400_000
PLAIN = CollectionSchema(
    key=(Column("region", "string", nullable=False), Column("id", "bigint", nullable=False)),
    values=(Column("amount", "bigint"),),
)
BIG = 2**53 + 1  # the first integer that a double does not hold
SHOWN = {  # what each tab shows once there are `n` commits
    "Overview": "#charts [aria-label^='Rows in total: {n} points']",
    "Rows": "#rows [role=status]:text('1 to {n} of {n} rows')",
    "Changes": "#changes tbody :text('{id}')",
    "Differences": "#differences tbody :text('{id}')",
    "Errors": "#errors [role=status]:text('1 to {n} of {n} errors')",
    "History": "#commits tr:nth-child({n}):last-child",
    "Storage": "#state [aria-label^='Bytes in the state after each commit: {n} points']",
    "Definition": "#schema tr:nth-child({columns}):last-child",
}

Grow = Callable[[], None]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[str, Grow]]:
    """The address of a shard with two commits, and what makes another one: with a row, an err and a new column."""
    conn_id = f"growing_{abs(hash(tmp_path))}"  # the page has a location open for some time
    with shop.connected(tmp_path, conn_id, lambda client: [add_commit(client) for _ in range(2)]) as location:
        yield f"{BASE}/persist/?conn_id={conn_id}&shard=growing", lambda: in_another_process(location)


def add_commit(client: PersistClient) -> ShardState:
    """One more daily commit; the state before it."""
    client.ensure_shard("growing")
    state = client.state("growing")
    n = len(state.commits)
    names = [f"added_{number}" for number in range(n)]
    schema = replace(PLAIN, values=(*PLAIN.values, *(Column(name, "string") for name in names)))
    time = (client.clock.now_ms() // DAY_MS - 9 + n) * DAY_MS
    rows = [((f"r{n}", BIG + n, -BIG - n, *names), time, 1)]
    known = state.schemas.placed(schema) if n else schema
    commit(client, "growing", known, time + DAY_MS, rows, [("value", None, b"x", time, 1)], writer=f"dag/{n}")
    return state


def in_another_process(location: PersistLocation) -> None:
    """As a worker of Airflow does: the page's own client is another one."""
    with open_location(location) as opened:
        add_commit(PersistClient(opened))


def turn(page: Page) -> None:
    """Half a minute later the page has read the facts again."""
    page.evaluate("document.querySelector('.seen').dataset.before = ''")
    page.clock.fast_forward(31_000)
    page.locator(".seen:not([data-before])").wait_for()


def wait_for(page: Page, tab: str, commits: int) -> None:
    selector = SHOWN[tab].format(n=commits, id=BIG + commits - 1, columns=2 + commits)
    page.locator(selector).first.wait_for(state="attached")


@pytest.mark.parametrize("opened", TABS)
def test_each_tab_shows_newer_facts(page: Page, url: str, place: tuple[str, Grow], opened: str) -> None:
    """The open one by itself, the others when they are opened."""
    address, grow = place
    page.clock.install()
    page.goto(f"{url}{address}")
    for commits in (2, 3):
        if commits > 2:
            page.get_by_role("tab", name=opened).click()
            turn(page)  # nothing is new
            grow()
            turn(page)
            wait_for(page, opened, commits)
            for counted in ("Rows", "Errors"):
                page.get_by_role("tab", name=f"{counted} {commits}", exact=True).wait_for()
        for tab in TABS:
            page.get_by_role("tab", name=tab).click()
            wait_for(page, tab, commits)


def test_what_a_user_has_chosen_stays(page: Page, url: str, place: tuple[str, Grow]) -> None:
    """The zoom of charts stays until they have more to show, the day and the key of the rows longer."""
    address, grow = place
    page.clock.install()
    page.goto(f"{url}{address}")
    page.locator(DRAWN).wait_for()
    day = page.locator("#days button.day").first
    day.click()
    page.evaluate("document.querySelector('#charts canvas').dataset.mine = 'yes'")
    turn(page)
    page.locator("#facts").get_by_text("version").wait_for()
    assert page.locator("#charts canvas[data-mine]").count() == 1
    assert day.get_attribute("aria-pressed") == "true"
    page.get_by_role("tab", name="Rows").click()
    rows = page.locator("#rows")
    rows.get_by_label("key column region").fill("r1")
    page.keyboard.press("Enter")
    rows.get_by_text("1 to 1 of 1 rows").wait_for()
    page.get_by_role("tab", name="Overview").click()
    grow()
    turn(page)
    wait_for(page, "Overview", 3)
    assert page.locator("#charts canvas[data-mine]").count() == 0
    assert day.get_attribute("aria-pressed") == "true"
    assert page.locator("#days .day-detail h3").count() == 1
    shoot(page, "refresh-overview", full_page=True)
    page.get_by_role("tab", name="Rows").click()
    assert rows.get_by_label("key column region").input_value() == "r1"
    assert rows.get_by_text("1 to 1 of 1 rows").count() == 1
    slider = rows.get_by_label("Commit")
    assert (slider.get_attribute("max"), slider.input_value()) == ("2", "1")
    slider.focus()
    page.keyboard.press("End")
    page.clock.run_for(300)
    rows.get_by_role("status").filter(has_text=slider.get_attribute("aria-valuetext") or "").wait_for()


@pytest.mark.parametrize("opened", ["History", "Storage", "Definition"])
def test_details_that_a_user_opened_wait(page: Page, url: str, place: tuple[str, Grow], opened: str) -> None:
    """The panel is made again once they are closed."""
    address, grow = place
    page.clock.install()
    page.goto(f"{url}{address}#{opened.lower()}")
    wait_for(page, opened, 2)
    panel = page.locator(f"#panel-{opened.lower()}")
    panel.evaluate("(panel) => panel.insertAdjacentHTML('beforeend', '<details open>of a user</details>')")
    grow()
    for _ in range(2):
        turn(page)
        wait_for(page, opened, 2)
        assert panel.locator("details[open]").count() == 1
    panel.evaluate("(panel) => { panel.lastElementChild.open = false; }")
    turn(page)
    wait_for(page, opened, 3)


def test_a_panel_that_failed_is_made_again(page: Page, url: str, place: tuple[str, Grow]) -> None:
    page.route("**/api/storage*", lambda route: route.fulfill(json={}))
    page.clock.install()
    page.goto(f"{url}{place[0]}#storage")
    page.locator("#panel-storage > [role=alert]").wait_for()
    page.unroute("**/api/storage*")
    turn(page)
    wait_for(page, "Storage", 2)


@pytest.mark.parametrize("from_tab", ["Overview", "History"])
@pytest.mark.parametrize("opened", [(), ("Rows",)], ids=["rows unopened", "rows opened"])
def test_rows_of_a_time_after_a_new_commit(
    page: Page, url: str, place: tuple[str, Grow], from_tab: str, opened: tuple[str, ...]
) -> None:
    address, grow = place
    page.clock.install()
    page.goto(f"{url}{address}")
    for tab in (*opened, from_tab):
        page.get_by_role("tab", name=tab).click()
        wait_for(page, tab, 2)
    grow()
    turn(page)
    wait_for(page, from_tab, 3)
    if from_tab == "History":
        page.locator("#commits tr:last-child").get_by_role("button").click()
    else:
        page.locator("#days button.day.loaded").first.click()
        page.get_by_role("button", name="Rows at the end of this day").click()
    page.locator("#rows").get_by_text("1 to 1 of 1 rows").wait_for()
    assert page.locator("#rows").get_by_label("Commit").input_value() == "0"


@pytest.mark.parametrize("opened", ["Rows", "History"])
def test_a_broken_chart_leaves_all_else_alone(page: Page, url: str, place: tuple[str, Grow], opened: str) -> None:
    def without_facts_of_airflow(route: Any) -> None:
        body = route.fetch().json()
        del body["airflow"]
        route.fulfill(json=body)

    address, grow = place
    page.clock.install()
    page.goto(f"{url}{address}")
    for tab in ("Overview", opened):
        page.get_by_role("tab", name=tab).click()
        wait_for(page, tab, 2)
    page.route("**/api/commits*", without_facts_of_airflow)
    grow()
    turn(page)
    wait_for(page, opened, 3)
    page.locator("#facts").get_by_text("version").wait_for(state="attached")
    assert page.locator("#panel-overview > div > div > [role=alert]").count() == 1
    assert page.locator("#days button.day.loaded").count() == 3
    page.unroute("**/api/commits*")
    turn(page)
    wait_for(page, "Overview", 3)


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 1}], ids=["first", "later", "both"])
def test_commits_that_fail_move_no_slider(page: Page, url: str, place: tuple[str, Grow], failing: set[int]) -> None:
    """The commits are read when the page opens, half a minute later, and then with one more."""
    address, grow = place
    reads: list[bool] = []

    def some_fail(route: Route) -> None:
        reads.append(len(reads) in failing)
        if reads[-1]:
            route.fulfill(status=503, json={"error": {"kind": "unavailable", "message": "try again"}})
        else:
            route.continue_()

    page.route("**/api/commits*", some_fail)
    page.clock.install()
    page.goto(f"{url}{address}")
    page.locator("#days button.day.loaded").first.click()
    page.get_by_role("button", name="Rows at the end of this day").click()
    rows = page.locator("#rows")
    rows.get_by_text("1 to 1 of 1 rows").wait_for()
    slider = rows.locator("input[type=range]")
    turn(page)
    assert slider.input_value() == "0"
    assert slider.is_visible() == (failing != {0, 1})
    grow()
    turn(page)
    assert reads == [0 in failing, 1 in failing, False]
    assert (slider.get_attribute("max"), slider.input_value()) == ("2", "0")


def test_an_older_answer_replaces_no_newer_one(page: Page, url: str, place: tuple[str, Grow]) -> None:
    address, grow = place
    held: list[Route] = []
    page.route("**/api/storage*", lambda route: route.continue_() if held else held.append(route))
    page.clock.install()
    page.goto(f"{url}{address}")
    page.locator(DRAWN).wait_for()
    page.get_by_role("tab", name="Storage").click()
    page.locator("#panel-storage[aria-busy=true]").wait_for(state="attached")
    grow()
    turn(page)
    wait_for(page, "Storage", 3)
    with page.expect_response("**/api/storage*"):
        held[0].continue_()
    page.evaluate("new Promise((done) => { requestAnimationFrame(() => done()); })")
    wait_for(page, "Storage", 3)
    assert page.locator("#panel-storage").get_attribute("aria-busy") == "false"


def test_days_of_commits_that_were_not_read_are_unknown(page: Page, url: str, place: tuple[str, Grow]) -> None:
    def with_a_late_file(route: Any) -> None:
        body = route.fetch().json()
        body["days"][0]["state"] = "unknown"
        route.fulfill(json=body)

    page.route("**/api/days*", with_a_late_file)
    page.goto(f"{url}{place[0]}")
    page.locator("#days .legend-line").get_by_text("unknown 1").wait_for()
    page.locator("#days button.day").first.click()
    page.locator("#days .day-detail").get_by_text("older commits than those read here cover the day").wait_for()
    shoot(page, "days-unknown", full_page=True)


def test_seconds_that_nothing_measured_are_unknown(page: Page, url: str, place: tuple[str, Grow]) -> None:
    """The newest commit is of the command line, or its checkpoint is not made yet."""

    def measured(route: Any) -> None:
        body = route.fetch().json()
        body["airflow"]["stage_seconds"] = {"dag/0": {"mint_batch_descriptions": 1.5, "append_batches": 12}}
        route.fulfill(json=body)

    page.route("**/api/commits*", measured)
    page.goto(f"{url}{place[0]}")
    chart = page.get_by_role("img", name="Seconds by stage, waiting not counted: 2 points")
    chart.locator("canvas").wait_for()
    said = chart.get_attribute("aria-label") or ""
    assert "at most 14 s; last mint unknown, write unknown, append unknown, checkpoint unknown" in said
    shoot(page, "seconds-unknown", full_page=True)


def test_large_integers_are_shown_and_found(page: Page, url: str, place: tuple[str, Grow]) -> None:
    page.goto(f"{url}{place[0]}#rows")
    rows = page.locator("#rows")
    cells = rows.locator("tbody tr").nth(1).locator("th, td")
    cells.first.wait_for()
    assert cells.all_inner_texts()[:3] == ["r1", str(BIG + 1), str(-BIG - 1)]
    rows.get_by_label("key column id").fill(cells.nth(1).inner_text())
    page.keyboard.press("Enter")
    rows.get_by_role("alert").get_by_text("Fill the key column region too").wait_for()
    shoot(page, "rows-key", full_page=True)
    rows.get_by_label("key column region").fill("r1")
    page.keyboard.press("Enter")
    rows.get_by_text("1 to 1 of 1 rows").wait_for()
    assert cells.count() == 0
    assert rows.locator("tbody tr").first.locator("th, td").all_inner_texts()[:2] == ["r1", str(BIG + 1)]
