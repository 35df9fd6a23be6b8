"""Histories over real servers, through a proxy that cuts connections and answers in the server's place; simulations
whose consensus is a real server's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings

from persist_core.clock import ManualClock
from persist_core.ids import SeededIds
from persist_core.location.consensus import Consensus
from persist_core.location.open import open_consensus
from persist_core.testing.append_history import SMOOTH, Told, append_history
from persist_core.testing.proxy import CUTS, Fate, FaultyProxy, Injection, SeededInjections
from persist_core.testing.simulator.shrink import check_seeds
from persist_core.testing.simulator.simulation import Parts
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

HISTORIES = {"dev": 10, "ci": 25, "nightly": 2_000}
SIMULATIONS = {"dev": 4, "ci": 10, "nightly": 1_000}
HTTP_FATES: tuple[Injection | Fate, ...] = (
    *CUTS,
    *(Injection(fate, status) for fate in (Fate.REFUSE, Fate.REPLACE) for status in (409, 500, 503)),
)
RATE = 0.08  # of struck exchanges; a call is several of them


@contextmanager
def through_proxy(proxy: FaultyProxy, direct_uri: str, proxied_uri: str) -> Iterator[tuple[Consensus, Consensus]]:
    """The store through the proxy, and directly."""
    through, direct = open_consensus(proxied_uri), open_consensus(direct_uri)
    try:
        direct.head("warm-up")
        through.head("warm-up")
        yield through, direct
    finally:
        through.close()
        direct.close()
        proxy.cut_all()


def check_histories(store: Consensus, log: Consensus, seed: int) -> Counter[Told]:
    told: Counter[Told] = Counter()
    for number in range(seed, seed + HISTORIES[settings.get_current_profile_name()]):
        history = append_history(
            number, store, shard=f"shard-{number}", rates=SMOOTH, is_stepped=bool(number % 4), log=log
        )
        history.check()
        told += Counter(history.told.values())
    return told


def test_histories_over_postgresql(postgres: PostgresServer, persist_seed: int) -> None:
    schema = postgres.new_schema()
    with FaultyProxy("127.0.0.1", postgres.port) as proxy:
        uris = postgres.uri(schema=schema), postgres.uri(schema=schema, port=proxy.port)
        with through_proxy(proxy, *uris) as (store, log):
            proxy.injections = SeededInjections(SeededIds(persist_seed, ManualClock()), rate=RATE)
            told = check_histories(store, log, persist_seed)
    assert sum(proxy.injected[fate] for fate in CUTS), proxy.injected
    assert told[Told.DONE] > 10


def test_histories_over_s3(versitygw: S3Server, persist_seed: int) -> None:
    bucket = versitygw.make_bucket()
    port = int(versitygw.endpoint.rpartition(":")[2])
    with FaultyProxy("127.0.0.1", port, is_http=True) as proxy:
        uris = versitygw.uri(bucket), f"s3://{bucket}?endpoint=http://{proxy.address}"
        with through_proxy(proxy, *uris) as (store, log):
            injections = SeededInjections(SeededIds(persist_seed, ManualClock()), HTTP_FATES, rate=RATE)
            proxy.injections = injections
            told = check_histories(store, log, persist_seed)
    assert sum(proxy.injected[fate] for fate in (*CUTS, Fate.REFUSE, Fate.REPLACE)), proxy.injected
    assert told[Told.DONE] > 10


def test_simulations_on_postgresql(postgres: PostgresServer, persist_seed: int) -> None:
    parts = Parts(consensus=lambda: open_consensus(postgres.uri(schema=postgres.new_schema())))
    check_seeds(range(persist_seed, persist_seed + SIMULATIONS[settings.get_current_profile_name()]), parts)


def test_simulations_on_s3(versitygw: S3Server, persist_seed: int) -> None:
    parts = Parts(consensus=lambda: open_consensus(versitygw.new_uri()))
    check_seeds(range(persist_seed, persist_seed + SIMULATIONS[settings.get_current_profile_name()]), parts)


@pytest.mark.parametrize("fate", CUTS)
def test_a_connection_to_postgresql_that_is_cut_is_replaced(postgres: PostgresServer, fate: Fate) -> None:
    """Every single cut, at a time when the store has nothing else to do: the next calls just work."""
    schema = postgres.new_schema()
    with FaultyProxy("127.0.0.1", postgres.port) as proxy:
        uris = postgres.uri(schema=schema), postgres.uri(schema=schema, port=proxy.port)
        with through_proxy(proxy, *uris) as (store, log):
            ids = SeededIds(1, ManualClock())
            for number in range(4):
                proxy.injections = SeededInjections(ids, [fate], rate=0.3)
                append_history(number, store, shard=f"{fate.value}-{number}", rates=SMOOTH, log=log).check()
    assert proxy.injected[fate]
