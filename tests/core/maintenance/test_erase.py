"""Erasures over random histories: no object holds the keys, and every other key reads as before at every time."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.checkpoint.recovery import recover_newest
from persist_core.contents.batch import BatchDescription
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.contents.parts import PARQUET, errs_schema, updates_schema
from persist_core.errors import InvalidInput
from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.handles.erased import erased_list
from persist_core.keys import part_key
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.erase import erase, look
from persist_core.maintenance.erase_objects import finish, verify
from persist_core.maintenance.maintain import maintain
from persist_core.schema import BAD_KEY, OP, ORDER, TIME, order_type, system_field
from persist_core.shard.state import Committed
from tests.core.compaction.histories import KEYED, MULTISET, SEQUENCED, History, _rows, _table
from tests.dying_store import Crash, DyingStore
from tests.sampling import sample
from tests.virtual import ManualClock

KEYS = [(number, region) for number in range(4) for region in ("", "ü")]
STATE = "upsert-stash"
MAX_CALLS = 200


class Erasing(History):
    """A history with operator state, each batch adding rows of random keys, full states in between; and erasures."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.client.part_format = PARQUET
        self.erased: set[tuple[int, str]] = set()

    def step(self) -> None:
        self.chance.choice([super().step] * 8 + [self.collect] * 2 + [self.erase])()

    def collect(self) -> None:
        collect(self.client, self.shard, grace_ms=0, intent_ms=0)

    def commit(self, lower: int, upper: int | None, oks: list[Any], errs: list[Any]) -> None:
        state = self.state
        newest = state.newest_commit
        chains = recover_newest(self.client, state, verified_bytes=None).operators
        description = BatchDescription(
            shard=self.shard,
            lower=lower,
            upper=upper,
            token=self.client.ids.uuid7(),
            checkpoint_id=self.client.ids.uuid7(),
            epoch=newest.epoch + 1 if newest else 1,
            parent_id=newest.checkpoint_id if newest else None,
            writer="test",
            operators=chains,
        )
        if self.schema.order:
            inserted = ((row, at) for row, at, diff in (*oks, *errs) if diff > 0)
            self.expected.orders.update((each, self.chance.randrange(100)) for each in inserted)
        tables = [
            _table([(*row, at, diff, *self._order(row, at, diff)) for row, at, diff in updates], columns)
            for updates, columns in ((oks, updates_schema(self.schema)), (errs, errs_schema(self.schema)))
        ]
        writer, attempt = self.client.open_writer(self.shard), self.client.ids.uuid7()
        is_delta = bool(chains) and self.chance.random() < 0.7
        operators = {STATE: OperatorState(is_delta, (self._artifact(attempt, (upper or lower) + 50),))}
        key = writer.stage(description, self.schema, attempt, *tables, operators=operators)
        assert isinstance(writer.compare_and_append(self.client.staged_manifest(key), key), Committed)
        self.expected.oks += oks
        self.expected.errs += errs
        self._publish()

    def _artifact(self, attempt: str, time: int) -> StateArtifact:
        schema = self.state.schemas.placed(self.schema)
        keys = self.chance.sample(KEYS, self.chance.randrange(1, 4))
        columns = pa.schema(
            [
                *[each.with_nullable(True) for each in replace(schema, values=()).arrow()],
                *map(system_field, (OP, TIME, BAD_KEY)),
                *([system_field(ORDER, order_type(schema))] if schema.order else []),
            ]
        )
        rows = [(*key, "u", time, None, *self._order_of(number)) for number, key in enumerate(keys)]
        data = PARQUET.encode(_table(rows, columns))
        stored = part_key(self.shard, attempt, STATE, 0)
        self.client.blob.set(stored, data)
        return StateArtifact(
            0, stored, len(data), hashlib.sha256(data).hexdigest(), rows=len(rows), schema_version=schema.version or 1
        )

    def _order_of(self, seq: int) -> tuple[Any, ...]:
        return ({"by0": 200 + seq, "file": "f", "block": 0, "row": 0},) if self.schema.order else ()

    def some_keys(self) -> list[tuple[int, str]]:
        return self.chance.sample(KEYS, self.chance.randrange(1, 3))

    def erase(self) -> None:
        if self.state.schema is None or self.state.upper.time is None:
            return
        keys = self.some_keys()
        upper = self.state.upper.time
        try:
            look(self.client, self.shard, keys)
        except InvalidInput:  # a fork shares files: it goes first
            self.erase_in_forks(keys)
        seen, is_first = look(self.client, self.shard, keys), self.erased.isdisjoint(keys)
        done = erase(self.client, self.shard, keys, by="me", reason="asked")
        assert (done.rows, done.files) == (seen.rows, seen.files) or not is_first, "a dry run counts the same"
        self.gone(keys)
        if self.state.upper.time != upper:
            self.checkpoints.append((self.state.commits[-1].checkpoint_id, upper + 1))
        assert done.status in ("erased", "waiting", "up_to_date")
        self.old_readers.clear()
        if done.status == "waiting":
            clock = self.client.clock
            assert isinstance(clock, ManualClock)
            clock.sleep_ms(2_000)
            finish(self.client, self.shard)
        self.check_gone(keys)

    def erase_in_forks(self, keys: list[tuple[int, str]]) -> None:
        for each in self.forks:
            assert isinstance(each, Erasing)
            each.erase_these(keys)

    def erase_these(self, keys: list[tuple[int, str]]) -> None:
        if self.state.schema is None or self.state.upper.time is None:
            return
        self.erase_in_forks(keys)
        done = erase(self.client, self.shard, keys, by="me", reason="asked")
        self.old_readers.clear()
        self.gone(keys)
        if done.status != "waiting":
            self.check_gone(keys)

    def gone(self, keys: list[tuple[int, str]]) -> None:
        self.erased |= set(keys)
        for known in (self.expected.oks, self.expected.errs):
            known[:] = [each for each in known if each[0][:2] not in keys]

    def restore(self) -> None:
        if self.schema.order or not self.erased:
            super().restore()

    def fork(self) -> None:
        if self.schema.order or not self.erased:
            super().fork()

    def check_gone(self, keys: list[tuple[int, str]]) -> None:
        assert verify(self.client, self.shard, keys) == ()
        for name, table in rows_in(self.client, self.shard):
            assert keys_of(table).isdisjoint(keys), name


def rows_in(client: PersistClient, shard: str) -> Iterator[tuple[str, pa.Table]]:
    """All Parquet files below the shard, whatever names them."""
    for entry in list(client.blob.list_keys_and_metadata(f"{shard}/")):
        data = client.blob.get(entry.key) or b""
        if data.startswith(b"PAR1"):
            yield entry.key, pq.read_table(io.BytesIO(data))


def in_memory() -> OpenLocation:
    return OpenLocation(MemBlob(clock=ManualClock(1_700_000_000_000)), MemConsensus())


@pytest.fixture
def few_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """States forget commits soon, so checkpoints are older than all of them."""
    monkeypatch.setattr("persist_core.shard.state.MIN_COMMITS_KEPT", 4)
    monkeypatch.setattr("persist_core.shard.state.MAX_COMMITS_KEPT", 6)
    monkeypatch.setattr("persist_core.shard.invariants.MIN_COMMITS_KEPT", 4)


@pytest.mark.family("histories in Python")
@pytest.mark.usefixtures("few_commits")
@pytest.mark.parametrize("schema", [KEYED, SEQUENCED], ids=["log", "sequence"])
@pytest.mark.parametrize("seed", sample(range(6), 3, "erasures in plain Python"))
def test_erased_keys_are_nowhere_and_others_read_as_before(schema: Any, seed: int) -> None:
    history = Erasing(in_memory(), schema, seed, sizes={"budget_bytes": 1, "min_file_bytes": 1} if seed > 3 else {})
    for _ in range(40):
        history.step()
    history.erase()
    history.check()
    for fork in history.forks:
        fork.check()


def test_the_key_that_a_merge_has_reached_is_erased_too() -> None:
    history = Erasing(in_memory(), KEYED, 1, sizes={"budget_bytes": 1, "min_file_bytes": 1})
    for _ in range(6):
        history.append()
    history.merge_these(history.state.batches)
    run = history.client.manifest(history.state.batches[0]).run
    assert run is not None
    assert run.merged_to in KEYS
    keys = [(int(run.merged_to[0]), str(run.merged_to[1]))]
    erase(history.client, "s", keys, by="me", reason="asked")
    history.gone(keys)
    history.check_gone(keys)
    while history.state.batches[0].is_partial:
        history.merge_these(history.state.batches[:1])
        history.check()
    assert history.merges > 1


KILLS = [pytest.param(part, is_late, id=f"{part}-{'after' if is_late else 'before'}")
         for part in range(4) for is_late in (False, True)]  # fmt: skip


@pytest.mark.family("commands")
@pytest.mark.usefixtures("few_commits")
@pytest.mark.parametrize(("part", "is_late"), sample(KILLS, 2, "kills of an erasure"))
def test_the_same_command_completes_what_was_killed(part: int, is_late: bool) -> None:
    """Every sixth call, in turns."""
    at = 6 * part + 1
    for _ in range(MAX_CALLS):
        history = Erasing(in_memory(), SEQUENCED, 5)
        for _ in range(4):
            history.append()
        history.merge_these(history.state.batches[:2])
        keys, calls, whole = KEYS[:2], [0], history.client
        stores = (whole.location.blob, whole.location.consensus)
        blob, consensus = (DyingStore(store, calls, at, is_late=is_late) for store in stores)
        dying = PersistClient(OpenLocation(blob, consensus), whole.clock, whole.ids, fetch_threads=1)
        try:
            erase(dying, "s", keys, by="me", reason="asked")
        except Crash:
            pass
        else:
            assert at > 50
            return
        history.client.machine.fetch("s")
        reader = history.client.open_reader("s")
        others = {row: n for row, n in history.expected.snapshot(upper(history) - 1).items() if row[:2] not in keys}
        found = {row: n for row, n in _rows(reader.snapshot()).items() if row[:2] not in keys}
        assert found == others, at
        if at % 2 == 0:  # a writer goes on before anyone repeats the command
            history.expected.oks[:] = [each for each in history.expected.oks if each[0][:2] not in keys]
            history.expected.errs[:] = [each for each in history.expected.errs if each[0][:2] not in keys]
            history.seal()
        assert erase(whole, "s", keys, by="me", reason="asked").status in ("erased", "up_to_date")
        history.gone(keys)
        history.check_gone(keys)
        history.check()
        at += 24
    raise AssertionError("there are more calls than expected")


def upper(history: History) -> int:
    return history.state.upper.time or 0


@pytest.mark.parametrize("is_late", [False, True])
def test_two_at_once_and_a_writer_meanwhile(is_late: bool) -> None:
    """The second one and the writer come in before or after each commit of the first one."""
    history = Erasing(in_memory(), KEYED, 3)
    for _ in range(10):
        history.append()
    first, keys = history.client, KEYS[:3]
    consensus = Meddled(first.location.consensus, is_late=is_late)
    meddled = PersistClient(OpenLocation(first.location.blob, consensus), first.clock, first.ids, fetch_threads=1)

    def meddle() -> None:
        history.gone(keys)
        if consensus.calls % 2:
            erase(first, "s", keys, by="you", reason="asked too")
        else:
            history.seal()

    consensus.meddle = meddle
    done = erase(meddled, "s", keys, by="me", reason="asked")
    assert done.status in ("erased", "up_to_date")
    history.gone(keys)
    history.check_gone(keys)
    history.check()


class Meddled:
    """A consensus store in which others act just before or after some of its compare-and-sets."""

    def __init__(self, store: Any, *, is_late: bool) -> None:
        self._store, self._is_late, self.calls = store, is_late, 0
        self.meddle: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def compare_and_set(self, *arguments: Any) -> Any:
        self.calls += 1
        is_meddled = self.calls in (1, 2, 4, 5)
        if is_meddled and not self._is_late:
            self.meddle()
        result = self._store.compare_and_set(*arguments)
        if is_meddled and self._is_late:
            self.meddle()
        return result


def test_a_reader_with_a_lease_keeps_its_files_until_it_ends() -> None:
    history = Erasing(in_memory(), KEYED, 1)
    for _ in range(6):
        history.append()
    reader = history.client.open_leased_reader("s", lease_ms=60_000)
    state = reader.state()
    before = _rows(reader.snapshot_of(state))
    done = erase(history.client, "s", KEYS[:4], by="me", reason="asked")
    assert (done.status, done.readers) == ("waiting", (reader.reader,))
    assert done.waiting > 0
    assert _rows(reader.snapshot_of(state)) == before
    assert maintain(history.client, "s").erased == 0
    reader.expire()
    assert maintain(history.client, "s").erased == done.waiting
    history.gone(KEYS[:4])
    history.check_gone(KEYS[:4])
    history.check()


def test_a_dry_run_writes_nothing_and_counts() -> None:
    history = Erasing(in_memory(), SEQUENCED, 2)
    for _ in range(8):
        history.append()
    blob = history.client.blob
    before = {each.key: blob.get(each.key) for each in list(blob.list_keys_and_metadata(""))}
    seen, state = look(history.client, "s", KEYS[:2]), history.state
    assert {each.key: blob.get(each.key) for each in list(blob.list_keys_and_metadata(""))} == before
    assert history.state == state
    assert min(seen.rows, seen.files) > 0
    done = erase(history.client, "s", KEYS[:2], by="me", reason="asked")
    assert (done.rows, done.files) == (seen.rows, seen.files)
    listed = erased_list(history.client, history.state)
    assert [(each.by, each.reason, each.rows, each.files) for each in listed.erasures] == [
        ("me", "asked", done.rows, done.files)
    ]
    assert listed.erasures[0].ended_ms is not None


def test_what_has_no_key_is_refused() -> None:
    history = History(in_memory(), MULTISET, 1)
    history.append()
    with pytest.raises(InvalidInput, match="is a view and has no key"):
        erase(history.client, "s", [(1,)], by="me", reason="asked")


def keys_of(table: pa.Table) -> set[Any]:
    return set(zip(table["id"].to_pylist(), table["region"].to_pylist(), strict=True))
