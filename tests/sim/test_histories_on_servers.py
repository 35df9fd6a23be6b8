"""Histories over real servers, through a proxy that cuts connections and answers in the server's place; simulations
whose consensus is a real server's, and on S3 their blobs too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings

from persist_core.location.consensus import Consensus
from persist_core.location.mem import MemBlob
from persist_core.location.open import open_consensus, s3_settings
from persist_core.location.s3.blob import S3Blob
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import CUTS, Fate, FaultyProxy, Injection, SeededInjections
from tests.servers.s3 import S3Server
from tests.sim.append_history import SMOOTH, Told, append_history
from tests.sim.simulator.shrink import check_seeds
from tests.sim.simulator.simulation import Parts
from tests.virtual import ManualClock, SeededIds

HISTORIES = {"dev": 10, "ci": 10, "nightly": 2_000}
SIMULATIONS = {"dev": 4, "ci": 4, "nightly": 1_000}
HTTP_FATES: tuple[Injection | Fate, ...] = (
    *CUTS,
    *(Injection(fate, status) for fate in (Fate.REFUSE, Fate.REPLACE) for status in (409, 500, 503)),
)
RATE = 0.08  # of exchanges with a fault; a call is several of them


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


@pytest.mark.parametrize("name", ["postgres", "pgbouncer"])
def test_histories_over_postgresql(
    request: pytest.FixtureRequest, postgres: PostgresServer, name: str, persist_seed: int
) -> None:
    schema = postgres.new_schema()
    with FaultyProxy("127.0.0.1", request.getfixturevalue(name).port) as proxy:
        uris = postgres.uri(schema=schema), postgres.uri(schema=schema, port=proxy.port)
        with through_proxy(proxy, *uris) as (store, log):
            proxy.injections = SeededInjections(SeededIds(persist_seed, ManualClock()), rate=RATE)
            told = check_histories(store, log, persist_seed)
    assert sum(proxy.injected[fate] for fate in CUTS), proxy.injected
    assert told[Told.DONE] > 10


@pytest.mark.parametrize("name", ["versitygw", "minio"])
def test_histories_over_s3(request: pytest.FixtureRequest, name: str, persist_seed: int) -> None:
    server: S3Server = request.getfixturevalue(name)
    bucket = server.make_bucket()
    port = int(server.endpoint.rpartition(":")[2])
    with FaultyProxy("127.0.0.1", port, is_http=True) as proxy:
        uris = server.uri(bucket), f"s3://{bucket}?endpoint=http://{proxy.address}"
        with through_proxy(proxy, *uris) as (store, log):
            injections = SeededInjections(SeededIds(persist_seed, ManualClock()), HTTP_FATES, rate=RATE)
            proxy.injections = injections
            told = check_histories(store, log, persist_seed)
    assert sum(proxy.injected[fate] for fate in (*CUTS, Fate.REFUSE, Fate.REPLACE)), proxy.injected
    assert told[Told.DONE] > 10


def test_simulations_on_postgresql(postgres: PostgresServer, persist_seed: int) -> None:
    parts = Parts(consensus=lambda: open_consensus(postgres.uri(schema=postgres.new_schema())))
    check_seeds(range(persist_seed, persist_seed + SIMULATIONS[settings.get_current_profile_name()]), parts)


class ReportedS3Blob(S3Blob):
    """A blob store on S3. What was written and deleted there goes to the simulation's referee as well."""

    def __init__(self, uri: str, seen_by_referee: MemBlob) -> None:
        settings = s3_settings(uri)
        assert settings is not None
        super().__init__(settings)
        self._seen_by_referee = seen_by_referee

    def set(self, key: str, data: bytes) -> None:
        super().set(key, data)
        self._seen_by_referee.set(key, data)

    def delete(self, key: str) -> int | None:
        self._seen_by_referee.delete(key)
        return super().delete(key)


def test_simulations_on_s3_alone(versitygw: S3Server, persist_seed: int) -> None:
    bucket, numbers = versitygw.make_bucket(), itertools.count()
    parts = Parts(
        consensus=lambda: open_consensus(versitygw.uri(f"{bucket}/{next(numbers)}")),
        blob=lambda referees: ReportedS3Blob(versitygw.uri(f"{bucket}/{next(numbers)}"), referees),
    )
    check_seeds(range(persist_seed, persist_seed + SIMULATIONS[settings.get_current_profile_name()]), parts)


@pytest.mark.parametrize("fate", CUTS)
def test_a_connection_to_postgresql_that_is_cut_is_replaced(postgres: PostgresServer, fate: Fate) -> None:
    """Every single cut, at a time when the store has nothing else to do: the next calls succeed."""
    schema = postgres.new_schema()
    with FaultyProxy("127.0.0.1", postgres.port) as proxy:
        uris = postgres.uri(schema=schema), postgres.uri(schema=schema, port=proxy.port)
        with through_proxy(proxy, *uris) as (store, log):
            ids = SeededIds(1, ManualClock())
            for number in range(4):
                proxy.injections = SeededInjections(ids, [fate], rate=0.3)
                append_history(number, store, shard=f"{fate.value}-{number}", rates=SMOOTH, log=log).check()
    assert proxy.injected[fate]
