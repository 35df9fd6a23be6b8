"""`S3Consensus` told by a bookmark where the newest version was: a request less, and never a wrong answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from persist_core.clock import ManualClock
from persist_core.errors import InvalidInput
from persist_core.location import CaSResult, S3Consensus
from persist_core.location.s3.consensus import RECALL_MS
from tests.core.location.s3_wire import Meanwhile, Wire
from tests.core.location.test_s3_consensus import HOUR_MS, Location, version
from tests.servers.s3 import S3Server

COMMITTED, MISMATCH = CaSResult.COMMITTED, CaSResult.EXPECTATION_MISMATCH
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def location(versitygw: S3Server) -> Iterator[Location]:
    made = Location(versitygw)
    yield made
    made.close()


def process(location: Location, seed: int = 2) -> tuple[S3Consensus, Wire]:
    """A consensus as a new process has it; its clock has nothing to do with the server's."""
    made = location.open(ManualClock(seed * DAY_MS), seed)
    return made, Wire(made)


def bookmark_at_head(location: Location) -> str:
    """As mint takes it: in a process of its own, after a look."""
    looks = location.open(ManualClock(), seed=9)
    looks.head("k")
    found = looks.bookmark("k")
    assert found is not None
    return found


def aged(bookmark: str, hours: float) -> str:
    """The same, taken so much earlier by the server's clock."""
    position, store_ms, entry_id = bookmark.split()
    return f"{position} {int(store_ms) - int(hours * HOUR_MS)} {entry_id}"


def test_an_append_by_a_bookmark_costs_no_listing(location: Location) -> None:
    location.append(0, 1)
    fresh, wire = process(location)
    assert fresh.turn_to("k", bookmark_at_head(location)) == version(1)
    assert fresh.compare_and_set("k", 1, version(2)) is COMMITTED
    assert wire.take_counts() == {"GetObject": 1, "PutObject": 1}
    assert location.others.head("k") == version(2)


def test_who_has_just_written_has_a_bookmark_too(location: Location) -> None:
    writer, _ = process(location)
    assert writer.bookmark("k") is None
    assert writer.compare_and_set("k", None, version(0)) is COMMITTED
    bookmark = writer.bookmark("k")
    assert bookmark is not None
    fresh, wire = process(location, seed=3)
    assert fresh.turn_to("k", bookmark) == version(0)
    assert fresh.compare_and_set("k", 0, version(1)) is COMMITTED
    assert "ListObjectsV2" not in wire.counts
    assert writer.turn_to("k", bookmark) is None, "it has looked itself: its head costs one listing, and no more"


def test_a_bookmark_that_was_overtaken_loses_the_race_and_nothing_else(location: Location) -> None:
    location.append(0)
    bookmark = bookmark_at_head(location)
    location.append(1, 2)
    fresh, _ = process(location)
    assert fresh.turn_to("k", bookmark) == version(0)
    assert fresh.compare_and_set("k", 0, version(9)) is MISMATCH
    assert fresh.head("k") == version(2)


def test_a_truncation_since_then_costs_requests_and_not_the_append(location: Location) -> None:
    location.append(0, 1)
    bookmark = bookmark_at_head(location)
    location.others.truncate("k", 1)
    fresh, _ = process(location)
    assert fresh.turn_to("k", bookmark) == version(1)
    assert fresh.compare_and_set("k", 1, version(2)) is COMMITTED
    assert location.others.scan("k", 0) == [version(1), version(2)]


def test_an_old_bookmark_saves_nothing_and_costs_nothing(location: Location) -> None:
    location.append(0, 1)
    old = aged(bookmark_at_head(location), RECALL_MS / HOUR_MS + 1)
    fresh, wire = process(location)
    assert fresh.turn_to("k", old) is None
    assert fresh.head("k") == version(1)
    assert fresh.compare_and_set("k", 1, version(2)) is COMMITTED
    assert wire.take_counts() == {"GetObject": 1, "ListObjectsV2": 1, "PutObject": 1}, "as without it"


@pytest.mark.parametrize("taken_hours_ago", [25, 2, 72])
def test_a_name_that_was_freed_since_then_is_not_won(location: Location, taken_hours_ago: float) -> None:
    """The bookmark's entry is still there, the one after it has been swept: a sweep that broke off half way."""
    location.append(0)
    bookmark = aged(bookmark_at_head(location), taken_hours_ago)
    location.append(1, 2, 3)
    location.others.truncate("k", 3)
    location.path_of(1).unlink()
    fresh, _ = process(location)
    assert fresh.turn_to("k", bookmark) is None
    assert fresh.compare_and_set("k", 0, version(9)) is MISMATCH
    assert 1 in location.positions(), "the late write must have arrived, or this tests nothing"
    assert fresh.head("k") == location.others.head("k") == version(3)
    assert location.others.scan("k", 0) == [version(3)]


def test_time_between_the_bookmark_and_the_write_counts_too(location: Location) -> None:
    """Each for itself is short enough to be trusted, both are not."""
    location.append(0)
    bookmark = aged(bookmark_at_head(location), 0.4)
    location.append(1, 2)
    location.others.truncate("k", 2)
    location.path_of(1).unlink()
    clock = ManualClock()
    slow = location.open(clock, seed=2)
    assert slow.turn_to("k", bookmark) == version(0)
    Wire(slow).script("PutObject", Meanwhile(lambda: clock.sleep_ms(int(0.7 * HOUR_MS))))
    assert slow.compare_and_set("k", 0, version(9)) is MISMATCH
    assert 1 in location.positions()


def test_an_entry_that_is_gone_or_another_is_not_turned_to(location: Location) -> None:
    location.append(0, 1)
    bookmark = bookmark_at_head(location)
    position, store_ms, _ = bookmark.split()
    for other in (f"{position} {store_ms} somebody-elses-id", f"7 {store_ms} {bookmark.split()[2]}"):
        fresh, _ = process(location)
        assert fresh.turn_to("k", other) is None
        assert fresh.head("k") == version(1)


@pytest.mark.parametrize("text", ["", "x", "1 2", "1 x id", "-1 2 id", "1 2 "])
def test_what_is_no_bookmark_is_refused(location: Location, text: str) -> None:
    with pytest.raises(InvalidInput, match="mint again"):
        location.others.turn_to("k", text)
