"""The cost of a shard's state after many commits: bytes, encoding, decoding, and a whole append on SQLite.

    python -m tests.benchmarks.state [COMMITS]

The aim (docs/benchmarks.md): encoding costs no more than writing the bytes to SQLite.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from persist_core.compaction.due import next_merge
from persist_core.contents.batch import BatchCounts, BatchDescription, BatchManifest, HollowBatch
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.handles.write import WriteHandle
from persist_core.keys import manifest_key
from persist_core.location.consensus import VersionedData
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.codec import StateVersion, decode_state, encode_state
from persist_core.shard.state import ShardState, compare_and_append

SCHEMA = SchemaVersions().placed(
    CollectionSchema((Column("id", "bigint", nullable=False),), (Column("name", "string"),))
)
TRIES = 7
LIVING_ROWS, EVENTS = 2_000_000, 5_000  # of a shard that is maintained


@dataclass(frozen=True)
class Cost:
    """Measurements of one state; times in milliseconds, the least of `TRIES`."""

    state_bytes: int
    encode_ms: float
    decode_ms: float
    store_ms: float
    append_ms: float


def state_after(commits: int, ids: Iterator[str], *, updates: int) -> ShardState:
    """A shard after as many commits of `updates` updates each (0: seals)."""
    tail = 200 if updates else commits  # of a state with data all but the batches is the same after 200 commits
    batches = tuple(
        HollowBatch(number, number + 1, manifest_key("s", next(ids)), f"{number:064x}", BatchCounts(updates), 50_000)
        for number in range(commits - tail)
    )
    state = ShardState("s", seqno=0, upper=Frontier(commits - tail), batches=batches)
    for lower in range(commits - tail, commits):
        manifest = BatchManifest(
            "s", lower, lower + 1, f"{lower:064x}", "c" * 64, SCHEMA, (), BatchCounts(updates), next(ids), lower + 1,
            None, "persist_orders/scheduled__2026-01-01T00:00:00+00:00",
        )  # fmt: skip
        state, _ = compare_and_append(state, manifest, manifest_key("s", next(ids)), expected_upper=lower, now_ms=0)
        state = replace(state, seqno=state.seqno + 1)
    return replace(state, seqno=0)


def maintained(commits: int, ids: Iterator[str]) -> tuple[HollowBatch, ...]:
    """The batches of a shard of `LIVING_ROWS` rows after as many commits of `EVENTS` updates, all merges done."""
    batches: list[HollowBatch] = []
    for number in range(commits):
        batches.append(_hollow(number, number + 1, EVENTS, next(ids)))
        while (due := next_merge(batches)) is not None:
            first = batches.index(due[0])
            rows = sum(batch.counts.rows for batch in due)
            run = _hollow(due[0].lower, due[-1].upper, rows if first else min(rows, LIVING_ROWS), next(ids))
            batches[first : first + len(due)] = [run]
    return tuple(batches)


def _hollow(lower: int, upper: int | None, rows: int, attempt: str) -> HollowBatch:
    return HollowBatch(lower, upper, manifest_key("s", attempt), f"{lower:064x}", BatchCounts(rows), 50_000)


def least_ms(act: Callable[[], object]) -> float:
    """The time of the fastest of `TRIES`."""
    times = []
    for _ in range(TRIES):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


@contextmanager
def client() -> Iterator[PersistClient]:
    with tempfile.TemporaryDirectory() as folder:
        uri = PersistLocation((Path(folder) / "blobs").as_uri(), f"sqlite:///{folder}/consensus.db")
        opened = open_location(uri)
        yield PersistClient(opened)
        opened.close()


def cost_of(state: ShardState) -> Cost:
    """Measured on a fresh SQLite file."""
    with client() as on:
        version = StateVersion(on.ids.uuid7(), 0, state)
        data = encode_state(version)
        seqnos = iter(range(TRIES))
        store = lambda: on.location.consensus.compare_and_set("raw", *_next(seqnos, data))  # noqa: E731 - one measure
        store_ms = least_ms(store)
        on.location.consensus.compare_and_set("s", None, VersionedData(0, data))
        writer = WriteHandle(on, "s")
        times = []
        for number in range(TRIES):
            lower = (state.upper.time or 0) + number
            description = BatchDescription(
                "s", lower, lower + 1, f"new {number}", on.ids.uuid7(), lower + 1, None, "writer"
            )
            key = writer.stage(description, SCHEMA, on.ids.uuid7())
            manifest = on.staged_manifest(key)
            start = time.perf_counter()
            writer.compare_and_append(manifest, key)
            times.append(time.perf_counter() - start)
        return Cost(
            len(data),
            least_ms(lambda: encode_state(version)),
            least_ms(lambda: decode_state(data)),
            store_ms,
            min(times) * 1000,
        )


def _next(seqnos: Iterator[int], data: bytes) -> tuple[int | None, VersionedData]:
    seqno = next(seqnos)
    return (seqno - 1 if seqno else None), VersionedData(seqno, data)


def main(commits: int) -> None:
    """Print one line for seals, one for data, and one for data that maintenance has merged."""
    with client() as on:
        ids = iter(on.ids.uuid7, "")
        data = state_after(commits, ids, updates=3)
        states = {
            "seals": state_after(commits, ids, updates=0),
            "data, never merged": data,
            "data, merged": replace(data, batches=maintained(commits, ids)),
        }
        for what, state in states.items():
            cost = cost_of(state)
            sys.stdout.write(
                f"{commits} commits, {what}: {len(state.batches)} batches, {cost.state_bytes} bytes,"
                f" encode {cost.encode_ms:.1f} ms, decode {cost.decode_ms:.1f} ms, store {cost.store_ms:.1f} ms"
                f" (encode / store = {cost.encode_ms / cost.store_ms:.2f}), append {cost.append_ms:.1f} ms\n"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
