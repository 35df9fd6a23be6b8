"""The outcome of a conditional write: every answer of S3 and none, before and after the write took effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from persist_core.errors import Determinate, Indeterminate
from persist_core.location import CaSResult, S3Consensus, VersionedData, open_consensus
from persist_core.location.s3.log import MAX_TRIES
from tests.core.location.s3_wire import (
    Answer,
    Fate,
    Lost,
    Meanwhile,
    RefusedObjects,
    Wire,
    carry_out,
    connect_timed_out,
    timed_out,
    unreachable,
)
from tests.servers.s3 import S3Server
from tests.virtual import ManualClock, SeededIds

OLD, OURS, THEIRS = VersionedData(3, b"old"), VersionedData(7, b"ours"), VersionedData(9, b"theirs")


class Store:
    """A key with one version, the wire to it, and another writer with a wire of its own."""

    def __init__(self, uri: str) -> None:
        found = open_consensus(uri)
        assert isinstance(found, S3Consensus)
        clock = ManualClock(1_700_000_000_000)
        self.consensus = S3Consensus(found._settings, clock=clock, ids=SeededIds(1, clock))
        self.other = found
        assert self.other.compare_and_set("k", None, OLD) is CaSResult.COMMITTED
        assert self.consensus.head("k") == OLD
        self.wire = Wire(self.consensus)

    def cas(self) -> CaSResult:
        return self.consensus.compare_and_set("k", 3, OURS)

    def they_win(self) -> None:
        assert self.other.compare_and_set("k", 3, THEIRS) is CaSResult.COMMITTED

    def versions(self) -> list[VersionedData]:
        return self.other.scan("k", 0)


@pytest.fixture
def store(versitygw: S3Server) -> Iterator[Store]:
    made = Store(versitygw.new_uri("p"))
    yield made
    assert made.wire.is_played()
    made.consensus.close()
    made.other.close()


STRUCK: dict[str, Callable[[bool], Fate]] = {
    "409": lambda is_processed: Answer(409, is_processed),
    "412": lambda is_processed: Answer(412, is_processed),
    "404": lambda is_processed: Answer(404, is_processed),
    "400 RequestTimeout": lambda is_processed: Answer(400, is_processed, "RequestTimeout"),
    "429": lambda is_processed: Answer(429, is_processed, "TooManyRequests"),
    "500": lambda is_processed: Answer(500, is_processed),
    "503": lambda is_processed: Answer(503, is_processed),
    "time-out": lambda is_processed: timed_out(is_processed=is_processed),
    "cut": lambda is_processed: Lost(is_processed),
}
struck = pytest.mark.parametrize("fate", STRUCK.values(), ids=STRUCK)


@struck
@pytest.mark.parametrize("is_processed", [True, False], ids=["processed", "not processed"])
def test_a_write_commits_once_whatever_is_said_of_it(
    store: Store, fate: Callable[[bool], Fate], is_processed: bool
) -> None:
    store.wire.script("PutObject", fate(is_processed))
    assert store.cas() is CaSResult.COMMITTED
    assert store.versions() == [OLD, OURS]
    assert store.wire.counts["PutObject"] == (1 if is_processed else 2)


@struck
def test_a_write_that_lost_says_so_whatever_is_said_of_it(store: Store, fate: Callable[[bool], Fate]) -> None:
    store.wire.script("PutObject", Meanwhile(store.they_win, fate(False)))
    assert store.cas() is CaSResult.EXPECTATION_MISMATCH
    assert store.versions() == [OLD, THEIRS]


@struck
def test_a_write_that_won_and_was_overtaken_has_won(store: Store, fate: Callable[[bool], Fate]) -> None:
    newer = VersionedData(8, b"newer")
    strike = fate(True)

    def won_then_overtaken(request: Any) -> AWSResponse | None:
        try:
            return strike(request)
        finally:
            assert store.other.compare_and_set("k", 7, newer) is CaSResult.COMMITTED

    store.wire.script("PutObject", won_then_overtaken)
    assert store.cas() is CaSResult.COMMITTED
    assert store.versions() == [OLD, OURS, newer]


@struck
def test_the_first_write_arrives_while_the_second_is_on_its_way(store: Store, fate: Callable[[bool], Fate]) -> None:
    """The write without an answer is still under way when we look, and arrives just before the second."""
    late: list[Any] = []

    def keep(request: Any) -> AWSResponse | None:
        late.append(request)
        return fate(False)(request)

    store.wire.script("PutObject", keep, Meanwhile(lambda: carry_out(late.pop())))
    assert store.cas() is CaSResult.COMMITTED
    assert store.versions() == [OLD, OURS]


@pytest.mark.parametrize("fate", [unreachable(), connect_timed_out()], ids=["unreachable", "connect time-out"])
def test_a_write_that_was_never_sent_is_sent_again(store: Store, fate: Fate) -> None:
    store.wire.script("PutObject", fate, fate)
    assert store.cas() is CaSResult.COMMITTED
    assert store.wire.counts["PutObject"] == 3
    assert store.versions() == [OLD, OURS]


def test_a_store_that_can_not_be_reached_is_determinate(store: Store) -> None:
    store.wire.script("PutObject", *[unreachable()] * MAX_TRIES)
    with pytest.raises(Determinate, match="this call changed nothing"):
        store.cas()
    assert store.versions() == [OLD]


@pytest.mark.parametrize("status", [409, 412, 404])
def test_a_refusal_that_never_ends_is_determinate(store: Store, status: int) -> None:
    store.wire.script("PutObject", *[Answer(status)] * MAX_TRIES)
    with pytest.raises(Determinate, match=f"S3 answered {status}"):
        store.cas()
    assert store.versions() == [OLD]


@pytest.mark.parametrize("fate", [Answer(500), timed_out(is_processed=False)], ids=["500", "time-out"])
def test_silence_that_never_ends_is_indeterminate(store: Store, fate: Fate) -> None:
    store.wire.script("PutObject", *[fate] * MAX_TRIES)
    with pytest.raises(Indeterminate, match="read back"):
        store.cas()
    assert store.cas() is CaSResult.COMMITTED
    assert store.versions() == [OLD, OURS]


def test_no_answer_to_the_read_back_is_indeterminate(store: Store) -> None:
    """A 412 may have been about our own object, until we have read what is there."""
    store.wire.script("PutObject", *[Answer(412, is_processed=True)] * MAX_TRIES)
    store.wire.script("GetObject", *[Lost(False)] * MAX_TRIES**2)
    with pytest.raises(Indeterminate):
        store.cas()
    assert store.cas() is CaSResult.EXPECTATION_MISMATCH
    assert store.versions() == [OLD, OURS]


def test_a_refusal_is_determinate_and_not_tried_again(store: Store) -> None:
    store.wire.script("PutObject", Answer(403))
    with pytest.raises(Determinate, match=r"403 AccessDenied.*docs/locations-s3\.md"):
        store.cas()
    assert store.wire.counts["PutObject"] == 1


def test_a_refusal_after_a_silence_is_indeterminate(store: Store) -> None:
    """The first try may still be on its way when the second is refused."""
    store.wire.script("PutObject", timed_out(is_processed=False), Answer(403))
    with pytest.raises(Indeterminate):
        store.cas()
    assert store.versions() == [OLD]


def test_reads_are_tried_again(store: Store) -> None:
    store.wire.script("ListObjectsV2", Answer(503), Lost(False), timed_out(is_processed=True))
    assert store.consensus.head("k") == OLD
    store.they_win()
    store.wire.script("GetObject", Answer(500), Lost(True))
    assert store.consensus.head("k") == THEIRS


def test_reads_that_fail_for_good_are_determinate(store: Store) -> None:
    store.wire.script("ListObjectsV2", *[Answer(503)] * MAX_TRIES)
    with pytest.raises(Determinate, match="503 SlowDown"):
        store.consensus.head("k")


def test_truncate_goes_on_where_its_answer_was_lost(store: Store) -> None:
    assert store.cas() is CaSResult.COMMITTED
    store.wire.script("PutObject", Lost(True))
    assert store.consensus.truncate("k", 7) == 1
    assert store.versions() == [OURS]
    assert store.consensus.truncate("k", 7) == 0


@pytest.mark.parametrize("key", ["k", "without a log"])
def test_a_delete_that_is_refused_within_an_answer_fails(store: Store, key: str) -> None:
    store.wire.script("DeleteObjects", RefusedObjects("AccessDenied"))
    with pytest.raises(Determinate, match=r"AccessDenied to DeleteObjects.*grant the rights"):
        store.consensus.erase(key)
    assert store.versions() == [OLD]
    store.wire.script("DeleteObjects", RefusedObjects("InternalError"), RefusedObjects("SlowDown"))
    store.consensus.erase(key)
    assert store.versions() == ([] if key == "k" else [OLD])


def test_a_sweep_counts_no_object_that_stays(store: Store) -> None:
    assert store.cas() is CaSResult.COMMITTED
    store.wire.script("DeleteObjects", RefusedObjects("AccessDenied"))
    with pytest.raises(Determinate, match="AccessDenied"):
        store.consensus._logs.sweep("k", 1, -10_000)
    assert store.consensus._logs.sweep("k", 1, -10_000) == 1


def test_a_key_that_is_erased_during_a_listing_is_left_out(store: Store) -> None:
    store.other.compare_and_set(".k", None, OLD)  # its folder does not say it
    store.wire.script("ListObjectsV2", lambda _: None, Meanwhile(lambda: store.other.erase(".k")))
    assert list(store.consensus.list_keys()) == ["k"]
