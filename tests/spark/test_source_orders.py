"""`order: auto` of Debezium: what each connector delivers, and what starts its numbers again."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from persist_core.config.collection import CollectionConfig
from persist_core.errors import TooManyErrors, UnclearOrder
from persist_core.schema import ERR_KIND, MISSING_ORDER
from persist_spark.frame import BAD_KEY
from persist_spark.upsert.arguments import SeenBefore
from persist_spark.upsert.eras import Eras, eras_of
from persist_spark.upsert.plan import PlannedUpsert, persistent_upsert
from tests.sampling import sample
from tests.spark.decode_feed import Feed
from tests.spark.test_sequence import Collection

COLUMNS = {"id": "bigint", "name": "string"}
KEYS = {"id": "bigint"}
HOUR = 3_600_000
LSN = "00000027:00000758:000"


def change(key: int, name: str, source: dict[str, Any], *, op: str = "u", seen: int | None = None) -> str:
    """An envelope. `seen`: the connector's clock (ms); by default a second after the database's."""
    at = source.get("ts_ms", 0) + 1000 if seen is None else seen
    row = {"id": key, "name": name}
    image = {"before": row if op == "d" else None, "after": None if op in "dt" else row}
    return json.dumps({**image, "source": source, "op": op, "ts_ms": at})


def mysql(file: int, pos: int, at: int, *, server: int = 184, row: int = 0) -> dict[str, Any]:
    place = {"file": f"mysql-bin.{file:06}", "pos": pos, "row": row, "server_id": server, "gtid": None}
    return {"connector": "mysql", "ts_ms": at, **place}


def mariadb(sequence: int | None, file: int, pos: int, at: int, *, domain: int = 0) -> dict[str, Any]:
    gtid = None if sequence is None else f"{domain}-{file}-{sequence}"
    return {**mysql(file, pos, at), "connector": "mariadb", "gtid": gtid}


def postgres(lsn: int | None, at: int, before: int | None = None) -> dict[str, Any]:
    """`before`: the commit before the record's transaction."""
    sequence = json.dumps([before and str(before), str(lsn)])
    return {"connector": "postgresql", "ts_ms": at, "lsn": lsn, "sequence": sequence}


def oracle(scn: int, at: int, redo: str = "0x000048.00000139.0010", *, commit: int | None = None) -> dict[str, Any]:
    commit_scn = commit and str(commit)
    return {"connector": "oracle", "ts_ms": at, "scn": str(scn), "commit_scn": commit_scn, "rs_id": redo, "ssn": 0}


def sqlserver(commit: int, at: int, change_lsn: str | None = f"{LSN}1", serial: int | None = 1) -> dict[str, Any]:
    place = {"commit_lsn": f"{LSN}{commit}", "change_lsn": change_lsn, "event_serial_no": serial}
    return {"connector": "sqlserver", "ts_ms": at, **place}


def db2(commit: int, at: int) -> dict[str, Any]:
    lsn = f"00000000:0000150f:{commit:016x}"
    return {"connector": "db2", "ts_ms": at, "commit_lsn": lsn, "change_lsn": lsn}


def mongodb(second: int, ord: int) -> dict[str, Any]:
    return {"connector": "mongodb", "ts_ms": second * 1000, "ord": ord}


LOGS: dict[str, list[tuple[str, dict[str, Any]]]] = {  # the records of each connector, oldest first
    "postgresql": [
        ("r", postgres(None, 50)),
        ("r", postgres(9, 50)),
        ("u", postgres(10, 10)),
        ("u", postgres(7, 10, 11)),  # its transaction ran during the snapshot
        ("u", postgres(8, 10, 11)),
        ("u", postgres(12, 10, 11)),
        ("r", {**postgres(None, 50), "snapshot": "incremental", "sequence": '["11","13"]'}),
        ("u", postgres(2**62, 10)),
    ],
    "mysql": [
        ("r", {**mysql(9, 5, 90), "server_id": 0}),
        ("u", mysql(9, 10, 1)),
        ("u", mysql(10, 4, 1)),
        ("u", mysql(10, 4, 1, row=1)),
        ("u", mysql(1_000_000, 1, 1)),
    ],
    "mariadb": [("r", mariadb(None, 1000, 5, 90)), ("u", mariadb(9, 19, 9000, 1)), ("u", mariadb(10, 1, 4, 2))],
    "sqlserver": [
        ("r", {"connector": "sqlserver", "ts_ms": 90, "commit_lsn": None}),
        ("r", sqlserver(1, 50, None, None)),
        ("u", sqlserver(1, 9)),
        ("u", sqlserver(1, 9, serial=2)),
        ("u", sqlserver(1, 9, f"{LSN}2")),
        ("u", sqlserver(2, 9)),
    ],
    "db2": [
        ("u", {"connector": "db2", "commit_lsn": "00000000:0000150f:0000000000048fca", "change_lsn": f"{LSN}1"}),
        ("u", {"connector": "db2", "commit_lsn": "00000000:0000150f:0000000000048fcb", "change_lsn": f"{LSN}0"}),
    ],
    "oracle": [
        ("r", oracle(9, 50)),
        ("u", oracle(10, 1, "0x000048.00000139.0010", commit=12)),
        ("u", oracle(10, 1, "0x000048.00000139.0190", commit=12)),
        ("u", oracle(7, 1, "0x000048.00000999.0010", commit=13)),  # its transaction ran during the snapshot
        ("u", oracle(8, 1, "0x000048.00000139.0010", commit=13)),
        ("u", oracle(100, 1, commit=100)),
    ],
    "mongodb": [("r", mongodb(1, 29)), ("u", mongodb(1, 30)), ("u", mongodb(2, 1))],
}
NO_PLACE: list[tuple[str, dict[str, Any]]] = [
    ("u", {"connector": "vitess", "vgtid": '[{"keyspace":"k","shard":"-80","gtid":"MySQL56/a:1-9"}]'}),
    ("r", {"connector": "vitess"}),
    ("u", {"connector": "informix", "commit_lsn": "91029442584", "change_lsn": "91029442580"}),
    ("u", {"connector": "postgresql", "ts_ms": 5}),
    ("u", {"connector": "postgresql", "lsn": "5x"}),
    ("u", {"connector": "mysql", "file": "mysql-bin.000001"}),
]


def test_the_order_of_each_connector(spark: SparkSession, tmp_path: Path) -> None:
    lines = [change(i, name, source, op=op) for name, log in LOGS.items() for i, (op, source) in enumerate(log)]
    lines += [change(99, "nowhere", odd, op=op) for op, odd in NO_PLACE]
    lines += ['{"id": 7, "name": "flat", "__op": "u", "__deleted": "false", "__lsn": 5}']
    lines += ['{"id": 6, "name": "flat", "__op": "r", "__deleted": "false", "__source_lsn": 4}']
    lines += ['{"id": 8, "name": "flat", "__op": "r", "__deleted": "false", "__sequence": "[null,\\"6\\"]"}']
    flat_mariadb = {"name": "mariadb flat", "__connector": "mariadb", "__file": "m.001000", "__pos": 5}
    lines += [json.dumps({"id": 0, **flat_mariadb, "__op": "r", "__gtid": None})]
    lines += [json.dumps({"id": 1, **flat_mariadb, "__op": "u", "__gtid": "0-1-9"})]
    lines += ['{"id": 99, "name": "nowhere", "__op": "r", "__deleted": "false"}']
    found = Feed(spark, tmp_path / "in").lines("debezium-json", lines[::-1], COLUMNS, order="auto")
    for name, log in LOGS.items():
        assert [row["id"] for row in found if row["name"] == name] == [*range(len(log))], name
    assert [row["id"] for row in found if row["name"] == "flat"] == [6, 7, 8]
    assert [row["id"] for row in found if row["name"] == "mariadb flat"] == [0, 1], "its snapshot has no GTID"
    errs = [row for row in found if row[ERR_KIND]]
    assert [row[ERR_KIND] for row in errs] == [MISSING_ORDER] * (len(NO_PLACE) + 1)
    assert all(row[BAD_KEY].startswith(MISSING_ORDER.encode()) for row in errs)


# Two records of a key each, in the order in which the database made them.
INCOMPARABLE = {
    "MySQL, failover": (mysql(19, 9000, HOUR), mysql(20, 4, HOUR + 1, server=185)),
    "MySQL, RESET MASTER": (mysql(19, 9000, HOUR), mysql(1, 4, 2 * HOUR)),
    "MySQL, the connector reads a replica's log": (mysql(19, 9000, HOUR), mysql(19, 8000, HOUR + 1)),
    "MariaDB, two domains": (mariadb(9, 1, 4, HOUR), mariadb(10, 1, 5, 2 * HOUR, domain=1)),
    "MariaDB, RESET MASTER": (mariadb(900, 1, 4, HOUR), mariadb(1, 1, 4, 2 * HOUR)),
    "PostgreSQL, restored": (postgres(900, HOUR), postgres(850, 2 * HOUR)),
    "Oracle, RESETLOGS": (oracle(900, HOUR), oracle(850, 2 * HOUR)),
    "SQL Server, restored": (sqlserver(9, HOUR), sqlserver(5, 2 * HOUR)),
    "Db2, restored": (db2(9, HOUR), db2(5, 2 * HOUR)),
}
HEALTHY = {
    "a statement of an hour": ((mysql(9, 1, 2 * HOUR), None), (mysql(9, 2, HOUR), 3 * HOUR)),
    "read again by the connector": ((postgres(8, HOUR), 9 * HOUR), (postgres(9, 2 * HOUR), 3 * HOUR)),
    "changed during the snapshot": ((postgres(8, 2 * HOUR), None), (postgres(9, HOUR), 3 * HOUR)),
    "MariaDB, failover": ((mariadb(9, 19, 9000, HOUR), None), (mariadb(10, 1, 4, 2 * HOUR), None)),
    "MongoDB, restored": ((mongodb(3600, 900), None), (mongodb(7200, 1), None)),
    "PostgreSQL, promoted": ((postgres(900, HOUR), None), (postgres(901, 2 * HOUR), None)),
}


@pytest.mark.parametrize("mode", sample(["sequence", "log"], 1, "restarts"))
def test_what_starts_the_numbers_again_is_found(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    lines: list[str] = []
    names = [*INCOMPARABLE, *HEALTHY]
    for key, pair in enumerate(INCOMPARABLE.values()):
        lines += [change(key, name, its_source) for name, its_source in zip("ab", pair, strict=True)]
    for key, healthy in enumerate(HEALTHY.values(), start=len(INCOMPARABLE)):
        lines += [change(key, name, source, seen=seen) for name, (source, seen) in zip("ab", healthy, strict=True)]
    random.Random(mode).shuffle(lines)
    feed = Feed(spark, tmp_path / "in")
    feed.write("a", "\n".join(lines))

    def planned(eras: Eras) -> PlannedUpsert:
        schema = feed.config("debezium-json", KEYS, order=mode).collection_schema()
        records, seen = feed.frame("debezium-json", KEYS, order=mode), SeenBefore() if mode == "sequence" else None
        return persistent_upsert(records, None, schema=schema, lower=0, upper=9, seen=seen, eras=eras)

    found = {names[json.loads(row["slot"])["id"]] for row in planned(Eras()).incomparable().collect()}
    assert found == set(INCOMPARABLE)
    assert planned(Eras(restarts_ms=(HOUR + 1,))).incomparable().collect() == []


ASKS: dict[str, Any] = {"eras": Eras(), "is_auto_order": True}


@pytest.mark.family("histories in Spark")
def test_a_failover_of_mysql_is_a_question_with_an_answer(
    spark: SparkSession, tmp_path: Path, persist_seed: int
) -> None:
    old = [change(1, "old", mysql(19, 9000, HOUR)), change(2, "kept", mysql(19, 9100, HOUR))]
    new = [change(1, "new", mysql(1, 400, 2 * HOUR, server=185)), change(3, "first", mysql(1, 500, HOUR, server=185))]
    first, then = random.Random(persist_seed).sample((old, new), 2)
    shard = Collection(spark, tmp_path, COLUMNS, "debezium-json")
    shard.deliver({"a": "\n".join(first)}, **ASKS)
    with pytest.raises(UnclearOrder, match=r"""slot \{"id":1\}: server 184 .*order: \{servers: \[184, 185\]\}"""):
        shard.deliver({"b": "\n".join(then)}, **ASKS)
    body = shard.config.model_dump(mode="json") | {"order": {"servers": [184, 185]}}
    shard.deliver({"b": "\n".join(then)}, eras=eras_of(CollectionConfig.model_validate(body)))
    assert [(row["id"], row["name"]) for row in shard.rows()] == [(1, "new"), (2, "kept"), (3, "first")]


WAITING = ["old new", "old,new", "new,old"]  # in one batch, or in two


@pytest.mark.parametrize(
    ("order", "batches"),
    sample([(order, batches) for order in ("auto", "log") for batches in WAITING], 2, "waiting rivals"),
)
@pytest.mark.family("histories in Spark")
def test_records_that_wait_are_compared_like_due_ones(
    spark: SparkSession, tmp_path: Path, order: str, batches: str
) -> None:
    """The stash keeps one of two with one time: once it is due, there is nothing left to compare."""
    places = {"old": mysql(19, 9000, HOUR), "new": mysql(1, 4, 2 * HOUR, server=185)}
    later = {name: change(1, name, place) for name, place in places.items()}
    columns = {**COLUMNS, "at": "bigint"}
    shard = Collection(
        spark, tmp_path, columns, "debezium-json", order=order, time={"source": "field", "field": "at", "unit": "ms"}
    )
    texts = [
        "\n".join(later[name].replace('"name"', '"at": 25, "name"') for name in batch.split())
        for batch in batches.split(",")
    ]
    for text in texts[:-1]:
        assert shard.deliver({"a": text}, **ASKS, may_stash=True).stats["stashed"] == 1
    with pytest.raises(UnclearOrder, match=r"order: \{servers: \[184, 185\]\}"):
        shard.deliver({"b": texts[-1]}, **ASKS, may_stash=True)
    declared = Eras(servers=("184", "185"))
    shard.deliver({"b": texts[-1]}, eras=declared, may_stash=True)
    for name in ("c", "d"):
        shard.deliver({name: change(2, "z", mysql(19, 1, HOUR)).replace('"name"', '"at": 1, "name"')}, eras=declared)
    assert [(row["id"], row["name"]) for row in shard.rows()] == [(1, "new"), (2, "z")]


@pytest.mark.family("histories in Spark")
@pytest.mark.parametrize("order", sample(["auto", "log"], 1, "snapshots"))
def test_an_incremental_snapshot_has_its_place(spark: SparkSession, tmp_path: Path, order: str) -> None:
    """As Debezium 3.4 sends it: `lsn` is null, and `sequence` holds the place at which the chunk was read."""
    place = {"connector": "postgresql", "snapshot": "incremental", "lsn": None, "sequence": '["2000","2000"]'}
    lines = [
        change(1, "old", postgres(1000, HOUR)),
        change(2, "old", postgres(1001, HOUR)),
        *[change(key, "read", {**place, "ts_ms": 2 * HOUR}, op="r") for key in (1, 2, 3)],
        change(2, "new", postgres(1990, HOUR + 1, 2010), seen=2 * HOUR + 2000),  # the connector was behind
    ]
    random.Random(order).shuffle(lines)
    shard = Collection(spark, tmp_path, COLUMNS, "debezium-json", order=order)
    shard.deliver({"a": "\n".join(lines)}, **ASKS)
    assert [(row["id"], row["name"]) for row in shard.rows()] == [(1, "read"), (2, "new"), (3, "read")]


UNPLACED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # a change, and what a snapshot read later
    "PostgreSQL": (postgres(900, HOUR), postgres(None, 2 * HOUR)),
    "MariaDB": (mariadb(9, 1, 4, HOUR), mariadb(None, 1, 5, 2 * HOUR)),
    "SQL Server": (sqlserver(9, HOUR), {"connector": "sqlserver", "ts_ms": 2 * HOUR, "commit_lsn": None}),
}


@pytest.mark.family("histories in Spark")
@pytest.mark.parametrize("name", sample([*UNPLACED], 1, "unplaced"))
def test_a_snapshot_without_a_place_is_a_question(spark: SparkSession, tmp_path: Path, name: str) -> None:
    before, read = UNPLACED[name]
    shard = Collection(spark, tmp_path, COLUMNS, "debezium-json")
    lines = [change(2, "first", read, op="r"), change(1, "old", before), change(1, "read", read, op="r")]
    shard.deliver({"a": "\n".join(lines[:2])}, **ASKS)
    with pytest.raises(UnclearOrder, match=r'a record of a snapshot.*slot \{"id":1\}.*no place at') as told:
        shard.deliver({"b": lines[2]}, **ASKS)
    assert "failover" not in str(told.value)
    restarts = re.findall(r"restarts: \[(.*?)\]", str(told.value))
    body = shard.config.model_dump(mode="json") | {"order": {"restarts": restarts}}
    shard.deliver({"b": lines[2]}, eras=eras_of(CollectionConfig.model_validate(body)))
    assert [(row["id"], row["name"]) for row in shard.rows()] == [(1, "read"), (2, "first")]


TRUNCATES = [  # the batches of a delivery: a row before the failover, a truncate after it, and one before it
    ("MySQL, failover", ["row", "cut"], "auto"),
    ("MySQL, failover", ["cut", "row"], "auto"),
    ("MySQL, failover", ["row cut"], "auto"),
    ("MySQL, failover", ["row cut"], "log"),
    ("MySQL, failover", ["cut", "before"], "auto"),
    ("PostgreSQL, restored", ["row", "cut"], "auto"),
    ("Oracle, RESETLOGS", ["row", "cut"], "auto"),
]


@pytest.mark.parametrize(("name", "batches", "order"), sample(TRUNCATES, 1, "truncates"))
@pytest.mark.family("histories in Spark")
def test_a_truncate_of_another_run_of_numbers_is_a_question(
    spark: SparkSession, tmp_path: Path, name: str, batches: list[str], order: str
) -> None:
    older, newer = INCOMPARABLE[name]
    lines = {
        "row": change(1, "old", older),
        "cut": change(0, "", newer, op="t"),
        "before": change(0, "", older, op="t"),
    }
    shard = Collection(spark, tmp_path, COLUMNS, "debezium-json", order=order)
    *first, last = ["\n".join(lines[word] for word in batch.split()) for batch in batches]
    for text in first:
        shard.deliver({"a": text}, **ASKS)
    with pytest.raises(UnclearOrder):
        shard.deliver({"b": last}, **ASKS)
    shard.deliver({"b": last}, eras=Eras(restarts_ms=(newer["ts_ms"],)))
    assert shard.rows() == []


def test_what_a_restarted_dms_task_loads_again_loses(spark: SparkSession, tmp_path: Path) -> None:
    """The documented result: rows that were changed stay, others take the value that was loaded last."""
    shard = Collection(spark, tmp_path, COLUMNS, "dms-csv")
    shard.deliver({"LOAD00000001.csv": "Op,id,name\nI,1,a\nI,2,b\n", "20260101-1.csv": "Op,id,name\nU,1,a2\n"})
    stats = shard.deliver({"LOAD00000002.csv": "Op,id,name\nI,1,again\nI,2,again\n"}).stats
    assert [(row["id"], row["name"]) for row in shard.rows()] == [(1, "a2"), (2, "again")]
    assert stats["late"] == 1, "`persist late` lists it"


def test_dms_changes_are_in_order_in_any_folders(spark: SparkSession, tmp_path: Path, persist_seed: int) -> None:
    """Partitions by date that begin later, partitions by the day of the month, and files that are delivered again."""
    dice, wanted = random.Random(persist_seed), dict.fromkeys(range(8), "loaded")
    folders = ["", "2026/02/01/", "31/01/2026/", "01/02/2026/", "z/", "LOAD1.old/"]
    files = [
        (f"{dice.choice(folders)}LOAD0000000A.csv", "Op,id,name\n" + "".join(f"I,{key},loaded\n" for key in wanted))
    ]
    for second in dice.sample(range(100_000_000), 30):
        files.append((f"20260131-{second:09}.csv", ""))
    for at, (name, _) in sorted(enumerate(files[1:], start=1), key=lambda each: each[1]):
        key, op = dice.randrange(8), dice.choice("IUUD")
        wanted = {**wanted, key: name} if op != "D" else {other: wanted[other] for other in wanted if other != key}
        files[at] = dice.choice(folders) + name, f"Op,id,name\n{op},{key},{name}\n"
    again = [(f"{dice.choice(folders)}{path.rpartition('/')[2]}", text) for path, text in files]
    shard = Collection(spark, tmp_path, COLUMNS, "dms-csv", source={"path": "**/*", "format": "dms-csv"})
    for delivered in (files[0::2], files[1::2], dice.sample(again, 15)):
        shard.deliver(dict(delivered))
    assert {row["id"]: row["name"] for row in shard.rows()} == wanted


@pytest.mark.family("histories in Spark")
def test_a_feed_that_says_no_place_is_a_question(spark: SparkSession, tmp_path: Path) -> None:
    shard = Collection(spark, tmp_path, COLUMNS, "debezium-json")
    lines = [change(1, "x", {"connector": "vitess", "vgtid": "[]"}), '{"id": 7, "__op": "u", "name": "flat"}']
    with pytest.raises(UnclearOrder, match=r"(?s)order: log.*vgtid"):
        shard.deliver({"a": lines[0]}, **ASKS)
    placed = change(2, "y", postgres(5, HOUR))
    manifest = shard.deliver({"a": "\n".join([*lines, placed])}, **ASKS)
    assert (manifest.stats["errors"], manifest.stats["inserts"]) == (2, 3), "one odd record does not stop a feed"


ODD = {  # what is wrong with a record that says no place, though it is not the place
    "an op of Cassandra": (
        {"op": "i", "after": {"id": 1}, "source": {"connector": "cassandra"}},
        "op is '...'; expected",
    ),
    "no prefix": ({"id": 1, "name": "a", "op": "c", "lsn": 10}, "add.fields.prefix"),
    "no Debezium": ({"id": 1, "name": "a"}, "neither a Debezium envelope (op)"),
}


@pytest.mark.family("histories in Spark")
@pytest.mark.parametrize("name", sample([*ODD], 1, "odd records"))
def test_another_reason_comes_before_the_question(spark: SparkSession, tmp_path: Path, name: str) -> None:
    odd, said = ODD[name]
    shard = Collection(spark, tmp_path, COLUMNS, "debezium-json")
    with pytest.raises(TooManyErrors, match=re.escape(said)) as told:
        shard.deliver({"a": json.dumps(odd)}, **ASKS, max_errors=("5%",))
    assert "order: {by" not in str(told.value)
    large = change(1, "x", oracle(2**64 + 9, HOUR))
    with pytest.raises(UnclearOrder, match=rf"(?s){re.escape(said)}.*order: .*scn of source is '{2**64 + 9}'.*2\^63"):
        shard.deliver({"a": "\n".join([json.dumps(odd), large])}, **ASKS, max_errors=("5%",))


@pytest.mark.family("histories in Spark")
def test_a_failover_of_mariadb_is_right_in_any_delivery(spark: SparkSession, tmp_path: Path, persist_seed: int) -> None:
    dice, lines, wanted = random.Random(persist_seed), list[str](), dict[int, str]()
    for sequence in range(1, 41):
        file, pos = (19, 9000 + sequence) if sequence <= 20 else (1, sequence)
        key = dice.randrange(8)
        wanted[key] = f"v{sequence}"
        lines.append(change(key, wanted[key], mariadb(sequence, file, pos, sequence * HOUR)))
    dice.shuffle(lines)
    shard = Collection(spark, tmp_path, COLUMNS, "debezium-json")
    for start in (0, 20):
        shard.deliver({f"{start}": "\n".join([*lines[start : start + 20], lines[0]])}, **ASKS)
    assert {row["id"]: row["name"] for row in shard.rows()} == wanted
