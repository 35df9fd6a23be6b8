"""The conformance suite of `Consensus`: subclass it, define how to make a store and how to bypass it, and run pytest.

    class TestMine(ConsensusConformance):
        def make(self, folder): return MyConsensus(...)          # a fresh, empty store
        def raw_read(self, consensus, key): ...                  # what is stored, without using MyConsensus
        def raw_write(self, consensus, key, version): ...        # store a version, without using MyConsensus
        def address(self, consensus): return "mine://..."        # for other processes; None if they cannot reach it

Every rule of the contract is a test here; a backend is done when it passes. Needs pytest.
"""

from __future__ import annotations

import pytest

from persist_core.errors import InvalidInput, InvalidName, InvalidSeqNo
from persist_core.location.consensus import MAX_SEQNO, SCAN_ALL, CaSResult, Consensus, VersionedData
from tests.suites.race_conformance import ConsensusRaceConformance

COMMITTED = CaSResult.COMMITTED
MISMATCH = CaSResult.EXPECTATION_MISMATCH

# Pairs among them would meet if a backend folded case, normalized Unicode, trimmed, matched patterns or built SQL.
HOSTILE_KEYS = (
    "shard",
    "Shard",
    "shard ",
    " shard",
    "shard/",
    "shard/1",
    "shard%",
    "shard_",
    "shar_",
    "%",
    "*",
    "?x=1&y=2",
    "#",
    "..",
    "../shard",
    "a\\b",
    "a'b",
    'a"b',
    "a;b--",
    "'; DROP TABLE consensus; --",
    "%00",
    "%2e%2e",
    "${HOME}",
    "0",
    "00",
    "1e0",
    "null",
    "caf\u00e9",
    "cafe\u0301",
    "\u212b",
    "\u00c5",
    "\u65e5\u672c\u8a9e",
    "\U0001f980",
    "\u202egnp",
    "\ufeffshard",
    "\uffff",
    "k" * 512,
    "\u00e9" * 256,
)
ILLEGAL_KEYS = ("", "a\x00b", "a\nb", "\x7f", "k" * 513, "\u00e9" * 257, "\ud800")
ILLEGAL_SEQNOS = (-1, MAX_SEQNO + 1, True, 1.0, "1")


class ConsensusConformance(ConsensusRaceConformance):
    """Tests for every `Consensus`. See the module's first lines for how to use it."""

    # head and compare_and_set

    def test_a_new_key_has_nothing(self, consensus: Consensus) -> None:
        assert consensus.head("k") is None
        assert consensus.scan("k", 0) == []
        assert list(consensus.list_keys()) == []

    def test_the_first_version(self, consensus: Consensus) -> None:
        assert consensus.compare_and_set("k", None, VersionedData(0, b"a")) is COMMITTED
        assert consensus.head("k") == VersionedData(0, b"a")
        assert self.raw_read(consensus, "k") == [VersionedData(0, b"a")]

    def test_each_version_follows_the_one_before(self, consensus: Consensus) -> None:
        for seqno in range(5):
            expected = seqno - 1 if seqno else None
            assert consensus.compare_and_set("k", expected, VersionedData(seqno, b"v%d" % seqno)) is COMMITTED
            assert consensus.head("k") == VersionedData(seqno, b"v%d" % seqno)
        assert self.raw_read(consensus, "k") == [VersionedData(seqno, b"v%d" % seqno) for seqno in range(5)]

    @pytest.mark.parametrize("expected", [None, 0, 2, 4, 6, 7, MAX_SEQNO - 1])
    def test_a_wrong_expectation_is_a_value_and_changes_nothing(
        self, consensus: Consensus, expected: int | None
    ) -> None:
        before = [VersionedData(2, b"old"), VersionedData(5, b"current")]
        fill(consensus, "k", before)
        assert consensus.compare_and_set("k", expected, VersionedData(MAX_SEQNO, b"new")) is MISMATCH
        assert self.raw_read(consensus, "k") == before

    @pytest.mark.parametrize("expected", [0, 1, MAX_SEQNO - 1])
    def test_expecting_data_where_there_is_none(self, consensus: Consensus, expected: int) -> None:
        assert consensus.compare_and_set("k", expected, VersionedData(MAX_SEQNO, b"new")) is MISMATCH
        assert self.raw_read(consensus, "k") == []
        assert list(consensus.list_keys()) == []

    def test_the_same_call_twice_commits_once(self, consensus: Consensus) -> None:
        assert consensus.compare_and_set("k", None, VersionedData(3, b"a")) is COMMITTED
        assert consensus.compare_and_set("k", None, VersionedData(3, b"a")) is MISMATCH
        assert consensus.compare_and_set("k", 3, VersionedData(4, b"b")) is COMMITTED
        assert consensus.compare_and_set("k", 3, VersionedData(4, b"b")) is MISMATCH
        assert consensus.scan("k", 0) == [VersionedData(3, b"a"), VersionedData(4, b"b")]

    # sequence numbers

    @pytest.mark.parametrize("seqno", [0, 1, 2, 3, 4, 5])
    def test_a_stale_seqno_with_a_current_expectation_is_an_error(self, consensus: Consensus, seqno: int) -> None:
        fill(consensus, "k", [VersionedData(5, b"current")])
        with pytest.raises(InvalidSeqNo):
            consensus.compare_and_set("k", 5, VersionedData(seqno, b"new"))
        assert self.raw_read(consensus, "k") == [VersionedData(5, b"current")]

    def test_a_stale_seqno_with_a_wrong_expectation_is_an_error(self, consensus: Consensus) -> None:
        with pytest.raises(InvalidSeqNo):
            consensus.compare_and_set("k", 7, VersionedData(7, b"new"))
        assert list(consensus.list_keys()) == []

    @pytest.mark.parametrize("seqno", ILLEGAL_SEQNOS)
    def test_seqnos_outside_the_range_are_errors(self, consensus: Consensus, seqno: int) -> None:
        fill(consensus, "k", [VersionedData(0, b"a")])
        with pytest.raises(InvalidSeqNo):
            consensus.compare_and_set("k", 0, VersionedData(seqno, b"new"))
        with pytest.raises(InvalidSeqNo):
            consensus.compare_and_set("new", None, VersionedData(seqno, b"new"))
        with pytest.raises(InvalidSeqNo):
            consensus.compare_and_set("k", seqno, VersionedData(MAX_SEQNO, b"new"))
        with pytest.raises(InvalidSeqNo):
            consensus.scan("k", seqno)
        with pytest.raises(InvalidSeqNo):
            consensus.truncate("k", seqno)
        assert self.raw_read(consensus, "k") == [VersionedData(0, b"a")]
        assert self.raw_read(consensus, "new") == []

    def test_seqnos_may_jump_to_the_very_end(self, consensus: Consensus) -> None:
        seqnos = [0, 1, 7, 2**31 - 1, 2**31, 2**32, 2**53 + 1, MAX_SEQNO - 1, MAX_SEQNO]
        versions = [VersionedData(seqno, b"%d" % seqno) for seqno in seqnos]
        fill(consensus, "k", versions)
        assert consensus.head("k") == versions[-1]
        assert consensus.scan("k", 0) == versions
        assert consensus.scan("k", MAX_SEQNO) == versions[-1:]
        assert consensus.truncate("k", MAX_SEQNO) == len(versions) - 1
        assert self.raw_read(consensus, "k") == versions[-1:]

    def test_the_first_seqno_may_be_any(self, consensus: Consensus) -> None:
        assert consensus.compare_and_set("k", None, VersionedData(MAX_SEQNO, b"only")) is COMMITTED
        assert consensus.head("k") == VersionedData(MAX_SEQNO, b"only")

    # data

    @pytest.mark.parametrize(
        "data",
        [b"", b"\x00", bytes(range(256)), b"'; --", b"\xff\xfe", b"0", bytes(4 << 20), bytes(range(256)) * (5 << 12)],
        ids=["empty", "nul", "all-bytes", "sql", "no-utf8", "digit", "4MiB-zeros", "5MiB"],
    )
    def test_data_of_all_kinds(self, consensus: Consensus, data: bytes) -> None:
        fill(consensus, "k", [VersionedData(1, data), VersionedData(2, b"next")])
        (first, _) = consensus.scan("k", 0)
        assert type(first.data) is bytes
        assert first.data == data
        assert self.raw_read(consensus, "k")[0].data == data

    def test_an_empty_value_is_not_no_value(self, consensus: Consensus) -> None:
        fill(consensus, "k", [VersionedData(0, b"")])
        assert consensus.head("k") == VersionedData(0, b"")
        assert consensus.compare_and_set("k", None, VersionedData(1, b"x")) is MISMATCH

    @pytest.mark.parametrize("data", ["text", 3, None, bytearray(b"x")], ids=["str", "int", "none", "bytearray"])
    def test_data_must_be_bytes(self, consensus: Consensus, data: bytes) -> None:
        with pytest.raises(InvalidInput):
            consensus.compare_and_set("k", None, VersionedData(0, data))
        assert consensus.head("k") is None

    # keys

    def test_keys_do_not_interfere(self, consensus: Consensus) -> None:
        for index, key in enumerate(HOSTILE_KEYS):
            fill(consensus, key, [VersionedData(index, key.encode()), VersionedData(index + 10, b"%d" % index)])
        assert sorted(consensus.list_keys()) == sorted(HOSTILE_KEYS)
        for index, key in enumerate(HOSTILE_KEYS):
            versions = [VersionedData(index, key.encode()), VersionedData(index + 10, b"%d" % index)]
            assert consensus.scan(key, 0) == versions
            assert consensus.head(key) == versions[-1]
            assert self.raw_read(consensus, key) == versions
        assert consensus.truncate("shard", 10) == 1
        for index, key in enumerate(HOSTILE_KEYS[1:], 1):
            assert [version.seqno for version in consensus.scan(key, 0)] == [index, index + 10]

    @pytest.mark.parametrize("key", ILLEGAL_KEYS, ids=ascii)
    def test_illegal_keys_are_refused_by_every_call(self, consensus: Consensus, key: str) -> None:
        with pytest.raises(InvalidName):
            consensus.compare_and_set(key, None, VersionedData(0, b""))
        with pytest.raises(InvalidName):
            consensus.head(key)
        with pytest.raises(InvalidName):
            consensus.scan(key, 0)
        with pytest.raises(InvalidName):
            consensus.truncate(key, 0)
        assert list(consensus.list_keys()) == []

    def test_reading_a_key_does_not_create_it(self, consensus: Consensus) -> None:
        fill(consensus, "real", [VersionedData(0, b"")])
        consensus.head("k")
        consensus.scan("k", 0)
        consensus.compare_and_set("k", 3, VersionedData(4, b""))
        with pytest.raises(InvalidSeqNo):
            consensus.truncate("k", 0)
        assert list(consensus.list_keys()) == ["real"]

    def test_every_key_is_listed_once(self, consensus: Consensus) -> None:
        keys = [f"s{index}" for index in range(12)]
        for key in keys:
            fill(consensus, key, [VersionedData(seqno, b"") for seqno in range(2)])
            consensus.truncate(key, 1)
        assert sorted(consensus.list_keys()) == sorted(keys)

    # scan

    def test_scan_from_and_limit(self, consensus: Consensus) -> None:
        versions = [VersionedData(seqno, b"%d" % seqno) for seqno in (2, 3, 5, 8, 13)]
        fill(consensus, "k", versions)
        for from_seqno in range(16):
            wanted = [version for version in versions if version.seqno >= from_seqno]
            assert consensus.scan("k", from_seqno) == wanted
            assert consensus.scan("k", from_seqno, SCAN_ALL) == wanted
            for limit in range(7):
                assert consensus.scan("k", from_seqno, limit) == wanted[:limit]
                assert consensus.scan("k", from_seqno, limit=limit) == wanted[:limit]
        assert consensus.scan("k", MAX_SEQNO) == []
        assert consensus.scan("k", 0, SCAN_ALL + 5) == versions
        assert consensus.scan("other", 0, 3) == []

    @pytest.mark.parametrize("limit", [-1, True, 1.0, None])
    def test_a_limit_that_is_none_is_refused(self, consensus: Consensus, limit: int) -> None:
        with pytest.raises(InvalidInput):
            consensus.scan("k", 0, limit)

    # truncate

    def test_truncate_deletes_what_is_below_and_is_idempotent(self, consensus: Consensus) -> None:
        versions = [VersionedData(seqno, b"%d" % seqno) for seqno in (2, 3, 5, 8, 13)]
        fill(consensus, "k", versions)
        for seqno, deleted in [(0, 0), (2, 0), (3, 1), (3, 0), (4, 1), (5, 0), (6, 1), (1, 0), (13, 1), (13, 0)]:
            assert consensus.truncate("k", seqno) == deleted
        assert self.raw_read(consensus, "k") == versions[-1:]
        assert consensus.head("k") == versions[-1]
        assert consensus.scan("k", 0) == versions[-1:]

    @pytest.mark.parametrize("seqno", [6, 7, MAX_SEQNO])
    def test_truncate_past_the_head_is_an_error(self, consensus: Consensus, seqno: int) -> None:
        versions = [VersionedData(1, b"a"), VersionedData(5, b"b")]
        fill(consensus, "k", versions)
        with pytest.raises(InvalidSeqNo):
            consensus.truncate("k", seqno)
        assert self.raw_read(consensus, "k") == versions

    @pytest.mark.parametrize("seqno", [0, 1, MAX_SEQNO])
    def test_truncate_without_data_is_an_error(self, consensus: Consensus, seqno: int) -> None:
        with pytest.raises(InvalidSeqNo):
            consensus.truncate("k", seqno)

    def test_history_goes_on_after_truncate(self, consensus: Consensus) -> None:
        fill(consensus, "k", [VersionedData(seqno, b"%d" % seqno) for seqno in range(4)])
        assert consensus.truncate("k", 3) == 3
        # A writer that was suspended meanwhile must not win with the head that it remembers.
        assert consensus.compare_and_set("k", None, VersionedData(0, b"x")) is MISMATCH
        assert consensus.compare_and_set("k", None, VersionedData(9, b"x")) is MISMATCH
        for expected in range(3):
            assert consensus.compare_and_set("k", expected, VersionedData(expected + 1, b"x")) is MISMATCH
            assert consensus.compare_and_set("k", expected, VersionedData(9, b"x")) is MISMATCH
        assert consensus.compare_and_set("k", 3, VersionedData(4, b"4")) is COMMITTED
        assert self.raw_read(consensus, "k") == [VersionedData(3, b"3"), VersionedData(4, b"4")]

    # the same store, seen from other processes

    def test_what_others_wrote_is_seen_at_once(self, consensus: Consensus) -> None:
        fill(consensus, "k", [VersionedData(0, b"a")])
        assert consensus.head("k") == VersionedData(0, b"a")
        self.raw_write(consensus, "k", VersionedData(4, b"theirs"))
        assert consensus.head("k") == VersionedData(4, b"theirs")
        assert consensus.scan("k", 1) == [VersionedData(4, b"theirs")]
        assert consensus.compare_and_set("k", 0, VersionedData(5, b"b")) is MISMATCH
        assert consensus.compare_and_set("k", 4, VersionedData(5, b"b")) is COMMITTED
        self.raw_write(consensus, "other", VersionedData(1, b""))
        assert sorted(consensus.list_keys()) == ["k", "other"]

    def test_two_objects_share_one_history(self, consensus: Consensus) -> None:
        other = self.reopen(consensus)
        assert consensus.compare_and_set("k", None, VersionedData(0, b"a")) is COMMITTED
        assert other.head("k") == VersionedData(0, b"a")
        assert other.compare_and_set("k", None, VersionedData(0, b"b")) is MISMATCH
        assert other.compare_and_set("k", 0, VersionedData(1, b"b")) is COMMITTED
        assert consensus.head("k") == VersionedData(1, b"b")
        assert other.truncate("k", 1) == 1
        assert consensus.scan("k", 0) == [VersionedData(1, b"b")]
        other.close()
        assert consensus.compare_and_set("k", 1, VersionedData(2, b"c")) is COMMITTED

    def test_history_outlives_its_object(self, consensus: Consensus) -> None:
        versions = [VersionedData(3, b"a"), VersionedData(4, b"")]
        fill(consensus, "k", versions)
        other = self.reopen(consensus)
        consensus.close()
        consensus.close()  # harmless
        assert other.scan("k", 0) == versions
        other.close()

    def test_the_uri_can_be_printed(self, consensus: Consensus) -> None:
        assert isinstance(consensus.uri, str)
        assert ":" in consensus.uri


def fill(consensus: Consensus, key: str, versions: list[VersionedData]) -> None:
    """Append `versions` to `key`, which must commit."""
    head = consensus.head(key)
    expected = head.seqno if head else None
    for version in versions:
        assert consensus.compare_and_set(key, expected, version) is COMMITTED
        expected = version.seqno
