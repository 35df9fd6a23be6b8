"""`persist doctor`: correct stores pass and stay unchanged; each kind of faulty store is detected."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from persist_core.cli.main import run_command
from persist_core.clock import Clock, SystemClock
from persist_core.errors import Determinate, Indeterminate
from persist_core.location import (
    Blob,
    BlobMetadata,
    CaSResult,
    Consensus,
    MemBlob,
    MemConsensus,
    SqliteConsensus,
    VersionedData,
    open_blob,
    open_consensus,
)
from persist_core.location.file.folder import file_system_of
from persist_core.location.finding import Finding, Grade, clock_offset
from persist_core.maintenance.doctor import Examiner, quantile
from tests.servers.postgres import PgBouncer, PostgresServer, start_postgres
from tests.servers.postgres_store import PostgresStore
from tests.suites.consensus_conformance import fill
from tests.suites.faults import Outcome, ScriptedFaults, UnreliableConsensus
from tests.virtual import ManualClock, SeededIds

CLOCK: Clock = SystemClock()
ONE = VersionedData(1, b"one")


EXAMINER = Examiner(CLOCK, SeededIds(1, CLOCK), commits=12)


def examine(consensus: Consensus) -> dict[str, Finding]:
    """The findings by check, of which there is one each."""
    return by_check(EXAMINER.consensus(consensus))


def examine_blob(blob: Blob) -> dict[str, Finding]:
    """The findings by check, of which there is one each."""
    return by_check(EXAMINER.blob(blob))


def by_check(found: list[Finding]) -> dict[str, Finding]:
    assert len({finding.check for finding in found}) == len(found)
    return {finding.check: finding for finding in found}


def sick(findings: dict[str, Finding]) -> dict[str, Grade]:
    """The problems. Each has an expectation and a remedy."""
    bad = [finding for finding in findings.values() if finding.grade is not Grade.OK]
    assert all(finding.expected and finding.remedy for finding in bad)
    return {finding.check: finding.grade for finding in bad if finding.check != "free_space"}


# correct stores


@pytest.fixture(params=["mem", "sqlite", "postgresql", "pgbouncer"])
def consensus_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mem":
        return f"mem:{tmp_path.name}"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/c.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    port = server.port
    if request.param == "pgbouncer":
        bouncer: PgBouncer = request.getfixturevalue("pgbouncer")
        port = bouncer.port
    return server.uri(port=port, schema=server.new_schema())


def test_a_well_consensus_is_left_as_it_was(consensus_uri: str) -> None:
    with closing(open_consensus(consensus_uri)) as consensus:
        fill(consensus, "k", [ONE])
        findings = examine(consensus)
        assert sick(findings) == {}
        assert findings.keys() >= {"reachable", "race", "commit", "latency", "truncate"}
        assert list(consensus.list_keys()) == ["k"]
        assert consensus.scan("k", 0) == [ONE]


def test_a_well_blob_store_is_left_as_it_was(tmp_path: Path) -> None:
    for uri in (f"mem:{tmp_path.name}", f"file://{tmp_path}/blobs"):
        with closing(open_blob(uri)) as blob:
            blob.set("mine", b"x")
            findings = examine_blob(blob)
            assert sick(findings) == {}
            assert findings.keys() >= {"reachable", "throughput", "small_blobs"}
            assert [metadata.key for metadata in blob.list_keys_and_metadata("")] == ["mine"]


# faulty stores


class Overbooked(MemConsensus):
    """Checks first and writes later: two writers that check at the same time both win."""

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Barrier(2)

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        head = self.head(key)
        if (head.seqno if head else None) != expected:
            return CaSResult.EXPECTATION_MISMATCH
        if len(new.data) > 2_500 or len(new.data) < 100:  # the race's bodies, not single commits'
            self._both.wait(10)
        with self._store.lock:
            self._store.values[key] = sorted([*self._store.values.get(key, []), new], key=lambda v: v.seqno)
        return CaSResult.COMMITTED


class Forgetful(MemConsensus):
    """Answers that it committed, and keeps nothing after the first."""

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        super().compare_and_set(key, expected, new)
        return CaSResult.COMMITTED if expected is not None or new.seqno == 0 else CaSResult.EXPECTATION_MISMATCH


class Hoarder(MemConsensus):
    """Truncates nothing."""

    def truncate(self, key: str, seqno: int) -> int:
        del key, seqno
        return 0


class Unwritable(MemConsensus):
    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        raise Determinate(f"permission denied: {key}, {expected} to {new.seqno}")


@pytest.mark.parametrize(
    ("kind", "checks"),
    [(Overbooked, {"race"}), (Forgetful, {"race"}), (Hoarder, {"truncate"}), (Unwritable, {"commit"})],
)
def test_a_sick_consensus_is_found_out(kind: type[MemConsensus], checks: set[str]) -> None:
    consensus = kind()
    found = sick(examine(consensus))
    assert found.keys() >= checks
    assert found[next(iter(checks))] is Grade.PROBLEM
    assert list(consensus.list_keys()) == []


def test_answers_that_are_lost_in_a_race_are_no_second_winner() -> None:
    inner = MemConsensus()
    lossy = UnreliableConsensus(inner, ScriptedFaults(compare_and_set=[Outcome.LOST_ANSWER, Outcome.LOST_REQUEST]))
    examiner = Examiner(CLOCK, SeededIds(1, CLOCK), commits=1)
    assert [(finding.check, finding.grade) for finding in examiner._race(lossy, "k")] == [
        ("race", Grade.OK),
        ("answers", Grade.WARNING),
    ]
    with pytest.raises(Indeterminate):
        UnreliableConsensus(inner, ScriptedFaults(head=[Outcome.LOST_ANSWER])).head("k")


def test_a_backend_that_can_not_clean_up_is_not_probed() -> None:
    inner = MemConsensus()
    found = examine(UnreliableConsensus(inner, ScriptedFaults()))
    assert found["probe"].grade is Grade.WARNING
    assert "race" not in found
    assert list(inner.list_keys()) == []


class Corrupting(MemBlob):
    def get(self, key: str) -> bytes | None:
        data = super().get(key)
        return None if data is None else data[:-1] + b"?"


class Haunted(MemBlob):
    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        return iter([BlobMetadata(f"{prefix}stranger", 1), *super().list_keys_and_metadata(prefix)])


class Unsorted(MemBlob):
    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        return reversed(list(super().list_keys_and_metadata(prefix)))


class Undeletable(MemBlob):
    def delete(self, key: str) -> int | None:
        raise Determinate(f"access denied: {key}")


@pytest.mark.parametrize(
    ("kind", "check"),
    [(Haunted, "reachable"), (Corrupting, "throughput"), (Unsorted, "small_blobs"), (Undeletable, "probe")],
)
def test_a_sick_blob_store_is_found_out(kind: type[MemBlob], check: str) -> None:
    assert sick(examine_blob(kind()))[check] is Grade.PROBLEM


# PostgreSQL's own


def test_lacking_rights_are_named(postgres_store: PostgresStore) -> None:
    fill(postgres_store.consensus, "k", [ONE])
    schema = postgres_store.schema
    rights = f"GRANT USAGE ON SCHEMA {schema} TO {{role}}"
    role = postgres_store.server.new_role(rights)
    postgres_store.sql(f"GRANT SELECT, INSERT ON {{table}} TO {role}")
    with closing(open_consensus(postgres_store.uri(user=role))) as consensus:
        rights_found = examine(consensus)["rights"]
    assert rights_found.grade is Grade.PROBLEM
    assert rights_found.found.endswith("lacking UPDATE (is_head), DELETE")
    with closing(open_consensus(postgres_store.uri(user=role, schema=f"{schema}_2"))) as consensus:
        found = examine(consensus)
    assert found["rights"].found.endswith("does not exist; this user may not create it")
    assert sick(found).keys() == {"rights", "commit"}
    assert list(postgres_store.consensus.list_keys()) == ["k"]


def test_a_table_of_another_program_is_named(postgres_store: PostgresStore) -> None:
    postgres_store.sql(f"CREATE SCHEMA {postgres_store.schema}")
    postgres_store.sql("CREATE TABLE {table} (key text, seqno bigint, data bytea, is_head boolean)")
    found = examine(postgres_store.consensus)
    assert "lacks its unique index" in found["rights"].found
    assert found["rights"].grade is Grade.PROBLEM


def test_settings_that_bite_are_found() -> None:
    server = start_postgres(
        fsync="off", full_page_writes="off", autovacuum="off", synchronous_commit="local", max_connections="8"
    )
    try:
        server.query("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        server.query("SELECT pg_reload_conf()")
        store = PostgresStore(server)
        with closing(store.consensus):
            found = sick(examine(store.consensus))
    finally:
        server.remove()
    assert found.pop("fsync") is Grade.PROBLEM
    assert found.keys() >= {"full_page_writes", "autovacuum", "synchronous_commit"}
    assert set(found.values()) == {Grade.WARNING}


def test_a_read_only_user_is_a_problem(postgres_store: PostgresStore) -> None:
    fill(postgres_store.consensus, "k", [ONE])
    role = postgres_store.server.new_role("GRANT persist TO {role}", settings={"default_transaction_read_only": "on"})
    with closing(open_consensus(postgres_store.uri(user=role))) as consensus:
        assert sick(examine(consensus))["primary"] is Grade.PROBLEM


def test_a_pooler_is_recognised(postgres_store: PostgresStore, pgbouncer: PgBouncer) -> None:
    assert examine(postgres_store.consensus)["pooler"].found == "none in between"
    with closing(open_consensus(postgres_store.uri(port=pgbouncer.port))) as consensus:
        assert examine(consensus)["pooler"].found.startswith("a pooler in between")


# small parts


@pytest.mark.parametrize(
    ("store_ms", "before_ms", "after_ms", "grade"),
    [
        (1_000, 1_000, 1_000, Grade.OK),
        (3_001, 1_000, 1_000, Grade.WARNING),
        (-1_001, 1_000, 1_000, Grade.WARNING),
        (7_000, 1_000, 9_000, Grade.OK),  # the answer took so long that the cause is unknown
    ],
)
def test_clock_offsets(store_ms: float, before_ms: int, after_ms: int, grade: Grade) -> None:
    assert clock_offset(store_ms, before_ms, after_ms).grade is grade


def test_a_clock_of_whole_seconds_is_not_known_better() -> None:
    found = clock_offset(3_400, 1_000, 1_020, unsure_ms=500)
    assert (found.grade, found.found) == (
        Grade.OK,
        "the store's clock differs from this machine's by +2.390 s (within 0.510 s)",
    )


def test_quantiles() -> None:
    assert quantile([], 0.5) == 0.0
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([float(n) for n in range(100)], 0.99) == 99.0


def test_the_file_system_on_top_counts(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/a / ext4 rw 0 0\n"
        "server:/x /mnt/a\\040b nfs4 rw 0 0\n"
        "tmpfs /mnt tmpfs rw 0 0\n"
        "/dev/b /mnt/over ext4 rw 0 0\nserver:/y /mnt/over cifs rw 0 0\n"
    )
    found = {path: file_system_of(Path(path), mounts) for path in ("/x", "/mnt/a b/c", "/mnt/ab", "/mnt/over/c")}
    assert found == {"/x": "ext4", "/mnt/a b/c": "nfs4", "/mnt/ab": "tmpfs", "/mnt/over/c": "cifs"}
    assert file_system_of(Path("/x"), tmp_path / "absent") is None


def test_the_file_system_behind_a_link_counts(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path.resolve()}/far nfs4 rw 0 0\n")
    assert file_system_of(tmp_path / "link" / "consensus.db", mounts) == "nfs4"


@pytest.mark.parametrize(
    ("kind", "grade"), [("ext4", Grade.OK), ("fuse.s3fs", Grade.PROBLEM), ("ceph", Grade.PROBLEM), (None, Grade.OK)]
)
def test_sqlite_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, grade: Grade
) -> None:
    monkeypatch.setattr("persist_core.location.sqlite.consensus.file_system_of", lambda _: kind)
    findings = {each.check: each for each in SqliteConsensus(tmp_path / "consensus.db").diagnose(CLOCK)}
    assert findings["file_locks"].grade is grade


# the command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], postgres: PostgresServer) -> None:
    well = [f"file://{tmp_path}/b", postgres.uri(schema=postgres.new_schema())]
    assert run_command(["doctor", *well, "--commits", "5"]) == 0
    shown = capsys.readouterr().out
    assert f"blob file://{tmp_path}/b\n" in shown
    assert "consensus postgresql://***@127.0.0.1" in shown
    assert "problem" not in shown
    arguments = ["doctor", "--json", "--commits", "5", "mem:doctor", postgres.uri(password="hunter2")]
    assert run_command(arguments) == 1
    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err
    blob, consensus, unreachable = (json.loads(line) for line in captured.out.splitlines())
    assert (blob["role"], blob["healthy"], consensus["role"], consensus["healthy"]) == ("blob", True, "consensus", True)
    assert unreachable["healthy"] is False
    assert [(f["check"], f["grade"]) for f in unreachable["findings"]] == [("reachable", "problem")]
    assert unreachable["findings"][0].keys() == {"check", "grade", "found", "expected", "remedy"}


@pytest.mark.parametrize("uri", ["file://{}/typo/blob", "sqlite:///{}/typo/c.db"])
def test_what_does_not_exist_is_said_and_not_made(uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", "--commits", "5", "--json", uri.format(tmp_path)]) == 0
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert (found["exists"]["grade"], found["reachable"]["grade"]) == ("warning", "ok")
    assert found["exists"]["found"].endswith(f"does not exist; {tmp_path} was examined in its place")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "typo").write_text("a file")
    assert run_command(["doctor", uri.format(tmp_path)]) == 1
    assert "problem  exists" in capsys.readouterr().out


def test_the_command_takes_the_configured_location(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--blob-uri", f"file://{tmp_path}/b", "--consensus-uri", f"sqlite:///{tmp_path}/c.db"]
    assert run_command(["doctor", "--commits", "5", *options]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[0] != " "] == ["blob", "consensus"]
    assert run_command(["doctor", "mem:x", *options]) == 2
    assert "expected either URIs or a location" in capsys.readouterr().err
    assert run_command(["doctor", "gopher://x"]) == 2
    assert "unknown scheme 'gopher'" in capsys.readouterr().err


def test_durations_come_from_the_timer_alone() -> None:
    clock = ManualClock()
    ticks = iter(range(10_000))
    examiner = Examiner(clock, SeededIds(1, clock), commits=3, timer=lambda: float(next(ticks)))
    found = {finding.check: finding for finding in examiner.consensus(MemConsensus())}
    assert found["latency"].found == "a commit takes 1000.0 ms (p50), 1000.0 ms (p99)"
    assert found["latency"].grade is Grade.WARNING
