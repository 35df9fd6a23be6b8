"""The parts of the conformance suites with many concurrent threads and processes, some of which are killed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from persist_core.location.blob import Blob
from persist_core.location.consensus import CaSResult, Consensus, VersionedData
from tests.suites.conformance_hooks import BlobHooks, ConsensusHooks
from tests.suites.races import (
    VALUE_SIZES,
    Racer,
    in_processes,
    in_threads,
    increment,
    overwrite,
    race,
    read_stamp,
    stamped,
    winner_of,
    write_and_delete,
    write_new,
)


class ConsensusRaceConformance(ConsensusHooks):
    """`compare_and_set` is linearizable, and what it acknowledged lasts."""

    def test_threads_that_race_have_one_winner_each_time(self, consensus: Consensus) -> None:
        handles = [consensus, consensus, self.reopen(consensus), self.reopen(consensus)]
        won = in_threads([partial(race, handle, "k", worker, 60) for worker, handle in enumerate(handles)])
        check_race(self.raw_read(consensus, "k"), won, 60)

    def test_processes_that_race_have_one_winner_each_time(self, consensus: Consensus) -> None:
        won = in_processes("race", self.shared_address(consensus), "k", 4, 60)
        check_race(self.raw_read(consensus, "k"), won, 60)

    def test_threads_lose_no_increment(self, consensus: Consensus) -> None:
        seqnos = in_threads([partial(increment, consensus, "k", worker, 10) for worker in range(4)])
        check_increments(self.raw_read(consensus, "k"), seqnos)

    def test_processes_lose_no_increment(self, consensus: Consensus) -> None:
        seqnos = in_processes("increment", self.shared_address(consensus), "k", 4, 12)
        check_increments(self.raw_read(consensus, "k"), seqnos)

    def test_a_forked_child_may_go_on_with_the_object(self, consensus: Consensus) -> None:
        in_processes("increment_forked", self.shared_address(consensus), "k", 1, 12)
        versions = self.raw_read(consensus, "k")
        assert [int(version.data.split(b":")[1]) for version in versions] == list(range(1, 25))

    def test_readers_never_go_back_and_see_no_gap(self, consensus: Consensus) -> None:
        rounds = 40

        def read() -> Iterator[int]:
            seen = -1
            for _ in range(100_000):
                head = consensus.head("k")
                seqno = head.seqno if head else -1
                assert seqno >= seen
                assert [version.seqno for version in consensus.scan("k", 0)][: seqno + 1] == list(range(seqno + 1))
                seen = seqno
                yield seqno
                if seqno == rounds - 1:
                    return
            raise AssertionError(f"the writer stopped at {seen}")

        in_threads([partial(race, consensus, "k", 0, rounds), read, read])

    def test_a_killed_writer_loses_nothing_that_was_acknowledged(self, consensus: Consensus) -> None:
        address = self.shared_address(consensus)
        for round_number, acknowledgements in enumerate((1, 7, 23)):
            key = f"k{round_number}"
            racer = Racer("race", address, key, round_number, 100_000)
            racer.wait_ready()
            racer.go()
            acknowledged = racer.kill_after(acknowledgements)
            versions = self.reopen(consensus).scan(key, 0)
            assert versions == self.raw_read(consensus, key)
            assert [version.seqno for version in versions] == list(range(len(versions)))
            assert {winner_of(version) for version in versions} == {round_number}
            assert len(versions) - len(acknowledged) in (0, 1)  # the last commit may not have been reported
            head = versions[-1].seqno
            assert consensus.compare_and_set(key, head, VersionedData(head + 1, b"next")) is CaSResult.COMMITTED


class BlobRaceConformance(BlobHooks):
    """Values are written whole, and what `set` acknowledged lasts."""

    def test_no_thread_reads_a_torn_value(self, blob: Blob) -> None:
        blob.set("s/v", stamped(0, 0))

        def read() -> Iterator[int]:
            for _ in range(40):
                data = blob.get("s/v")
                assert data is not None
                yield read_stamp(data)[1]

        writers = [partial(overwrite, blob, "s/v", worker, 40) for worker in (1, 2)]
        in_threads([read, read, *writers])
        assert keys(blob, "") == ["s/v"]

    def test_no_process_leaves_a_torn_value(self, blob: Blob) -> None:
        address = self.shared_address(blob)
        acknowledged = in_processes("overwrite", address, "s/v", 3, 40)
        assert acknowledged == [list(range(40))] * 3
        data = blob.get("s/v")
        assert data is not None
        assert read_stamp(data)[1] == 39
        assert keys(blob, "") == ["s/v"]

    def test_writers_of_new_keys_do_not_meet(self, blob: Blob) -> None:
        in_threads([partial(write_new, blob, "s/new", worker, 20) for worker in range(4)])
        check_new_keys(blob, "s/new", {worker: range(20) for worker in range(4)})

    def test_a_directory_that_comes_and_goes(self, blob: Blob) -> None:
        in_threads([partial(write_and_delete, blob, "s", worker, 25) for worker in range(4)])
        assert keys(blob, "") == []

    def test_a_directory_that_comes_and_goes_for_processes(self, blob: Blob) -> None:
        in_processes("write_and_delete", self.shared_address(blob), "s", 3, 30)
        assert keys(blob, "") == []

    def test_a_killed_writer_leaves_whole_values_only(self, blob: Blob) -> None:
        address = self.shared_address(blob)
        for worker, acknowledgements in enumerate((1, 10, 27)):
            racer = Racer("write_new", address, "s", worker, 100_000)
            racer.wait_ready()
            racer.go()
            acknowledged = racer.kill_after(acknowledgements)
            found = keys(blob, f"s/{worker}/")
            # The last write may not have been reported.
            assert len(found) - len(acknowledged) in (0, 1)
            check_new_keys(blob, "s", {worker: range(len(found))})

    def test_a_killed_overwriter_leaves_the_old_or_the_new(self, blob: Blob) -> None:
        address = self.shared_address(blob)
        for worker, acknowledgements in enumerate((2, 17)):
            racer = Racer("overwrite", address, "s/_latest", worker, 100_000)
            racer.wait_ready()
            racer.go()
            acknowledged = racer.kill_after(acknowledgements)
            data = blob.get("s/_latest")
            assert data is not None
            writer, number = read_stamp(data)
            assert writer == worker
            assert number - acknowledged[-1] in (0, 1)
            assert keys(blob, "") == ["s/_latest"]


def check_race(stored: list[VersionedData], won: list[list[int]], rounds: int) -> None:
    """Each round has one winner, and it is the one whose version is stored."""
    assert sorted(seqno for seqnos in won for seqno in seqnos) == list(range(rounds))
    assert [version.seqno for version in stored] == list(range(rounds))
    for version in stored:
        assert version.seqno in won[winner_of(version)]


def check_increments(stored: list[VersionedData], seqnos: list[list[int]]) -> None:
    """Each acknowledged increment is stored once, under the seqno that its worker received, counting without a gap."""
    assert [int(version.data.split(b":")[1]) for version in stored] == list(range(1, len(stored) + 1))
    for worker, own in enumerate(seqnos):
        assert [version.seqno for version in stored if version.data.startswith(b"%d:" % worker)] == own
    assert len(stored) == sum(map(len, seqnos))


def check_new_keys(blob: Blob, key: str, numbers: dict[int, range]) -> None:
    """All that `write_new` wrote is there, and whole."""
    for worker, own in numbers.items():
        for number in own:
            data = blob.get(f"{key}/{worker}/{number}")
            assert data is not None
            assert read_stamp(data) == (worker, number)
            head_bytes = len(b"%d:%d:" % (worker, number))
            assert len(data) == head_bytes + VALUE_SIZES[number % len(VALUE_SIZES)]


def keys(blob: Blob, prefix: str) -> list[str]:
    """The keys of a listing, in its order."""
    return [metadata.key for metadata in blob.list_keys_and_metadata(prefix)]
