"""A location for tests of the page: a collection with history, errors and conflicts, a fork, hostile content."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persist_core.alerts.board import WatchBoard
from persist_core.alerts.health import healths
from persist_core.checkpoint.publish import publish_missing
from persist_core.compaction.merge import Merge, merge_here
from persist_core.config.thresholds import ERRORS, FRESHNESS, Threshold
from persist_core.contents.batch import BatchDescription
from persist_core.contents.derived import Correction
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.contents.stats import BatchWarning
from persist_core.handles.client import PersistClient
from persist_core.inspection.inspector import Inspector
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.conflicts import record_conflict
from persist_core.protocol.correct import correct, plan_correction
from persist_core.protocol.delta import BEGINNING
from persist_core.protocol.fork import fork
from persist_core.protocol.replay import Start
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.protocol.swap import swap
from persist_core.sample.fields import NEW
from persist_core.schema import DIFF, MISSING_ORDER, TIME, CollectionSchema, Column
from persist_core.shard.state import UpperMismatch
from persist_core.time_text import day_of, local_of
from tests.core.sources.drop_folder import collection, drop
from tests.plain_commit import ErrUpdate, Update, commit

DAY_MS = 86_400_000
CUSTOMERS = CollectionSchema(
    key=(Column("id", "bigint", nullable=False),),
    values=(Column("name", "string"), Column("city", "string"), Column("balance", "decimal(12,2)")),
)
SCRIPT = '<script>window.hacked = "script"</script>'
IMAGE = "<img src=x onerror='window.hacked = 1'>"
ATTRIBUTE = '" autofocus onfocus="window.hacked = 2" x="'
LINK = "javascript:window.hacked=3"
TERMINAL = "\x1b]0;hacked\x07 \u202egnp.exe {{ 7*7 }} ${7*7}"
HOSTILE = (SCRIPT, IMAGE, ATTRIBUTE, LINK, TERMINAL)
MENACE = CollectionSchema(
    key=(Column(f"key {IMAGE}", "string", nullable=False),),
    values=(Column(f"value {SCRIPT}", "string"), Column("__proto__", "string"), Column("constructor", "binary")),
)

COLLECTION = """
description: {description}
source:
  path: {feed}/*.jsonl
  format: json
key: id
columns: {{id: bigint, name: string, city: string, balance: "decimal(12,2)"}}
delete: {{null_value: true}}
schedule: {schedule}
start_date: 2026-01-01
freshness: {{warn: 20h, fail: 30h}}
"""
DAG_FILE = """
# airflow DAG
from pathlib import Path
from persist_airflow.actions import build_actions_dag
from persist_airflow.factory import build_dags
actions = build_actions_dag()
others = [
    build_actions_dag(dag_args={"dag_id": "team_actions"}, shards=["just-*"], actions=["fsck", "pin"]),
    build_actions_dag(dag_args={"dag_id": "elsewhere_actions"}, persist_conn_id="elsewhere"),
]
globals().update(build_dags(Path(__file__).parent / "collections"))
"""


def write_dags(folder: Path, names: tuple[str, ...] = ("customers", "menace")) -> Path:
    """A folder of DAGs with these collections; their feeds are empty."""
    (folder / "collections").mkdir(parents=True)
    (folder / "feed").mkdir()
    (folder / "shop_dag.py").write_text(DAG_FILE)
    for name in names:
        description = f"'{SCRIPT}{IMAGE.replace(chr(39), chr(34))}'" if name == "menace" else "Customers of a shop"
        text = COLLECTION.format(feed=folder / "feed", description=description, schedule='"@daily"')
        (folder / "collections" / f"{name}.yaml").write_text(text)
    return folder


def fill(client: PersistClient, *, days: int = 40) -> None:
    """Every shard."""
    fill_customers(client, days)
    fill_menace(client)
    state = client.state("customers")
    publish_missing(client, state)
    fork(client, "customers", state.commits[days // 2].checkpoint_id, "customers-before-the-sale", writer="cli/restore")
    client.open_since("customers", "view/regions")
    client.open_leased_reader("customers", lease_ms=DAY_MS)
    client.ensure_shard("just-made")  # as mint leaves a shard before its first commit
    fill_alerts(client)


def fill_alerts(client: PersistClient) -> None:
    """The findings of a watcher: `customers` and a shard that does not exist are late, one alert is acknowledged."""
    is_late = {FRESHNESS: Threshold(warn=0, fail=1)}
    rules = {
        "customers": {**is_late, ERRORS: Threshold(warn=1)},
        "menace": {ERRORS: Threshold(warn=1)},
        "not-there-yet": {FRESHNESS: Threshold(warn=0)},
    }
    board = WatchBoard(client)
    board.turn(rules, lambda: healths(Inspector(client), rules))
    board.acknowledge("menace", ERRORS, by=SCRIPT, reason=f"{IMAGE} {ATTRIBUTE}")


def fill_customers(client: PersistClient, days: int) -> None:
    """`days` daily commits up to yesterday: new customers, changes, a deletion now and then, errors, two conflicts."""
    draw, today = random.Random(7), client.clock.now_ms() // DAY_MS
    rows: dict[int, tuple[object, ...]] = {}
    for day in range(today - days, today):
        time, updates, errs = day * DAY_MS, [], []
        changed = draw.sample(sorted(rows), k=min(len(rows), draw.randrange(6)))
        deleted = changed[:1] if draw.random() < 0.3 else []
        for key in changed:
            updates.append((rows.pop(key), time, -1))
            if key not in deleted:
                rows[key] = (
                    key,
                    f"customer {key}",
                    draw.choice(["Oslo", "Lima", "Kyoto"]),
                    f"{draw.randrange(9_999)}.50",
                )
        new = range(1_000 * (day - today + days), 1_000 * (day - today + days) + draw.randrange(3, 15))
        rows |= {key: (key, f"customer {key}", "Oslo", "10.00") for key in new}
        updates += [(rows[key], time, 1) for key in (*new, *(set(changed) - set(deleted)))]
        if (today - day) % 9 == 0:
            payload = f'{{"id": {day}, "balance": "ten"}}'.encode()
            slot = f'{MISSING_ORDER} {{"file":"customers.jsonl","block":0,"row":{day}}}'.encode()
            errs = [("value", None, payload, time, 1), (MISSING_ORDER, slot, payload, time, 1)]
        stats = {
            "inserts": len(new),
            "updates": len(changed) - len(deleted),
            "deletes": len(deleted),
            "errors": len(errs),
        }
        writer = f"persist_upsert__customers/scheduled__{day}"
        commit(client, "customers", CUSTOMERS, time + DAY_MS, _decimal(updates), errs, writer=writer, stats=stats)
    state = client.state("customers")
    merge_here(client, Merge.of(client, state, state.batches[: days // 2]), attempt=client.ids.uuid7())
    for number in range(2):
        lose(client, "customers", f"persist_upsert__customers/backfill__{number}")


def fill_many(client: PersistClient, *, shards: int, commits: int) -> None:
    """`shards` shards with `commits` daily commits of a row each, up to yesterday."""
    first = client.clock.now_ms() // DAY_MS - commits
    for number in range(shards):
        for day in range(first, first + commits):
            rows: list[Update] = [((day, "customer", "Oslo", "1.00"), day * DAY_MS, 1)]
            commit(client, f"shard-{number:03d}", CUSTOMERS, (day + 1) * DAY_MS, _decimal(rows), [])


def fill_menace(client: PersistClient) -> None:
    """A shard whose names, keys, values, payloads, messages, writers and holders try to break out of the page."""
    rows: list[Update] = [((f"{n} {text}", text, text, text.encode()), 1, 1) for n, text in enumerate(HOSTILE)]
    errs: list[ErrUpdate] = [
        (text, text.encode(), text.encode() * 300, 1, 1)
        for text in (*HOSTILE, "\udcff".encode("utf-8", "ignore").decode() or "x")
    ]
    commit(client, "menace", MENACE, 5, rows, errs, writer=f"{SCRIPT}/{IMAGE}")
    commit(client, "menace", MENACE, 9, [((f"9 {IMAGE}", None, None, b"\xff\x00"), 6, 1)], writer=LINK)
    client.open_since("menace", f"view/{IMAGE}")
    lose(client, "menace", f"{ATTRIBUTE}/{SCRIPT}")


def fill_damaged(client: PersistClient) -> None:
    """A shard whose second commit of three has a manifest that cannot be read."""
    today = client.clock.now_ms() // DAY_MS
    for day in range(today - 3, today):
        rows: list[Update] = [((day, "customer", "Oslo", "1.00"), day * DAY_MS, 1)]
        commit(client, "damaged", CUSTOMERS, (day + 1) * DAY_MS, _decimal(rows), [])
    client.blob.set(client.state("damaged").commits[1].manifest_key, b"damaged")


def fill_warned(client: PersistClient) -> None:
    """A shard whose newest run has warnings."""
    day = client.clock.now_ms() // DAY_MS - 1
    found = (
        BatchWarning("check known_city", 12, ('{"id":1}', '{"id":2}')),
        BatchWarning("column balance", 1, (f'{{"id":3}}: "{SCRIPT}"',)),
        BatchWarning(NEW, 0, (SCRIPT, "color")),
    )
    rows: list[Update] = [((1, "customer", "Oslo", "1.00"), day * DAY_MS, 1)]
    stats = {"inserts": 1, "updates": 0, "deletes": 0, "errors": 0, "warnings": 13}
    commit(client, "warned", CUSTOMERS, (day + 1) * DAY_MS, _decimal(rows), stats=stats, warnings=found)


def fill_changed(client: PersistClient) -> None:
    """A shard whose schema has evolved, which was then corrected, and then rebuilt: four daily commits and two more."""
    first = client.clock.now_ms() // DAY_MS - 4
    wide = replace(CUSTOMERS, values=(*CUSTOMERS.values, Column("note", "string")))
    rows = [(n, f"customer {n}", "Oslo", "1.00") for n in range(4)]
    for day in range(4):
        known = client.state("changed").schemas.placed(wide) if day == 3 else CUSTOMERS
        updates = [((*row, *([None] if day == 3 else [])), (first + day) * DAY_MS, 1) for row in [_money(rows[day])]]
        commit(client, "changed", known, (first + day + 1) * DAY_MS, updates)
    for hidden, city in (("reprocess", "Lima"), ("rebuild", "Kyoto")):
        ours, name = client.state("changed"), f"changed~{hidden}"
        upper = ours.upper.time or 0
        corrected = [((*row[:2], city, row[3], "moved"), upper - 1, 1) for row in map(_money, rows)]
        commit(client, name, wide, upper, corrected)
        theirs = client.state(name)
        if hidden == "rebuild":
            swap(client, ours, theirs, keep_ms=None, writer="cli/rebuild ann")
        else:
            theirs = replace(theirs, schemas=ours.schemas)
            plan = plan_correction(client, ours, theirs, Start(None, BEGINNING, None))
            correct(client, plan, Correction(0, None, 0, "the cities were wrong"), writer="cli/reprocess ann")


def fill_dated(client: PersistClient, feed: Path, zone: str) -> None:
    """A shard of files with dates: one of the first day is late, the third day has none. Then a restore goes back to
    the third day, and the next commit reads the file of the fourth day again."""
    config = collection(feed, "date={date:%Y-%m-%d}/*.jsonl", time="path", timezone=zone)
    first, schema = day_of(client.clock.now_ms(), zone) - 5 * DAY_MS, config.collection_schema()
    for number, days in enumerate(([0], [0, 1], [], [3], [4])):
        if number == 4:
            state = client.state("orders")
            publish_missing(client, state)
            plan = plan_restore(client, "orders", state.commits[-2].checkpoint_id)
            assert isinstance(plan, RestorePlan)
            restore(client, plan, writer="cli/restore")
        for day in days:
            drop(feed, f"date={local_of(first + day * DAY_MS, zone).date()}/{number}.jsonl")
        minted = stages.mint(client, config, until=first + (number + 1) * DAY_MS, writer=f"w{number}")
        assert isinstance(minted, stages.Minted)
        row = dict.fromkeys(updates_schema(schema).names) | {"id": number, TIME: first + number * DAY_MS + 1, DIFF: 1}
        rows = pa.Table.from_pylist([row], schema=updates_schema(schema))
        handle = client.open_writer("orders")
        staged = handle.stage(minted.description, schema, client.ids.uuid7(), rows, errs_schema(schema).empty_table())
        handle.compare_and_append(client.staged_manifest(staged), staged)


def lose(client: PersistClient, shard: str, writer: str) -> None:
    """Record a lost append."""
    state, token = client.state(shard), client.ids.uuid7()
    lower = state.commits[-1].lower
    description = BatchDescription(shard, lower, state.upper.time, token, client.ids.uuid7(), 1, None, writer=writer)
    mismatch = UpperMismatch(lower, state.upper, state.commits[-1], is_stale=True)
    record_conflict(client.blob, client.clock, description, mismatch)


def _decimal(updates: list[Update]) -> list[Update]:
    return [(_money(row), time, diff) for row, time, diff in updates]


def _money(row: tuple[Any, ...]) -> tuple[Any, ...]:
    from decimal import Decimal

    return (*row[:3], Decimal(str(row[3])))


@contextmanager
def connected(folder: Path, conn_id: str, make: Callable[[PersistClient], Any]) -> Iterator[PersistLocation]:
    """A location that `make` has filled, under a connection that the page lists."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    location = PersistLocation(f"file://{folder}/blob", f"sqlite:///{folder}/consensus.db")
    with open_location(location) as opened:
        make(PersistClient(opened))
    extra = json.dumps({"blob_uri": location.blob_uri, "consensus_uri": location.consensus_uri})
    with pytest.MonkeyPatch.context() as environment, create_session() as session:
        name = f"AIRFLOW_CONN_{conn_id.upper()}"
        environment.setenv(name, json.dumps({"conn_type": "persist", "extra": extra}))
        session.add(Connection(conn_id=conn_id, conn_type="persist", extra=extra))
        session.commit()
        try:
            yield location
        finally:
            session.query(Connection).filter(Connection.conn_id == conn_id).delete()
