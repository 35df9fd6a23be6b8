"""Several runs of a log's numbers, in the stash, after erasures and under declarations that change, against an oracle.

    records, in the true order, of several runs ──shuffled──> batches, erasures ──> the newest of each key is there

Each batch declares some of the runs; if it asks, all of them. So whatever is declared, nothing may be decided wrongly.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchManifest
from persist_core.contents.erased import highest
from persist_core.contents.operator_state import OrderFacts, OrderKey
from persist_core.errors import RunFailed, UnclearOrder
from persist_core.maintenance.erase import erase
from persist_spark.connect import new_session
from persist_spark.order_memory import Memory
from persist_spark.session import OUR_PLANS, use
from persist_spark.upsert.eras import Eras, eras_of
from tests.sampling import sample
from tests.spark.staged_shard import SHARD
from tests.spark.test_sequence import Collection
from tests.spark.test_source_orders import HOUR, change, mariadb, mysql

SCHEMA = CollectionConfig.model_validate(
    {"name": SHARD, "source": {"path": "*", "format": "debezium-json"}, "key": "id", "columns": {"id": "bigint"}}
).collection_schema()
COLUMNS = {"id": "bigint", "name": "string", "at": "bigint"}
RUNS, RECORDS, KEYS, TIMES = 3, 18, 2, 30
SERVERS = tuple(str(182 + run) for run in range(RUNS))


@pytest.fixture
def own(spark: SparkSession) -> SparkSession:
    """A session with the settings of a job's plans."""
    session = new_session(spark)
    use(session, OUR_PLANS)
    return session


@dataclass
class Feed:
    """Records by their rank in the true order: the numbers of each run are below all numbers of the run before it."""

    has_servers: bool
    dice: random.Random
    truncates: bool
    keys: dict[int, int | None] = field(default_factory=dict)  # by rank; `None`: a truncate
    deletes: set[int] = field(default_factory=set)

    def text(self, rank: int) -> str:
        key = self.keys[rank] = None if self.truncates and self.dice.random() < 0.05 else self.dice.randrange(KEYS)
        is_delete = key is not None and not self.truncates and self.dice.random() < 0.2
        if is_delete:
            self.deletes.add(rank)
        run = rank * RUNS // RECORDS
        server = int(SERVERS[run]) if self.has_servers else 184
        source = mysql(20 - run, rank, (rank + 1) * HOUR, server=server)
        row = None if key is None else {"id": key, "name": f"v{rank}", "at": self.dice.randrange(TIMES)}
        images = {"before": row, "after": None} if is_delete else {"before": None, "after": row}
        op = "t" if key is None else "d" if is_delete else "u"
        return json.dumps({**images, "source": source, "op": op, "ts_ms": source["ts_ms"] + 1000})

    def declared(self) -> Eras:
        """A part of the answer: a user may declare too little, and correct that."""
        first, last = sorted(self.dice.choices(range(RUNS + 1), k=2))
        return self.answer(first, last)

    def answer(self, first: int = 0, last: int = RUNS) -> Eras:
        if self.has_servers:
            return Eras(servers=SERVERS[first:last])
        begins = [(run * RECORDS // RUNS + 1) * HOUR for run in range(1, RUNS)]
        return Eras(restarts_ms=tuple(begins[first:last]))


def deliver(shard: Collection, text: str, eras: Eras, answer: Eras, **options: Any) -> BatchManifest:
    try:
        return shard.deliver({"f": text}, eras=eras, **options)
    except UnclearOrder:
        return shard.deliver({"f": text}, eras=answer, **options)


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("has_servers", [False, True])
@pytest.mark.family("histories in Spark")
def test_the_newest_record_of_a_key_wins_in_any_delivery(
    own: SparkSession, tmp_path: Path, persist_seed: int, has_servers: bool, truncates: bool
) -> None:
    dice = random.Random(f"{persist_seed}/{has_servers}/{truncates}")
    feed = Feed(has_servers, dice, truncates)
    shard = Collection(own, tmp_path, COLUMNS, "debezium-json", order={"keep_deleted": "all"}, time={"field": "at"})
    texts = {rank: feed.text(rank) for rank in range(RECORDS)}
    erased: dict[int, int] = {}  # the highest rank of each erased key
    counting: set[int] = set()
    waiting = dice.sample(range(RECORDS), RECORDS)
    done: list[int] = []
    while waiting or shard.shard.upper <= TIMES:
        size = dice.randrange(5, 10)
        again = dice.sample(done, min(len(done), 2))
        batch, waiting = waiting[:size] + again, waiting[size:]
        done += batch
        counting |= {rank for rank in batch if rank > erased.get(feed.keys[rank] or 0, -1) or feed.keys[rank] is None}
        text = "\n".join(texts[rank] for rank in dice.sample(batch, len(batch)))
        deliver(shard, text, feed.declared(), feed.answer(), is_delta=dice.random() < 0.5)
        key = dice.randrange(KEYS)
        known = [rank for rank in done if feed.keys[rank] == key]
        if known and dice.random() < 0.3:
            try:
                erase(shard.shard.client, SHARD, [(key,)], by="me", reason="asked")
            except RunFailed:  # records wait for the time that it would commit at: a run comes first
                continue
            shard.shard.go_on()
            erased[key] = max(known)
            counting -= set(known)
    floor = max((rank for rank in counting if feed.keys[rank] is None), default=-1)
    wanted = {}
    for key in range(KEYS):
        newest = max((rank for rank in counting if feed.keys[rank] == key), default=-1)
        if newest > floor and newest not in feed.deletes:
            wanted[key] = f"v{newest}"
    assert {row["id"]: row["name"] for row in shard.rows()} == wanted


def line(key: int, name: str, source: dict[str, Any], at: int) -> str:
    row = {"id": key, "name": name, "at": at}
    return json.dumps({"before": None, "after": row, "source": source, "op": "u", "ts_ms": source["ts_ms"] + 1000})


OLD, NEW = mysql(19, 9000, HOUR), mysql(1, 4, 2 * HOUR, server=185)
BOTH = Eras(servers=("184", "185"))


@pytest.fixture
def timed(own: SparkSession, tmp_path: Path) -> Collection:
    return Collection(own, tmp_path, COLUMNS, "debezium-json", time={"field": "at"})


@pytest.mark.parametrize("order", sample(["auto", "log"], 1, "records of two servers that wait"))
@pytest.mark.family("histories in Spark")
def test_records_that_wait_are_a_question_too(own: SparkSession, tmp_path: Path, persist_seed: int, order: str) -> None:
    shard = Collection(own, tmp_path, COLUMNS, "debezium-json", order=order, time={"field": "at"})
    apart, same = random.Random(persist_seed).sample([line(1, "old", OLD, 25), line(1, "new", NEW, 25)], 2)
    together = "\n".join(
        line(2, json.loads(each)["after"]["name"], json.loads(each)["source"], 26) for each in (apart, same)
    )
    with pytest.raises(UnclearOrder):
        shard.deliver({"f": together}, eras=Eras())
    shard.deliver({"f": f"{apart}\n{together}"}, eras=BOTH)
    with pytest.raises(UnclearOrder):
        shard.deliver({"f": same}, eras=Eras())
    shard.deliver({"f": same}, eras=BOTH, is_delta=True)
    shard.deliver({"f": line(9, "z", NEW, 21)}, eras=BOTH)
    assert [(row["id"], row["name"]) for row in shard.rows()] == [(1, "new"), (2, "new"), (9, "z")]


@pytest.mark.family("histories in Spark")
def test_what_waits_is_ranked_by_the_servers_of_now(timed: Collection) -> None:
    """The stored era of the older record is the one that the newer record has now."""
    timed.deliver({"f": line(1, "old", OLD, 35)}, eras=Eras(servers=("183", "184")))
    timed.deliver({"f": line(1, "new", NEW, 35)}, eras=BOTH, is_delta=True)
    timed.deliver({"f": line(9, "z", NEW, 21)}, eras=BOTH, is_delta=False)  # a full state
    timed.deliver({"f": line(9, "z", NEW, 31)}, eras=BOTH)
    assert [(row["id"], row["name"]) for row in timed.rows()] == [(1, "new"), (9, "z")]


DECLARED = [
    (Eras(), BOTH),
    (BOTH, BOTH),
    (Eras(), Eras(restarts_ms=(2 * HOUR,))),
    *[(Eras(restarts_ms=(2 * HOUR,)),) * 2],
]


@pytest.mark.parametrize(("before", "after"), sample(DECLARED, 1, "erasures before a failover"))
@pytest.mark.family("histories in Spark")
def test_a_record_of_the_next_run_is_new_consent(timed: Collection, before: Eras, after: Eras) -> None:
    timed.deliver({"f": "\n".join([line(4711, "old", OLD, 1), line(2, "kept", OLD, 1)])}, eras=before)
    erase(timed.shard.client, SHARD, [(4711,)], by="me", reason="asked")
    timed.shard.go_on()
    kept = (2, "kept")
    with pytest.raises(UnclearOrder, match="erased") as caught:
        timed.deliver({"f": line(4711, "new", NEW, 11)}, eras=Eras())
    assert "4711" not in str(caught.value)
    assert timed.deliver({"f": line(4711, "old", OLD, 12)}, eras=after).stats["skipped"] == 1
    assert [(row["id"], row["name"]) for row in timed.rows()] == [kept]
    timed.deliver({"f": "\n".join([line(4711, "new", NEW, 99), line(4711, "new", NEW, 22)])}, eras=after)
    assert [(row["id"], row["name"]) for row in timed.rows()] == [kept, (4711, "new")]


def order_of(dice: random.Random) -> OrderKey:
    server, clock = dice.choice(["184", "185", None]), dice.choice([*range(6), None])
    return (dice.choice([None, 1, 2]), dice.randrange(5), dice.randrange(2), None, 0, "f", 0, 0, server, clock, clock)


def declarations() -> list[Eras]:
    servers = [Eras(servers=each) for n in range(3) for each in itertools.permutations(["184", "185"], n)]
    times = [Eras(restarts_ms=each) for n in range(3) for each in itertools.combinations(range(6), n)]
    return [*servers, *times]


def rank(order: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [(cell is not None, cell) for cell in order[: len(SCHEMA.order or ())]]


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_an_erasure_keeps_what_may_be_the_highest(persist_seed: int, count: int) -> None:
    dice = random.Random(f"{persist_seed}/{count}")
    for _ in range(100):
        orders = [order_of(dice) for _ in range(count)]
        kept = highest(orders, SCHEMA)
        assert set(kept) <= set(orders)
        for eras in declarations():
            ranks = [max(rank(eras.ranked(each)) for each in some) for some in (orders, kept)]
            assert ranks[0] == ranks[1], (orders, eras)


def test_the_floor_is_the_highest_truncate_of_now(persist_seed: int) -> None:
    dice = random.Random(persist_seed)
    for _ in range(100):
        orders = [order_of(dice) for _ in range(4)]
        facts = [OrderFacts((each, 1), (each, 1), (), has_bad_keys=False) for each in orders]
        for eras in declarations():
            found = Memory.of(facts, SCHEMA, None, eras.ranked)
            wanted = max(rank(eras.ranked(each)) for each in orders)
            assert found.floor is not None
            assert found.forgotten is not None
            assert rank(found.floor[0]) == rank(found.forgotten) == wanted


def test_a_domain_of_mariadb_is_declared_by_its_number(own: SparkSession, tmp_path: Path) -> None:
    shard = Collection(own, tmp_path, {"id": "bigint", "name": "string"}, "debezium-json")
    shard.deliver({"a": change(1, "old", mariadb(9, 1, 4, HOUR))}, eras=Eras())
    new = {"b": change(1, "new", mariadb(5, 1, 5, 2 * HOUR, domain=1))}
    with pytest.raises(UnclearOrder, match=r"order: \{servers: \[0, 1\]\}"):
        shard.deliver(new, eras=Eras())
    body = shard.config.model_dump(mode="json") | {"order": {"servers": [0, 1]}}
    eras = eras_of(CollectionConfig.model_validate(body))
    shard.deliver(new, eras=eras)
    assert [(row["id"], row["name"]) for row in shard.rows()] == [(1, "new")]
    assert eras is not None
    assert eras.ranked((None, 5, 5, None, 0, "b", 0, 0, "domain 1", 2 * HOUR, 2 * HOUR))[0] == 2
