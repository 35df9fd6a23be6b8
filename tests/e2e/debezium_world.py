"""A source database, the Debezium that lands its changes by day, and collections of its tables.

World: changes of a day --source database--> Debezium, killed now and then --> feed
Loader: feed --our job--> table as of each day
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from persist_core.config.collection import CollectionConfig
from persist_core.config.yaml_text import parse_yaml
from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.spark_job.spec import JobSpec
from persist_core.time_text import parse_time
from tests.e2e.source_tables import Kind, Row, SourceColumn, SourceTable, changes
from tests.one_run import run_one
from tests.servers.debezium import Debezium
from tests.servers.lifeline import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HANDBOOK = Path(__file__).resolve().parents[2] / "docs" / "debezium.md"
FIRST = date(2026, 1, 1)
# What the collection file has to say of each variant, with Debezium's own settings.
SOURCES: dict[str, dict[str, str]] = {
    "plain": {"decimals": "precise", "binary": "base64"},
    "schema": {},
    "bare": {"binary": "base64"},
}


class Source(Protocol):
    """A database whose changes Debezium reads. `insert` leaves a row alone that is there."""

    insert: str

    @property
    def settings(self) -> dict[str, str]:
        """The connector's."""

    def query(self, *statements: str) -> list[Any]:
        """Run statements; the rows of the last."""

    def run(self, *transactions: Iterable[str]) -> None:
        """Run transactions, at the same time if the database's log depends on that."""

    def rows(self, table: SourceTable) -> list[Row]:
        """All rows of a table now."""

    def mark(self, day: str) -> None:
        """Begin a day."""

    def is_free(self) -> bool:
        """True if an engine can start."""


def columns_of(database: str, kinds: Mapping[str, Kind]) -> list[SourceColumn]:
    """A column of each type in the handbook's table of a database, as that table says."""
    section = HANDBOOK.read_text().partition(f"### Types of {database}\n")[2].partition("\n#")[0]
    found: list[SourceColumn] = []
    for types, column in re.findall(r"^\| (`.*?) \| `(.*?)` \|", section, re.MULTILINE):
        said = parse_yaml(f"column: {column}".encode())["column"]
        for sql in re.findall("`(.*?)`", types):
            config = {"type": said} if isinstance(said, str) else said
            found.append(SourceColumn(f"c{len(found)}", sql, config, kinds[sql]))
    assert {column.sql for column in found} == set(kinds), "the handbook lists what is tried, and nothing else"
    return found


def tables_of(columns: list[SourceColumn], kinds: Mapping[str, Kind], names: Mapping[str, str]) -> list[SourceTable]:
    """All types behind a number as the key; large values behind a key of two columns; a key that often changes."""
    integer, big, text = names["int"], names["bigint"], names["string"]

    def column(name: str, sql: str, type_name: str) -> SourceColumn:
        return SourceColumn(name, sql, {"type": type_name}, kinds[sql])

    large = [each for each in columns if each.sql in names["large"].split()]
    return [
        SourceTable("everything", (column("id", big, "bigint"), *columns), 1, lambda n: (str(n * 1_000_003),)),
        SourceTable(
            "large",
            (column("word", text, "string"), column("number", integer, "int"), *large),
            2,
            lambda n: (f"'é{n // 3}'", str(n % 3)),
        ),
        SourceTable(
            "moving",
            (
                column("code", text, "string"),
                column("v", integer, "int"),
                SourceColumn("w", text, {"type": "string"}, kinds[text], "DEFAULT 'new'"),
            ),
            1,
            lambda n: (f"'{n:05}'",),
        ),
    ]


class World:
    """A source, the engine that lands its changes, and collections of its tables, each of one variant of the feed."""

    def __init__(self, source: Source, tables: list[SourceTable], consumer: Path, feed: Path, **settings: str) -> None:
        self.source, self.tables, self.feed = source, tables, feed
        self.engine = Debezium(consumer, {**source.settings, **settings}, feed, str(FIRST))
        self.days: dict[str, dict[str, list[Row]]] = {}  # the rows of each table at the end of each day

    def day(self, chance: random.Random, transactions: int, *, kills: int = 0) -> str:
        """A day of changes; the engine dies meanwhile. Returns the next day, which has begun."""
        deaths = {chance.randrange(transactions) for _ in range(kills)}
        for number in range(transactions):
            table, other = chance.choice(self.tables), chance.choice(self.tables)
            if chance.random() < 0.02:
                self.source.query(f"TRUNCATE {table.name}")
            self.source.run(*(changes(each, chance, parity, self.source.insert)
                              for parity, each in enumerate((table, other))))  # fmt: skip
            if number in deaths:
                self.restart()
        return self.end()

    def begin(self) -> str:
        """Start the engine, which takes a snapshot of what is there, and end the first day."""
        self.engine.start()
        self.source.mark(str(FIRST))
        self.engine.wait_for(str(FIRST))  # so the mark of the next day is not part of the snapshot
        return self.end()

    def fill(self, chance: random.Random) -> None:
        """Rows for the snapshot."""
        for number in range(20):
            table = self.tables[number % len(self.tables)]
            self.source.run(*(changes(table, chance, parity, self.source.insert) for parity in (0, 1)))

    def restart(self) -> None:
        """Kill the engine and start it again."""
        self.engine.kill()
        wait_until(self.source.is_free, what="the end of the killed engine's session")
        self.engine.start()

    def end(self) -> str:
        """End the day: note the rows, and wait until all of the day is landed."""
        today = self.engine.day
        self.days[today] = {table.name: self.source.rows(table) for table in self.tables}
        tomorrow = str(date.fromisoformat(today) + timedelta(1))
        self.source.mark(tomorrow)
        self.engine.wait_for(tomorrow)
        return tomorrow


class Loader:
    """Brings collections up to date in the session's Spark."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.client = PersistClient(OpenLocation(FileBlob(folder), MemConsensus()))

    def load(self, name: str, body: Mapping[str, Any], base: Path, until: str) -> None:
        """Bring it up to date."""
        from persist_spark.upsert.job import run_write_job

        config = CollectionConfig.model_validate({"name": name, "base_dir": str(base), **body})

        def write(description: BatchDescription) -> str:
            attempt = self.client.ids.uuid7()
            run_write_job(self.spark, JobSpec(description, config, attempt), self.client.location)
            return manifest_key(name, attempt)

        said: list[str] = []
        run_one(self.client, config, until=parse_time(until), write=write, say=said.append)

    def rows(self, name: str, day: str) -> list[dict[str, Any]]:
        """The rows at the end of a day. Raises `AssertionError` if there are errs."""
        reader, at = self.client.open_reader(name), parse_time(day)
        errs = reader.errors(at).to_pylist()
        assert not errs, [(err["_persist_err_kind"], err["_persist_err_message"]) for err in errs[:5]]
        found: list[dict[str, Any]] = reader.snapshot(at).to_pylist()
        return found


def check(world: World, loader: Loader, chosen: Iterable[tuple[SourceTable, str]], **fields: Any) -> None:
    """Bring a collection of each table and variant up to date, and compare each day. `fields` are more of its file."""
    for table, variant in chosen:
        name = f"{table.name}-{variant}"
        path = f"{variant}/{table.name}/dt={{date:%Y-%m-%d}}/*.jsonl"
        loader.load(name, table.collection(path, SOURCES[variant], **fields), world.feed, world.engine.day)
        for day, rows in world.days.items():
            compare(table, table.ours(loader.rows(name, day)), rows[table.name], f"{name} at the end of {day}")


def compare(table: SourceTable, found: list[Row], wanted: list[Row], what: str) -> None:
    """Raise `AssertionError` with the first values that differ."""
    if found == wanted:
        return
    ours, theirs = ({row[: table.keys]: row for row in rows} for rows in (found, wanted))
    told = [f"{key}: only in one" for key in ours.keys() ^ theirs.keys()]
    for key in ours.keys() & theirs.keys():
        pairs = zip(table.columns, ours[key], theirs[key], strict=True)
        told += [f"{key} {column.sql}: {one!r:.80} != {two!r:.80}" for column, one, two in pairs if one != two]
    raise AssertionError(f"{what}: {told[:8]}")
