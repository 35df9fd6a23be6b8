"""`S3Consensus` beyond the suite: the stalled writer, what an append costs, what truncation leaves, damage, crashes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persist_core.errors import Corruption, Determinate, Indeterminate, InvalidUri, StorageError, UnknownVersion
from persist_core.ids import RandomIds
from persist_core.location import CaSResult, S3Consensus, VersionedData, open_consensus
from persist_core.location.s3.consensus import KEEP_MS, TRUST_MS
from persist_core.location.s3.log import MAX_TRIES
from persist_core.location.s3.probe import probe_once
from tests.core.location.s3_wire import Lost, Meanwhile, Wire
from tests.servers.s3 import S3Server
from tests.servers.s3_raw import raw_folder, raw_names
from tests.virtual import ManualClock, SeededIds

COMMITTED, MISMATCH = CaSResult.COMMITTED, CaSResult.EXPECTATION_MISMATCH
HOUR_MS = 3_600_000


def version(seqno: int, data: bytes = b"") -> VersionedData:
    return VersionedData(seqno, data or b"v%d" % seqno)


class Location:
    """An empty location, and consensus objects on it with clocks of their own."""

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.uri = server.new_uri("p")
        self._opened: list[S3Consensus] = []
        self.others = self.open(ManualClock(1_700_000_000_000))
        # So that scripts and counts do not include the probe's requests.
        probe_once(self.others._logs.client, self.others._root, RandomIds())

    def open(self, clock: ManualClock, seed: int = 1) -> S3Consensus:
        found = open_consensus(self.uri)
        assert isinstance(found, S3Consensus)
        self._opened.append(S3Consensus(found._settings, clock=clock, ids=SeededIds(seed, clock)))
        return self._opened[-1]

    def append(self, *seqnos: int) -> None:
        for seqno in seqnos:
            head = self.others.head("k")
            assert self.others.compare_and_set("k", head.seqno if head else None, version(seqno)) is COMMITTED

    def age(self, hours: float) -> None:
        """Let the stored objects be as old as that by the server's clock: the gateway takes a file's time."""
        bucket = self.others._settings.bucket
        for path in (self.server.folder / bucket).rglob("*"):
            if path.is_file():
                stat = path.stat()
                os.utime(path, (stat.st_atime - hours * 3600, stat.st_mtime - hours * 3600))

    def positions(self) -> list[int]:
        """The positions that are stored, oldest first, whether they count or not."""
        return [int(name.rpartition("-")[2]) for name in reversed(raw_names(self.server, self.others, "k"))]

    def path_of(self, position: int) -> Path:
        (name,) = (n for n in raw_names(self.server, self.others, "k") if n.endswith(f"-{position}"))
        return self.server.folder / self.others._settings.bucket / name

    def close(self) -> None:
        for consensus in self._opened:
            consensus.close()


@pytest.fixture
def location(versitygw: S3Server) -> Iterator[Location]:
    made = Location(versitygw)
    yield made
    made.close()


# the stalled writer


@pytest.mark.parametrize("first_seqno", [None, 4], ids=["of the first version", "of a later version"])
@pytest.mark.parametrize("stalled_ms", [TRUST_MS + 1, 3 * KEEP_MS, -1], ids=["an hour", "days", "clock set back"])
def test_a_write_after_its_name_was_freed_has_not_won(
    location: Location, first_seqno: int | None, stalled_ms: int
) -> None:
    clock = ManualClock(1_700_000_000_000)
    stalled = location.open(clock, seed=2)
    if first_seqno is not None:
        location.append(first_seqno)
    head = stalled.head("k")
    position = 0 if head is None else 1

    def others_go_on() -> None:
        location.append(10, 11, 12)
        location.age(25)
        assert location.others.truncate("k", 12) == (2 if head is None else 3)
        location.append(13)
        assert position not in location.positions(), "the name must be free, or this tests nothing"
        clock.sleep_ms(stalled_ms)

    wire = Wire(stalled)
    wire.script("PutObject", Meanwhile(others_go_on))
    assert stalled.compare_and_set("k", first_seqno, version(9, b"stalled")) is MISMATCH
    assert position in location.positions(), "the late write must have arrived, or this tests nothing"
    for reader in (stalled, location.others, location.open(clock, seed=3)):
        assert reader.head("k") == version(13)
        assert reader.scan("k", 0) == [version(12), version(13)]
        assert reader.scan("k", 9, 1) == [version(12)]
        assert list(reader.list_keys()) == ["k"]
    assert location.others.truncate("k", 13) == 1
    assert location.others.scan("k", 0) == [version(13)]


def test_a_late_write_meets_entries_truncated_within_a_day(location: Location) -> None:
    """Until then the old object itself makes the PUT fail: no clock is needed."""
    location.append(4)
    clock = ManualClock(1_700_000_000_000)
    stalled = location.open(clock, seed=2)
    assert stalled.head("k") == version(4)

    def others_go_on() -> None:
        location.append(10, 11, 12)
        location.age(23)
        assert location.others.truncate("k", 12) == 3

    Wire(stalled).script("PutObject", Meanwhile(others_go_on))
    assert stalled.compare_and_set("k", 4, version(9)) is MISMATCH
    assert location.positions() == [0, 1, 2, 3, 4]


def test_a_slow_write_that_nobody_overtook_has_won(location: Location) -> None:
    location.append(4)
    clock = ManualClock(1_700_000_000_000)
    slow = location.open(clock, seed=2)
    assert slow.head("k") == version(4)
    wire = Wire(slow)
    wire.script("PutObject", Meanwhile(lambda: clock.sleep_ms(5 * KEEP_MS)))
    assert slow.compare_and_set("k", 4, version(9)) is COMMITTED
    assert location.others.head("k") == version(9)


def test_a_slow_write_without_an_answer_is_indeterminate(location: Location) -> None:
    """Found by a random history: it has happened, so its error must not be `Determinate`."""
    location.append(4)
    clock = ManualClock(1_700_000_000_000)
    slow = location.open(clock, seed=2)
    slow.head("k")
    wire = Wire(slow)
    wire.script("PutObject", Meanwhile(lambda: clock.sleep_ms(5 * KEEP_MS)))
    wire.script("ListObjectsV2", *[Lost(False)] * MAX_TRIES)
    with pytest.raises(Indeterminate, match="read back"):
        slow.compare_and_set("k", 4, version(9))
    assert location.others.head("k") == version(9)


def test_a_slow_write_that_was_built_upon_has_won(location: Location) -> None:
    """It is valid, others continued from it, and it has not been truncated."""
    location.append(4)
    clock = ManualClock(1_700_000_000_000)
    slow = location.open(clock, seed=2)
    slow.head("k")
    wire = Wire(slow)

    def answered_late(request: Any) -> Any:
        try:
            return Lost(True)(request)
        finally:
            clock.sleep_ms(5 * KEEP_MS)
            location.append(10, 11)
            assert location.others.truncate("k", 9) == 1

    wire.script("PutObject", answered_late)
    assert slow.compare_and_set("k", 4, version(9)) is COMMITTED
    assert location.others.scan("k", 0) == [version(9), version(10), version(11)]


def test_what_was_seen_long_ago_is_not_relied_upon(location: Location) -> None:
    """The head may be remembered for days between two calls: that is a stall too."""
    location.append(4)
    clock = ManualClock(1_700_000_000_000)
    sleeper = location.open(clock, seed=2)
    assert sleeper.head("k") == version(4)
    location.append(10, 11, 12)
    location.age(25)
    location.others.truncate("k", 12)
    clock.sleep_ms(3 * KEEP_MS)
    assert sleeper.compare_and_set("k", 4, version(9)) is MISMATCH
    assert sleeper.head("k") == version(12)


# truncation


def test_truncated_objects_are_deleted_a_day_later(location: Location) -> None:
    location.append(*range(5))
    assert location.others.truncate("k", 3) == 3
    assert location.positions() == [0, 1, 2, 3, 4, 5]
    location.age(25)
    location.append(6)
    assert location.others.truncate("k", 3) == 0, "nothing more to truncate, but to sweep"
    assert location.positions() == [3, 4, 5, 6]
    assert location.others.scan("k", 0) == [version(3), version(4), version(6)]


def test_the_floor_outlives_every_later_version(location: Location) -> None:
    location.append(*range(4))
    assert location.others.truncate("k", 3) == 3
    location.append(*range(4, 8))
    assert location.others.truncate("k", 2) == 0
    assert [found.seqno for found in location.others.scan("k", 0)] == [3, 4, 5, 6, 7]


def test_two_truncations_count_each_version_once(location: Location) -> None:
    location.append(*range(6))
    other = location.open(ManualClock(), seed=2)
    wire = Wire(other)
    counted: list[int] = []
    wire.script("PutObject", Meanwhile(lambda: counted.append(location.others.truncate("k", 4))))
    counted.append(other.truncate("k", 2))
    assert counted == [4, 0]
    assert [found.seqno for found in location.others.scan("k", 0)] == [4, 5]


def test_a_truncation_before_the_write_does_not_fail_it(location: Location) -> None:
    location.append(*range(4))
    writer = location.open(ManualClock(), seed=2)
    writer.head("k")
    Wire(writer).script("PutObject", Meanwhile(lambda: location.others.truncate("k", 3)))
    assert writer.compare_and_set("k", 3, version(4)) is COMMITTED
    assert location.others.scan("k", 0) == [version(3), version(4)]


def test_a_scan_goes_on_where_its_entries_are_deleted_under_it(location: Location) -> None:
    location.append(*range(6))
    reader = location.open(ManualClock(), seed=2)
    wire = Wire(reader)

    def truncate() -> None:
        location.age(25)
        location.others.truncate("k", 4)

    reader.head("k")
    wire.script("GetObject", Meanwhile(truncate))
    assert reader.scan("k", 0) == [version(4), version(5)]


# cost


def test_what_an_append_costs(location: Location) -> None:
    location.append(0, 1)
    fresh = location.open(ManualClock(), seed=2)
    wire = Wire(fresh)
    assert fresh.head("k") == version(1)
    assert fresh.compare_and_set("k", 1, version(2)) is COMMITTED
    assert wire.take_counts() == {"ListObjectsV2": 1, "GetObject": 1, "PutObject": 1}
    for seqno in range(3, 6):
        assert fresh.head("k") == version(seqno - 1)
        assert fresh.compare_and_set("k", seqno - 1, version(seqno)) is COMMITTED
        assert wire.take_counts() == {"ListObjectsV2": 1, "PutObject": 1}


def test_the_head_costs_the_same_for_any_history(location: Location) -> None:
    location.append(*range(40))
    location.others.truncate("k", 30)
    fresh = location.open(ManualClock(), seed=2)
    wire = Wire(fresh)
    assert fresh.head("k") == version(39)
    assert wire.take_counts() == {"ListObjectsV2": 1, "GetObject": 1}
    assert fresh.scan("k", 38) == [version(38), version(39)]
    assert wire.counts["ListObjectsV2"] == 1
    assert wire.counts["GetObject"] <= 8


# damage


def test_a_missing_entry_is_named(location: Location) -> None:
    location.append(*range(4))
    location.path_of(1).unlink()
    with pytest.raises(Corruption, match=r"entry 1 of 'k' is missing.*lifecycle"):
        location.others.scan("k", 0)
    assert location.others.head("k") == version(3)


def test_an_altered_entry_is_named(location: Location) -> None:
    location.append(0, 1)
    path = location.path_of(1)
    for damaged, error, says in [
        (path.read_bytes() + b"x", Corruption, "SHA-256"),
        (b"", Corruption, "expected the header"),
        (b"persist-consensus-1 {}\n", Corruption, "restore it from a copy"),
        (b"persist-consensus-2 {}\n", UnknownVersion, "upgrade"),
    ]:
        path.write_bytes(damaged)
        fresh = location.open(ManualClock())
        with pytest.raises(error, match=says):
            fresh.head("k")


def test_a_foreign_object_is_named(location: Location) -> None:
    location.append(0)
    folder = raw_folder(location.others, "k")
    location.server.raw.put_object(Bucket=location.others._settings.bucket, Key=f"{folder}.DS_Store", Body=b"")
    with pytest.raises(Corruption, match=r"\.DS_Store.*move it"):
        location.others.head("k")


def test_the_log_of_another_key_is_not_read(location: Location) -> None:
    location.append(1)
    bucket, raw = location.others._settings.bucket, location.server.raw
    (name,) = raw_names(location.server, location.others, "k")
    theirs = raw_folder(location.others, "other") + name.rpartition("/")[2]
    raw.put_object(Bucket=bucket, Key=theirs, Body=raw.get_object(Bucket=bucket, Key=name)["Body"].read())
    for call in (
        lambda: location.others.head("other"),
        lambda: location.others.scan("other", 0),
        lambda: location.others.compare_and_set("other", 1, version(2)),
    ):
        with pytest.raises(Corruption, match="another log's object is in its place"):
            call()


# failures of the whole store


def test_a_bucket_that_is_not_there(versitygw: S3Server) -> None:
    consensus = open_consensus(versitygw.uri("no-such-bucket/p"))
    for call in (lambda: consensus.head("k"), lambda: consensus.compare_and_set("k", None, version(0))):
        with pytest.raises(Determinate, match=r"NoSuchBucket.*create the bucket"):
            call()
    consensus.close()


def test_no_secret_is_shown(versitygw: S3Server) -> None:
    secrets = "access_key_id=AKIAHIDDEN&secret_access_key=s3cr3t/%2B&session_token=t0k3n"
    consensus = open_consensus(f"{versitygw.new_uri()}&{secrets}")
    assert isinstance(consensus, S3Consensus)
    shown = [consensus.uri, repr(consensus), repr(consensus._settings), str(consensus._settings)]
    with pytest.raises(Determinate, match="check the credentials") as caught:
        consensus.head("k")
    shown.append(str(caught.value))
    consensus.close()
    for text in shown:
        for secret in ("AKIAHIDDEN", "s3cr3t", "t0k3n"):
            assert secret not in text


def test_an_unknown_profile(versitygw: S3Server) -> None:
    consensus = open_consensus(f"{versitygw.new_uri()}&profile=nobody")
    with pytest.raises(InvalidUri, match="nobody"):
        consensus.head("k")


def test_a_killed_server_loses_nothing_acknowledged(tmp_path: Path, versitygw: S3Server) -> None:
    server = S3Server(versitygw.name, tmp_path / "own")
    server.start()
    try:
        clock = ManualClock()
        settings = replace(open_consensus(server.new_uri())._settings)  # type: ignore[attr-defined]  # an S3Consensus has them
        consensus = S3Consensus(settings, clock=clock, ids=SeededIds(1, clock))
        wire = Wire(consensus)
        acknowledged: list[int] = []
        for round_number in range(3):
            for step in range(20):
                head = consensus.head("k")
                seqno = head.seqno + 1 if head else 0
                if step == 13:
                    wire.script("PutObject", Meanwhile(server.kill))
                try:
                    if consensus.compare_and_set("k", head.seqno if head else None, version(seqno)) is COMMITTED:
                        acknowledged.append(seqno)
                except StorageError:
                    break
            server.start()
            stored = [found.seqno for found in consensus.scan("k", 0)]
            assert stored == list(range(len(stored))), f"round {round_number}"
            assert set(acknowledged) <= set(stored)
        assert len(acknowledged) > 30
        consensus.close()
    finally:
        server.stop()
