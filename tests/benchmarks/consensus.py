"""How long a commit takes, and how well writers share one shard, for each consensus given by its URI.

    python -m tests.benchmarks.consensus sqlite:////tmp/c.db postgresql://user:pw@host/db ...
    python -m tests.benchmarks.consensus      # on this machine: SQLite, S3 (versitygw), PostgreSQL, PgBouncer

*Commit*: compare-and-sets of a shard-sized body, one after the other, by one process. *Append*: so many processes
append to one shard through `PersistClient`, without a pause. A writer that lost stages again for the shard's new upper,
after a random while that grows with its tries and with how long one takes. Nothing may be lost: what the writers report
as appended is compared with the shard. *Tries* are calls of `compare_and_append` for each append.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from persist_core.cli.output import print_line, print_table
from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.location.consensus import CaSResult, Consensus, VersionedData
from persist_core.location.finding import Erasable
from persist_core.location.open import open_consensus, open_location
from persist_core.location.settings import PersistLocation
from persist_core.location.uri import redact_uri
from persist_core.maintenance.doctor import quantile
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.state import Committed
from tests.servers import s3
from tests.servers.lifeline import ServerFolder
from tests.servers.postgres import PgBouncer, find_pgbouncer, start_postgres

BODY_BYTES = 2_000
MAX_TRIES = 1_000  # of one append: more than that means a broken store, not a race
BACKOFF_CAP_MS = 5_000
CHILD_TIMEOUT_S = 600
SCHEMA = CollectionSchema(key=(Column("id", "bigint", nullable=False),))
COLUMNS = ("consensus", "commit p50 ms", "p99 ms", "appends/s", "tries/append", "most tries", "append p50 ms", "p99 ms")


def time_commits(consensus: Consensus, key: str, commits: int) -> list[float]:
    """Milliseconds of each of so many commits in a row."""
    times_ms, body = [], bytes(BODY_BYTES)
    for seqno in range(commits):
        new = VersionedData(seqno, body)
        start = time.perf_counter()
        result = consensus.compare_and_set(key, seqno - 1 if seqno else None, new)
        times_ms.append((time.perf_counter() - start) * 1000)
        if result is not CaSResult.COMMITTED:
            raise AssertionError(f"{consensus.uri}: commit {seqno} was refused, though nobody competes")
    return times_ms


def append(client: PersistClient, shard: str, writer: str) -> tuple[int, int]:
    """Append one empty batch of one time, wherever the shard is by then; the time and the tries it took."""
    handle = client.open_writer(shard)
    for tries in range(1, MAX_TRIES + 1):
        start = time.perf_counter()
        state = client.state(shard)
        lower = state.upper.time
        assert lower is not None
        epoch = state.newest_commit.epoch + 1 if state.newest_commit else 1
        attempt = client.ids.uuid7()
        description = BatchDescription(
            shard, lower, lower + 1, f"{writer}-{attempt}", attempt, epoch, None, writer=writer
        )
        key = handle.stage(description, SCHEMA, attempt)
        if isinstance(handle.compare_and_append(client.staged_manifest(key), key), Committed):
            return lower, tries
        try_ms = (time.perf_counter() - start) * 1000
        cap_ms = min(BACKOFF_CAP_MS, try_ms * 2**tries)
        client.clock.sleep_ms(int(client.ids.jitter() * cap_ms) + 1)
    raise AssertionError(f"writer {writer} lost {MAX_TRIES} appends in a row")


def write(client: PersistClient, shard: str, writer: str, appends: int) -> Iterator[tuple[int, int, float]]:
    """So many appends by one process: time appended, tries, milliseconds."""
    for _ in range(appends):
        start = time.perf_counter()
        lower, tries = append(client, shard, writer)
        yield lower, tries, (time.perf_counter() - start) * 1000


def race_appends(
    blob_uri: str, consensus_uri: str, shard: str, writers: int, appends: int
) -> tuple[list[tuple[int, int, float]], float]:
    """All that `writers` processes did, and the seconds it took; `AssertionError` if anything was lost or doubled."""
    with open_location(PersistLocation(blob_uri, consensus_uri)) as opened:
        client = PersistClient(opened)
        client.ensure_shard(shard)
        command = [sys.executable, "-m", "tests.benchmarks.consensus", "--write", blob_uri, consensus_uri, shard]
        children = [
            subprocess.Popen(
                [*command, f"w{n}", str(appends)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for n in range(writers)
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        start = time.perf_counter()
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
        done: list[tuple[int, int, float]] = []
        for child in children:
            assert child.stdout is not None
            done += [(lower, tries, ms) for lower, tries, ms in map(json.loads, child.stdout)]
            if child.wait(CHILD_TIMEOUT_S) != 0:
                raise AssertionError(f"a writer ended with status {child.returncode}")
        seconds = time.perf_counter() - start
        state = client.state(shard)
        if sorted(lower for lower, _, _ in done) != list(range(writers * appends)) or state.upper.time != len(done):
            raise AssertionError(f"{len(done)} appends are told, the shard's upper is {state.upper}")
        return done, seconds


def measure(uri: str, folder: Path, commits: int, writers: int, appends: int) -> list[str | float]:
    """One line of the table."""
    run = folder.name
    with closing(open_consensus(uri)) as consensus:
        commit_ms = time_commits(consensus, f"benchmark-commits-{run}", commits)
        done, seconds = race_appends((folder / "blobs").as_uri(), uri, f"benchmark-{run}", writers, appends)
        if isinstance(consensus, Erasable):
            for key in (f"benchmark-commits-{run}", f"benchmark-{run}"):
                consensus.erase(key)
    tries, append_ms = [tries for _, tries, _ in done], [ms for _, _, ms in done]
    figures = (
        quantile(commit_ms, 0.5),
        quantile(commit_ms, 0.99),
        len(done) / seconds,
        sum(tries) / len(done),
        float(max(tries)),
        quantile(append_ms, 0.5),
        quantile(append_ms, 0.99),
    )
    return [redact_uri(uri), *(round(figure, 2) for figure in figures)]


def local_uris(servers: ExitStack, folder: Path) -> Iterator[str]:
    """The URIs of the stores available on this machine; its servers run until `servers` is closed."""
    yield f"sqlite:///{folder}/consensus.db"
    if (s3.FOLDER / "versitygw").is_file():
        s3.own_environment()
        gateway = s3.S3Server("versitygw", folder / "versitygw")
        gateway.start()
        servers.callback(gateway.stop)
        yield gateway.new_uri()
    else:
        print_line("the S3 server versitygw is not built: make s3-servers", to_stderr=True)
    try:
        postgres = start_postgres()
    except pytest.skip.Exception as missing:
        print_line(str(missing), to_stderr=True)
        return
    servers.callback(postgres.remove)
    yield postgres.uri()
    program = find_pgbouncer()
    if program is None:
        print_line("PgBouncer is not installed", to_stderr=True)
        return
    bouncer = PgBouncer(program, postgres, ServerFolder("pgbouncer"))
    servers.callback(bouncer.remove)
    yield postgres.uri(port=bouncer.port)


def write_in_child(location: PersistLocation, shard: str, writer: str, appends: int) -> None:
    """`write` for another process: says "ready", waits for the end of stdin, then prints one JSON line an append."""
    with open_location(location) as opened:
        client = PersistClient(opened)
        append(client, f"{shard}-{writer}", writer)  # so that the race does not measure imports and first connections
        if isinstance(opened.consensus, Erasable):
            opened.consensus.erase(f"{shard}-{writer}")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
        for appended in write(client, shard, writer, appends):
            sys.stdout.write(json.dumps(appended) + "\n")


def main(argv: Sequence[str]) -> None:
    """See the module's first lines."""
    if argv[:1] == ["--write"]:
        blob_uri, consensus_uri, shard, writer, count = argv[1:]
        write_in_child(PersistLocation(blob_uri, consensus_uri), shard, writer, int(count))
        return
    parser = argparse.ArgumentParser(prog="consensus", description="Commits and racing appends, by consensus.")
    parser.add_argument("uris", nargs="*", metavar="URI", help="(default: what this machine has)")
    parser.add_argument("--commits", type=int, default=1_000, help="commits in a row (default 1000)")
    parser.add_argument("--writers", type=int, default=8, help="processes that append to one shard (default 8)")
    parser.add_argument("--appends", type=int, default=25, help="appends by each of them (default 25)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="persist-benchmark-") as scratch, ExitStack() as servers:
        uris = options.uris or list(local_uris(servers, Path(scratch)))
        sizes = (options.commits, options.writers, options.appends)
        rows = [measure(uri, Path(scratch) / f"{n}-{Path(scratch).name}", *sizes) for n, uri in enumerate(uris)]
    title = f"{options.commits} commits; {options.writers} writers, {options.appends} appends each, none lost"
    print_table(COLUMNS, rows, title=title)


if __name__ == "__main__":
    main(sys.argv[1:])
