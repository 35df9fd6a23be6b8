"""Days of random changes in a real database, through a real Debezium, end each day with the database's own rows.

    transactions --database--> log --Debezium, killed now and then--> feed by day --our job--> table as of each day

The columns have every type that docs/debezium.md lists, and the types that it says for them.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e import mariadb_source, postgres_source
from tests.e2e.debezium_world import FIRST, SOURCES, Loader, World, check, columns_of, compare, tables_of
from tests.sampling import is_long, sample
from tests.servers.debezium import VARIANTS, compiled
from tests.servers.lifeline import wait_until
from tests.servers.mariadb import start_mariadb
from tests.servers.postgres import PostgresServer, start_postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POSTGRES_NAMES = {"int": "integer", "bigint": "bigint", "string": "text", "large": "text json jsonb bytea text[]"}
MARIADB_NAMES = {"int": "int", "bigint": "bigint", "string": "varchar(20)", "large": "text longtext json blob"}


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine's program."""
    return compiled(tmp_path_factory.mktemp("debezium"))


@pytest.fixture(scope="module")
def logical() -> Iterator[PostgresServer]:
    """A PostgreSQL that lets its changes be read."""
    server = start_postgres(wal_level="logical")
    yield server
    server.remove()


@pytest.fixture
def world(request: pytest.FixtureRequest, consumer: Path, logical: PostgresServer, tmp_path: Path) -> Iterator[World]:
    """Tables of PostgreSQL with the replica identity of `request.param`; the engine does not run."""
    identity = str(request.param)
    source = postgres_source.PostgresSource(logical, f"identity_{identity}")
    kinds = postgres_source.KINDS
    tables = tables_of(columns_of("PostgreSQL", kinds), kinds, POSTGRES_NAMES)
    tables = [replace(table, sends_all=identity == "full") for table in tables]
    for table in tables:
        source.query(table.create(), f"ALTER TABLE {table.name} REPLICA IDENTITY {identity}")
    found = World(source, tables, consumer, tmp_path / "feed")
    yield found
    found.engine.remove()


@pytest.mark.family("days of a source")
@pytest.mark.parametrize("world", sample(["full", "default"], 1, "replica identity"), indirect=True)
def test_each_day_is_postgresqls(spark: SparkSession, world: World, tmp_path: Path, persist_seed: int) -> None:
    """In the order that a file has by default; a row keeps the values that are not sent."""
    chance, loader = random.Random(persist_seed), Loader(spark, tmp_path / "blobs")
    some = list(zip(world.tables, chance.sample(list(VARIANTS), len(world.tables)), strict=True))
    world.fill(chance)
    world.begin()
    days = 8 if is_long() else 2
    for day in range(days):
        world.day(chance, 40 if is_long() else 20, kills=day % 2)
        if is_long() or day == days - 1:
            check(world, loader, some)
    if is_long():
        check(world, loader, product(world.tables, VARIANTS))
        check(world, Loader(spark, tmp_path / "log"), product(world.tables[1:2], ["plain"]), order="log")


@pytest.mark.skipif(not is_long(), reason="takes minutes (PERSIST_PROFILE=nightly)")
@pytest.mark.parametrize("world", ["full", "default"], indirect=True)
def test_what_comes_late_and_twice_ends_with_postgresqls_rows(
    spark: SparkSession, world: World, tmp_path: Path, persist_seed: int
) -> None:
    """A value that was not sent is the one from before in the database's order, however its record was delivered."""
    chance = random.Random(persist_seed)
    world.fill(chance)
    world.begin()
    for day in range(4):
        world.day(chance, 40, kills=day % 2)
    check_late(world, Loader(spark, tmp_path / "blobs"), chance)


@pytest.mark.skipif(not is_long(), reason="takes minutes (PERSIST_PROFILE=nightly)")
@pytest.mark.parametrize("world", ["full"], indirect=True)
def test_changes_that_ran_while_a_snapshot_was_taken(
    spark: SparkSession, world: World, logical: PostgresServer, tmp_path: Path
) -> None:
    """The snapshot does not see them, although its position is higher than theirs."""
    found = dict.fromkeys(("initial starting point", "initial consistent point", "found consistent point"), 0)
    found = {words: logical.log().count(words) for words in found}

    def reached(words: str) -> None:
        wait_until(lambda: logical.log().count(words) > found[words], what=words, timeout_ms=60_000)

    moving = next(table for table in world.tables if table.name == "moving")
    world.source.query("INSERT INTO moving VALUES ('a', 1, 'old'), ('b', 1, 'old')")
    with contextlib.ExitStack() as stack:
        database = world.source.settings["database.dbname"]
        first, second, other, late = (stack.enter_context(logical.connect(database=database)) for _ in range(4))
        for session, statement, words in (
            (first, "SELECT txid_current()", "initial starting point"),
            (second, "SELECT txid_current()", "initial consistent point"),
            (late, "UPDATE moving SET v = 2 WHERE code = 'a'", "found consistent point"),
        ):
            session.execute("BEGIN")
            session.execute(statement.encode())
            if session is first:
                world.engine.start()
            elif session is second:
                first.execute("COMMIT")
            else:
                second.execute("COMMIT")
            reached(words)
        other.execute("UPDATE moving SET v = 3 WHERE code = 'b'")
        other.execute("COMMIT")
        late.execute("COMMIT")
    world.source.mark(str(FIRST))
    world.engine.wait_for(str(FIRST))
    world.end()
    check(world, Loader(spark, tmp_path / "blobs"), [(moving, "plain")])


@pytest.mark.skipif(not is_long(), reason="takes minutes (PERSIST_PROFILE=nightly)")
def test_an_incremental_snapshot_between_changes(
    spark: SparkSession, consumer: Path, logical: PostgresServer, tmp_path: Path
) -> None:
    """Its records have no `lsn`. It brings the row that was there before the connector, and takes no change back."""
    source = postgres_source.PostgresSource(logical, "incremental")
    kinds = postgres_source.KINDS
    moving = tables_of(columns_of("PostgreSQL", kinds), kinds, POSTGRES_NAMES)[2]
    source.query(moving.create(), "CREATE TABLE signals (id text PRIMARY KEY, type text, data text)")
    source.query("INSERT INTO moving VALUES ('a', 1, 'old'), ('b', 1, 'old'), ('c', 1, 'old'), ('d', 1, 'old')")
    settings = {"signal.data.collection": "public.signals", "snapshot.mode": "no_data"}
    world = World(source, [moving], consumer, tmp_path / "feed", **settings)
    tables = '{"data-collections": ["public.moving"], "type": "incremental"}'
    try:
        world.engine.start()
        wait_until(lambda: not source.is_free(), what="the engine's session", timeout_ms=60_000)
        source.query("UPDATE moving SET v = 2 WHERE code = 'a'", "DELETE FROM moving WHERE code = 'd'")
        source.mark(str(FIRST))
        world.engine.wait_for(str(FIRST))
        source.query(f"INSERT INTO signals VALUES ('1', 'execute-snapshot', '{tables}')")
        landed = tmp_path / "feed/plain/moving"
        wait_until(
            lambda: any('"code":"c"' in path.read_text() for path in landed.rglob("*.jsonl")),
            what="the snapshot",
            timeout_ms=60_000,
        )
        source.query("UPDATE moving SET v = 3 WHERE code = 'b'")
        world.end()
        check(world, Loader(spark, tmp_path / "blobs"), [(moving, "plain")])
    finally:
        world.engine.remove()


@pytest.mark.skipif(not is_long(), reason="takes minutes (PERSIST_PROFILE=nightly)")
def test_each_day_is_mariadbs_and_a_replica_takes_over(
    spark: SparkSession, consumer: Path, tmp_path: Path, persist_seed: int
) -> None:
    """The binlog's numbers pass 999999; then a replica takes over, whose numbers are others."""
    chance, loader = random.Random(persist_seed), Loader(spark, tmp_path / "blobs")
    server = start_mariadb(184)
    replica = server.replica(185)
    source = mariadb_source.MariaDbSource(server)
    kinds = mariadb_source.KINDS
    tables = tables_of(columns_of("MariaDB", kinds), kinds, MARIADB_NAMES)
    source.query(*(table.create() for table in tables))
    world = World(source, tables, consumer, tmp_path / "feed")
    try:
        world.fill(chance)
        world.begin()
        for day in range(3):
            world.day(chance, 30, kills=day % 2)
        # Each commit of the table with all types costs as much processor time as all of the databases' work.
        small = tables[1:]
        check(world, loader, zip(small, chance.sample(list(VARIANTS), len(small)), strict=True))
        replica.take_over(server)
        source.server = replica
        world.engine.move_to(replica.port)
        world.restart()
        # The connector stops at a server that has written events of its own.
        wait_until(replica.is_read, what="the engine's session on the replica", timeout_ms=120_000)
        world.day(chance, 30)
        check(world, loader, product(tables, VARIANTS))
        check_late(world, loader, chance)
        check(world, Loader(spark, tmp_path / "positions"), product(small, ["plain"]), order="position")
    finally:
        world.engine.remove()
        for each in (server, replica):
            each.remove()


def check_late(world: World, loader: Loader, chance: random.Random) -> None:
    """The feed, delivered on any later day and half of it twice, ends with the same rows."""
    days = sorted(world.days)
    for table in world.tables:
        for folder in (world.feed / "plain" / table.name).iterdir():
            later = days[days.index(folder.name.removeprefix("dt=")) :]
            for number, path in enumerate(sorted(folder.iterdir())):
                for day in chance.sample(later, min(len(later), 1 + number % 2)):
                    to = world.feed / "late" / table.name / f"dt={day}" / f"{chance.randrange(10**6)}-{path.name}"
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, to)
        # A record that comes before the one that it keeps a value of is an err meanwhile.
        limits = {"max_errors": 0 if table.sends_all else 1000}
        body = table.collection(f"late/{table.name}/dt={{date:%Y-%m-%d}}/*.jsonl", SOURCES["plain"], limits=limits)
        # Two commits of the table with all types: they are the dear ones, and another table has its large values.
        commits = days[-1:] if table is world.tables[0] else days[1:]
        for until in (*commits, world.engine.day):
            loader.load(f"{table.name}-late", body, world.feed, until)
        found = table.ours(loader.rows(f"{table.name}-late", days[-1]))
        compare(table, found, world.days[days[-1]][table.name], f"{table.name}, delivered late")
