"""The settings in docs/debezium.md, each on a real Debezium, a real PostgreSQL and a real MariaDB.

Every table of settings there is read here: a setting that is listed has a test of its name.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.debezium_world import HANDBOOK, Loader, World, columns_of, compare
from tests.e2e.mariadb_source import MariaDbSource
from tests.e2e.postgres_source import KINDS, PostgresSource
from tests.e2e.source_tables import Kind, SourceColumn, SourceTable, changes
from tests.sampling import is_long
from tests.servers.debezium import compiled
from tests.servers.mariadb import start_mariadb
from tests.servers.postgres import PostgresServer, start_postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(not is_long(), reason="takes minutes (PERSIST_PROFILE=nightly)")
# The test of each setting of the handbook's first table.
TRIED = {
    "skipped.operations": "test_debeziums_own_settings_lose_values",
    "decimal.handling.mode": "test_values_as_text",
    "time.precision.mode": "test_values_as_text",
    "binary.handling.mode": "test_values_as_text",
    "interval.handling.mode": "test_values_as_text",
    "schemas.enable": "tests/e2e/test_debezium.py",
    "replace.null.with.default": "test_debeziums_own_settings_lose_values",
    "tombstones.on.delete": "tests/e2e/test_debezium.py",
    "unavailable.value.placeholder": "test_debeziums_own_settings_lose_values",
    "ExtractNewRecordState": "test_unwrapped_records",
}
# The rows of the table of MySQL and MariaDB.
TRIED_ON_MARIADB = [
    "bigint.unsigned.handling.mode: precise",
    "enable.time.adjuster: false",
    "log_bin_compress = OFF",
    "ON DELETE CASCADE",
    "no zero dates",
]


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


def messages(world: World, table: str) -> list[dict[str, Any]]:
    """The envelopes that were landed, in their order."""
    found = (world.feed / "plain" / table).rglob("part-*.jsonl")
    paths = sorted(found, key=lambda path: [int(number) for number in path.stem.split("-")[1:]])
    lines = [line for path in paths for line in path.read_text().split("\n") if line]
    return [value for line in lines if (value := json.loads(line)["value"])]


def test_every_setting_of_the_handbook_is_tried() -> None:
    section = HANDBOOK.read_text().partition("## Settings of the connector\n")[2].partition("\n## ")[0]
    listed = [re.findall("`(.*?)`", line.split("|")[1]) for line in section.splitlines() if line.startswith("| `")]
    assert [names[0] for names in listed] == list(TRIED)
    assert {name for name in TRIED.values() if "/" not in name} <= {*globals()}
    rows = HANDBOOK.read_text().partition("| set | otherwise |\n| --- | --- |\n")[2].partition("\n\n")[0].splitlines()
    assert len(rows) == len(TRIED_ON_MARIADB)
    assert all(name in row.replace("`", "") for name, row in zip(TRIED_ON_MARIADB, rows, strict=True))


def test_debeziums_own_settings_lose_values(logical: PostgresServer, consumer: Path, tmp_path: Path) -> None:
    source = PostgresSource(logical, "own_settings")
    source.query(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(12,2), m money, d date, at timestamp, zoned timestamptz,"
        " word text DEFAULT 'new', large text)",
        "INSERT INTO t VALUES (0, 1, 92233720368547758.07, '2026-01-01', '1500-01-01', '1500-01-01Z', NULL, 'x')",
    )
    world = World(
        source, [], consumer, tmp_path / "feed",
        **{
            "skipped.operations": "t",
            "event.converting.failure.handling.mode": "fail",
            "land.plain.replace.null.with.default": "true",
        },
    )  # fmt: skip
    try:
        world.begin()
        large = random.Random(1).randbytes(9_000).hex()
        source.query(
            "INSERT INTO t VALUES (1, 'NaN', 92233720368547758.07, '2026-01-01', '1500-01-01', '1500-01-01Z', NULL,"
            f" '{large}'), (2, 1, 0, 'infinity', 'infinity', 'infinity', 'x', 'x'),"
            " (3, 1, 0, '-infinity', '-infinity', '-infinity', 'x', 'x')",
            "UPDATE t SET n = 2 WHERE id = 1",
            "TRUNCATE t",
        )
        world.end()
    finally:
        world.engine.remove()
    ops = messages(world, "t")
    assert [each["op"] for each in ops] == ["r", "c", "c", "c", "u"], "skipped.operations: no truncate"
    read, inserted, infinite, negative, updated = (each["after"] for each in ops)
    old = round(datetime(1500, 1, 1, tzinfo=UTC).timestamp() * 10**6)
    assert (inserted["m"], inserted["at"]) == ("f/////////8=", old)
    assert inserted["zoned"] == "1500-01-01T00:00:00.000000Z"
    assert read["zoned"] != inserted["zoned"]
    assert read["m"] != inserted["m"], "a snapshot rounds money"
    assert read["at"] != old, "a snapshot shifts old timestamps"
    assert (read["at"] - old) % 86_400_000_000 == 0
    assert inserted["n"] is None, "NaN, whatever event.converting.failure.handling.mode says"
    assert inserted["word"] == "new", "replace.null.with.default"
    assert (infinite["at"], negative["at"]) == (9223372036825200000, -9223372036832400000)
    assert (infinite["zoned"], negative["zoned"]) == ("infinity", "-infinity")
    assert (inserted["large"], updated["large"]) == (large, "__debezium_unavailable_value")


def test_what_postgres_does_not_send(logical: PostgresServer, consumer: Path, tmp_path: Path) -> None:
    source = PostgresSource(logical, "not_sent")
    source.query(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(10,2), grid int[], amounts numeric(10,2)[],"
        " spans int4multirange, area circle)",
        "CREATE TABLE p (id int, place text, PRIMARY KEY (id, place)) PARTITION BY LIST (place)",
        "CREATE TABLE p_eu PARTITION OF p FOR VALUES IN ('eu')",
        "CREATE TABLE a (id int PRIMARY KEY, v int, words text[], days date[], sums numeric(12,2)[], sizes float8[],"
        " flags boolean[], more int GENERATED ALWAYS AS (v + 1) STORED)",
        "INSERT INTO a (id, v) VALUES (0, 1)",
        *[f"ALTER TABLE a ALTER {name} SET STORAGE EXTERNAL" for name in ("words", "days", "sums", "sizes", "flags")],
    )
    world = World(source, [], consumer, tmp_path / "feed", **{"publish.via.partition.root": "true"})
    try:
        world.begin()
        source.query(
            "INSERT INTO t VALUES (1, 9.12, '{{1,2},{3,4}}', '{1.50}', '{[1,3)}', '<(0,0),1>')",
            "ALTER TABLE t ALTER n TYPE numeric(14,4)",
            "UPDATE t SET id = 2",
            "INSERT INTO p VALUES (1, 'eu')",
            "TRUNCATE p_eu",
            "INSERT INTO a SELECT 1, 1, array_agg('w' || i), array_agg(date '2026-01-01' + i), array_agg(i),"
            " array_agg(i / 4.0), array_agg(i % 2 = 0) FROM generate_series(1, 4000) i",
            "UPDATE a SET v = 2 WHERE id = 1",
        )
        world.end()
    finally:
        world.engine.remove()
    inserted, _, updated = messages(world, "t")
    assert {name: inserted["after"].get(name) for name in ("grid", "amounts", "spans", "area")} == {
        "grid": [None, None],
        "amounts": ["AJY="],
        "spans": None,
        "area": None,
    }
    assert {"spans", "area"}.isdisjoint(inserted["after"])
    unscaled = [int.from_bytes(base64.b64decode(each["after"]["n"])) for each in (inserted, updated)]
    assert unscaled == [912, 91200], "the digits alone: the scale is in the schema"
    assert [each["op"] for each in messages(world, "p")] == ["c"], "a partition's truncate is missing"
    assert not (world.feed / "plain" / "p_eu").exists()
    read, whole, without = (each["after"] for each in messages(world, "a"))
    assert read["more"] == 2, "a snapshot has generated columns"
    assert "more" not in whole
    assert None not in whole.values()
    placeholder = "__debezium_unavailable_value"
    assert without == {"id": 1, "v": 2, "words": [placeholder], "days": [*placeholder.encode()],
                       **dict.fromkeys(("sums", "sizes", "flags"))}  # fmt: skip


def test_what_mariadb_sends_by_default_loses_values(consumer: Path, tmp_path: Path) -> None:
    server = start_mariadb(184)
    source = MariaDbSource(server)
    row = "'0001-01-01', '0000-00-00', '0000-00-00', 16777215, 'a,b', '123e4567-e89b-42d3-a456-426614170000'"
    source.query(
        "CREATE TABLE t (id int PRIMARY KEY, word varchar(400), n bigint unsigned, d date, zero date,"
        " never_null date NOT NULL, f float, e enum('a,b', 'c'), u uuid)",
        f"INSERT INTO t VALUES (0, 'snapshot', 18446744073709551615, {row})",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
    )
    world = World(source, [], consumer, tmp_path / "feed", **{"bigint.unsigned.handling.mode": "long"})
    try:
        world.begin()
        source.query(f"INSERT INTO t VALUES (1, 'stream', 18446744073709551615, {row})")
        server.query("SET GLOBAL log_bin_compress = ON")
        source.query(f"INSERT INTO t (id, word, never_null) VALUES (2, '{'x' * 300}', '2026-01-01')")
        server.query("SET GLOBAL log_bin_compress = OFF")
        source.query("INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (1, 1)", "DELETE FROM parent")
        world.end()
    finally:
        world.engine.remove()
        server.remove()
    read, inserted = (each["after"] for each in messages(world, "t"))
    assert (read["id"], inserted["id"]) == (0, 1), "the compressed event is missing"
    assert inserted["n"] == -1
    assert inserted["d"] == (datetime(2001, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days
    assert (inserted["zero"], inserted["never_null"]) == (None, 0)
    assert [each["op"] for each in messages(world, "parent")] == ["c", "d"]
    assert [each["op"] for each in messages(world, "child")] == ["c"], "the cascade's delete is missing"
    assert (read["f"], inserted["f"]) == (16777200.0, 16777215.0)
    assert read["e"] != inserted["e"], "an enum value with a comma"
    assert inserted["u"].startswith("0000"), "the zeros of the end"


_DURATION = (
    "CASE WHEN {0} IS NOT NULL THEN format('P0Y0M%sDT%sH%sM%sS', extract(day FROM {0}), extract(hour FROM {0}),"
    " extract(minute FROM {0}), trim_scale(extract(second FROM {0}))) END"
)
TEXTS = {
    "decimal.handling.mode": "string",
    "time.precision.mode": "isostring",
    "binary.handling.mode": "hex",
    "interval.handling.mode": "string",
}


def test_values_as_text(
    spark: SparkSession, logical: PostgresServer, consumer: Path, tmp_path: Path, persist_seed: int
) -> None:
    """All types with everything as text: no unit, `decimals: string` and `binary: hex`."""

    def textual(column: SourceColumn) -> SourceColumn:
        kind, config = column.kind, {**column.column}
        config.pop("unit", None)
        if column.sql.startswith("bit"):
            config["binary"] = "base64"
        if column.sql.startswith("time("):
            kind = Kind(kind.draw, "to_char({}, 'HH24:MI:SS.MS')", _shortest)
        if column.sql == "time":
            kind = Kind(kind.draw, "to_char({}, 'HH24:MI:SS.US')", _shortest)
        if column.sql == "interval":
            kind = Kind(kind.draw, _DURATION, str)
        if column.sql in ("time", "time(3)", "interval"):
            config["type"] = "string"
        return SourceColumn(column.name, column.sql, config, kind)

    columns = [textual(column) for column in columns_of("PostgreSQL", KINDS)]
    key = SourceColumn("id", "bigint", {"type": "bigint"}, KINDS["bigint"])
    table = SourceTable("everything", (key, *columns), 1, lambda number: (str(number),))
    source = PostgresSource(logical, "texts")
    source.query(table.create(), "ALTER TABLE everything REPLICA IDENTITY FULL")
    source.query("CREATE TABLE odd (id int PRIMARY KEY, n numeric(12,2))", "INSERT INTO odd VALUES (1, 'NaN')")
    world = World(source, [table], consumer, tmp_path / "feed", **TEXTS)
    chance = random.Random(persist_seed)
    try:
        world.fill(chance)
        world.begin()
        world.day(chance, 20)
    finally:
        world.engine.remove()
    assert [each["after"]["n"] for each in messages(world, "odd")] == ["NAN"]
    loader = Loader(spark, tmp_path / "blobs")
    for variant, said in (("plain", {"decimals": "string", "binary": "hex"}), ("schema", {"binary": "hex"})):
        body = table.collection(f"{variant}/everything/dt={{date:%Y-%m-%d}}/*.jsonl", said)
        loader.load(f"everything-{variant}", body, world.feed, world.engine.day)
        for day, rows in world.days.items():
            found = table.ours(loader.rows(f"everything-{variant}", day))
            compare(table, found, rows[table.name], f"{variant} at the end of {day}")


def _shortest(shown: str) -> str:
    """A time of day as Java writes it."""
    time, _, fraction = shown.partition(".")
    digits = fraction.rstrip("0")
    time = time.removesuffix(":00") if not digits and time.endswith(":00") else time
    return f"{time}{'.' + digits if digits else ''}Z"


def test_unwrapped_records(
    spark: SparkSession, logical: PostgresServer, consumer: Path, tmp_path: Path, persist_seed: int
) -> None:
    """Flattened records give the same rows, but truncates are missing from them."""
    columns = (("id", "bigint"), ("v", "integer"), ("w", "text"))
    table = SourceTable(
        "flat",
        tuple(SourceColumn(name, sql, {"type": {"integer": "int", "text": "string"}.get(sql, sql)}, KINDS[sql])
              for name, sql in columns),
        1,
        lambda number: (str(number),),
    )  # fmt: skip
    source = PostgresSource(logical, "unwrapped")
    source.query(table.create(), "ALTER TABLE flat REPLICA IDENTITY FULL")
    world = World(
        source, [table], consumer, tmp_path / "feed",
        **{
            "transforms": "unwrap",
            "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
            "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
            "transforms.unwrap.add.fields": "op,lsn,sequence,source.ts_ms,ts_ms",
        },
    )  # fmt: skip
    chance = random.Random(persist_seed)
    try:
        world.fill(chance)
        world.begin()
        for _ in range(15):
            source.run(*(changes(table, chance, parity, source.insert) for parity in (0, 1)))
        world.end()
        source.query("TRUNCATE flat")
        world.end()
    finally:
        world.engine.remove()
    loader = Loader(spark, tmp_path / "blobs")
    body = table.collection("plain/flat/dt={date:%Y-%m-%d}/*.jsonl", {})
    loader.load("flat", body, world.feed, world.engine.day)
    *days, last = sorted(world.days)
    for day in days:
        compare(table, table.ours(loader.rows("flat", day)), world.days[day]["flat"], f"flat at the end of {day}")
    assert world.days[last]["flat"] == []
    compare(table, table.ours(loader.rows("flat", last)), world.days[days[-1]]["flat"], "after a truncate")
