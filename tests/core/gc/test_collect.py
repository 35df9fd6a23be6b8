"""GC of one shard: what it deletes and when, what it keeps, and that it may die anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from persist_core.compaction.merge import Merge, merge_here
from persist_core.contents import pieces
from persist_core.contents.batch import BatchManifest, PartKind
from persist_core.contents.parts import updates_schema
from persist_core.errors import CorruptArtifact, InvalidInput, OutdatedDescription, ReadTooSlow, RunFailed
from persist_core.gc.collect import GRACE_MS, INTENT_MS, Collected, collect, garbage
from persist_core.gc.needs import Needs
from persist_core.handles.client import PersistClient
from persist_core.handles.read import schema_of
from persist_core.handles.write import stage_manifest
from persist_core.keys import MANIFEST, conflict_key, dry_run_key, input_copy, job_key, part_key
from persist_core.location.blob import Blob
from persist_core.location.open import OpenLocation
from persist_core.protocol import stages
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import restore
from persist_core.protocol.stages import Conflict
from persist_core.shard.state import ShardState
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.core.protocol.test_restore_faults import client_on
from tests.dying_store import Crash, DyingStore
from tests.oracle.upsert import Record
from tests.sim.simulator.reachable import reachable

A, B = ("eu", 1), ("eu", 2)
ERAS_TO_SWEEP = INTENT_MS // GRACE_MS + 2  # from a mark until its list is swept
ID = "01900000-0000-7000-8000-00000000000a"


def ok(slot: tuple[str, int], name: str, time: int) -> Record:
    return Record(slot, (name, None, None), time, (0, "f", 0, 0))


@pytest.fixture
def shard(tmp_path: Path) -> Collection:
    """Four commits, with a stash and several files of history."""
    made = Collection(tmp_path)
    for number in range(1, 5):
        records = [ok(A, f"a{number}", 10 * number - 1), ok(B, f"b{number}", 10 * number + 5)]
        made.drop(f"{number}.txt", records)
        made.run(10 * number)
    return made


def merge_all(shard: Collection) -> None:
    state = shard.client.state(SHARD)
    merge_here(shard.client, Merge.of(shard.client, state, state.batches), attempt=shard.client.ids.uuid7())


def stored(shard: Collection, name: str = SHARD) -> set[str]:
    return {entry.key for entry in shard.client.blob.list_keys_and_metadata(f"{name}/")}


def pass_eras(shard: Collection, count: int) -> list[Collected]:
    """A call of GC in each era."""
    done = []
    for _ in range(count):
        shard.clock.sleep_ms(GRACE_MS)
        done.append(collect(shard.client, SHARD))
    return done


def unneeded(shard: Collection) -> set[str]:
    return stored(shard) - reachable(shard.location.blob, shard.location.consensus, SHARD)


def test_merged_files_go_after_the_eras_and_reads_stay(shard: Collection) -> None:
    before = [shard.contents(time) for time in range(40)]
    merge_all(shard)
    replaced = unneeded(shard)
    assert any("_persist_part=insertions" in key for key in replaced)
    marked = collect(shard.client, SHARD)
    assert (marked.marked, marked.deleted) == (len(replaced), 0)
    waited = pass_eras(shard, ERAS_TO_SWEEP - 1)
    assert sum(each.deleted for each in waited) == 0
    assert replaced <= stored(shard)
    (swept,) = pass_eras(shard, 1)
    assert (swept.deleted, swept.kept) == (len(replaced), 0)
    assert swept.deleted_bytes == marked.marked_bytes
    assert unneeded(shard) == set()
    assert [shard.contents(time) for time in range(40)] == before
    shard.check()
    shard.drop("5.txt", [ok(A, "a5", 49)])
    shard.run(60)
    shard.check()


class ByAttempts(Needs):
    """A defect: takes all files of an attempt for needed if its manifest is, and no other files."""

    def of_batches(self, state: ShardState) -> set[str]:
        folders = tuple(batch.manifest_key.removesuffix(MANIFEST) for batch in state.batches)
        keys = [entry.key for entry in self._client.blob.list_keys_and_metadata(f"{SHARD}/batches/")]
        return {key for key in keys if key.startswith(folders)}


@pytest.mark.parametrize("kind", [Needs, ByAttempts])
def test_a_run_keeps_history_carried_from_older_attempts(shard: Collection, kind: type[Needs]) -> None:
    """Needs are files, not attempts: GC that counted attempts would lose history."""
    merge_all(shard)
    for number in range(5, 7):
        shard.drop(f"{number}.txt", [ok(("eu", number), "new", 10 * number - 1)])
        shard.run(10 * number)
    first_run = shard.client.state(SHARD).batches[0]
    merge_all(shard)
    state = shard.client.state(SHARD)
    (manifest,) = shard.client.manifests(state.batches)
    carried = [part.key for part in manifest.parts if part.kind is PartKind.HISTORY]
    assert any(key.startswith(first_run.manifest_key.removesuffix("manifest.json")) for key in carried)
    for _ in range(ERAS_TO_SWEEP + 1):
        collect(shard.client, SHARD, needs=kind(shard.client, SHARD))
        shard.clock.sleep_ms(GRACE_MS)
    assert first_run.manifest_key not in stored(shard)
    assert unneeded(shard) == set()
    assert (set(carried) <= stored(shard)) is (kind is Needs)
    if kind is Needs:
        shard.check()


def test_a_lease_keeps_files_and_the_error_without_one_names_it(shard: Collection) -> None:
    """Two readers have read the state; then the shard is merged, and they go on eras later."""
    leased = shard.client.open_leased_reader(SHARD, lease_ms=100 * GRACE_MS)
    begun = leased.state()
    schema, newest = updates_schema(schema_of(begun)), begun.batches[-1].last_time
    before = leased.read(begun.batches, schema, lambda b, m: pieces.oks_as_of(b, m, newest))
    merge_all(shard)
    collect(shard.client, SHARD)
    pass_eras(shard, 2 * ERAS_TO_SWEEP)
    assert leased.read(begun.batches, schema, lambda b, m: pieces.oks_as_of(b, m, newest)).equals(before)
    leased.snapshot()  # begins another read, and holds older files no more
    pass_eras(shard, 2 * ERAS_TO_SWEEP)
    assert unneeded(shard) == set()
    with pytest.raises(ReadTooSlow, match="open the reader with a lease"):
        shard.client.open_reader(SHARD).read(begun.batches, schema, lambda b, m: pieces.oks_as_of(b, m, newest))


@pytest.mark.parametrize("is_leased", [False, True])
def test_what_was_in_flight_when_it_was_listed_is_no_less_safe(shard: Collection, is_leased: bool) -> None:
    """An attempt is listed, then appended, and merged away just before its list is swept: readers have their time."""
    shard.drop("5.txt", [ok(A, "a5", 49)])
    description = shard.mint(50)
    key = shard.write(description)
    collect(shard.client, SHARD)
    pass_eras(shard, INTENT_MS // GRACE_MS)
    assert not isinstance(stages.append(shard.client, description, key), Conflict)
    reader = shard.client.open_leased_reader(SHARD, lease_ms=100 * GRACE_MS)
    begun = reader.state()
    merge_all(shard)
    pass_eras(shard, 2 * ERAS_TO_SWEEP if is_leased else 1)
    reader.read(begun.batches, updates_schema(schema_of(begun)), lambda b, m: pieces.oks_as_of(b, m, 49))
    reader.expire()
    pass_eras(shard, ERAS_TO_SWEEP + 1)
    assert unneeded(shard) == set()


def test_leftovers_of_all_kinds_go(shard: Collection) -> None:
    blob = shard.client.blob
    left = {
        job_key(SHARD, 5, ID, "died"),
        dry_run_key(SHARD, ID),
        part_key(SHARD, ID, "insertions", 0),
        f"{SHARD}/batches/{ID}/failure.json",
        f"{SHARD}/inputs/0/{'0' * 64}.json",
        job_key(SHARD, 0, ID, input_copy(0, ".gz")),
        f"{SHARD}/sources/files/0/{'0' * 64}.json.zst",
        f"{SHARD}/checkpoints/{ID}/operators/upsert-stash/partition-0.snap",
    }
    for key in left:
        blob.set(key, b"x")
    blob.set(f"{SHARD}/something/else", b"of a newer release")
    assert left <= {each.key for each in garbage(shard.client, SHARD)}
    collect(shard.client, SHARD)
    pass_eras(shard, ERAS_TO_SWEEP)
    assert not left & stored(shard)
    assert f"{SHARD}/something/else" in stored(shard)


def test_deaths_of_jobs_stay_until_a_batch_is_committed(shard: Collection) -> None:
    upper = shard.client.state(SHARD).upper.time
    assert upper is not None
    died, copy = (job_key(SHARD, upper, ID, name) for name in ("died", input_copy(0, ".gz")))
    for key in (died, copy):
        shard.client.blob.set(key, b"")
    pass_eras(shard, ERAS_TO_SWEEP + 1)
    assert died in stored(shard)
    assert copy not in stored(shard)
    shard.run(upper + 10)
    pass_eras(shard, ERAS_TO_SWEEP + 1)
    assert died not in stored(shard)


def test_only_the_newest_conflicts_are_kept(shard: Collection) -> None:
    keys = [conflict_key(SHARD, f"{number:032x}") for number in (5, 1, 4, 2, 3)]
    for key in keys:
        shard.clock.sleep_ms(1)
        shard.client.blob.set(key, b"{}")
    assert Needs(shard.client, SHARD).of_conflicts(3) & set(keys) == set(keys[2:])
    assert not {each.key for each in garbage(shard.client, SHARD)} & set(keys), "by default many are kept"


def test_a_batch_appended_late_is_whole_or_refused(shard: Collection) -> None:
    """A zombie: it stages, sleeps for some eras, then appends. GC runs meanwhile."""
    for eras in range(ERAS_TO_SWEEP + 2):
        shard.drop(f"late{eras}.txt", [ok(A, f"late{eras}", 100 * (eras + 1) - 1)])
        description = shard.mint(100 * (eras + 1))
        key = shard.write(description)
        collect(shard.client, SHARD)
        pass_eras(shard, eras)
        result = stages.append(shard.client, description, key)
        if eras <= INTENT_MS // GRACE_MS - 1:
            assert not isinstance(result, Conflict), eras
            continue
        if isinstance(result, Conflict):
            assert "minted so long ago" in str(result.record)
            with pytest.raises(OutdatedDescription, match="mint again"):
                stages.check_not_outdated(shard.client.state(SHARD), description)
            shard.run(100 * (eras + 1))
        shard.check()
    assert isinstance(result, Conflict)


def test_an_input_that_is_frozen_again_has_another_name(shard: Collection) -> None:
    """Frozen files are frozen again while GC is about to delete what an earlier mint has frozen of them."""
    shard.drop("5.txt", [ok(A, "a5", 49)])
    given_up = shard.mint(50)
    collect(shard.client, SHARD)
    pass_eras(shard, ERAS_TO_SWEEP - 1)
    again = shard.mint(50)
    (swept,) = pass_eras(shard, 1)
    assert swept.deleted
    assert given_up.input_key not in stored(shard)
    result = stages.append(shard.client, again, shard.write(again))
    assert not isinstance(result, Conflict)
    shard.check()


def test_a_slow_restore_is_refused(shard: Collection) -> None:
    first = shard.client.state(SHARD).commits[0].checkpoint_id
    plan = shard.plan(first)
    collect(shard.client, SHARD)
    pass_eras(shard, ERAS_TO_SWEEP)
    assert isinstance(restore(shard.client, plan, writer="slow"), Conflict)
    shard.go_back(first)
    shard.check()


def test_a_fork_keeps_what_it_shares_until_it_needs_it_no_more(shard: Collection) -> None:
    checkpoint = shard.client.state(SHARD).commits[2].checkpoint_id
    fork(shard.client, SHARD, checkpoint, "twin", writer="test")
    merge_all(shard)
    collect(shard.client, SHARD)
    pass_eras(shard, 2 * ERAS_TO_SWEEP)
    assert unneeded(shard) == set()
    twin = shard.beside("twin")
    twin.check()
    assert any("/forks/" in key for key in stored(shard))


def test_a_fork_that_was_never_made_keeps_nothing(shard: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = shard.client.state(SHARD).commits[2].checkpoint_id

    def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("persist_core.protocol.fork.stage_manifest", die)
        with pytest.raises(Crash):
            fork(shard.client, SHARD, checkpoint, "twin", writer="test")
    merge_all(shard)
    collect(shard.client, SHARD)
    pass_eras(shard, INTENT_MS // GRACE_MS)
    assert any("/forks/" in key for key in stored(shard))
    pass_eras(shard, ERAS_TO_SWEEP + 1)
    assert not any("/forks/" in key for key in stored(shard))
    assert unneeded(shard) == set()


def test_a_fork_that_is_made_after_gc_has_given_it_up_is_refused(
    shard: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = shard.client.state(SHARD).commits[2].checkpoint_id

    def slow(blob: Blob, manifest: BatchManifest, attempt: str) -> str:
        merge_all(shard)
        collect(shard.client, SHARD)
        pass_eras(shard, 2 * ERAS_TO_SWEEP)
        return stage_manifest(blob, manifest, attempt)

    with monkeypatch.context() as patch:
        patch.setattr("persist_core.protocol.fork.stage_manifest", slow)
        with pytest.raises(RunFailed, match="GC may have deleted files that it shares"):
            fork(shard.client, SHARD, checkpoint, "twin", writer="test")
    fork(shard.client, SHARD, checkpoint, "twin", writer="test")
    shard.beside("twin").check()


def test_damage_stops_gc_before_it_deletes(shard: Collection) -> None:
    merge_all(shard)
    collect(shard.client, SHARD)
    pass_eras(shard, ERAS_TO_SWEEP - 1)
    before = stored(shard)
    shard.client.blob.set(shard.client.state(SHARD).batches[0].manifest_key, b"{")
    with pytest.raises(CorruptArtifact):
        pass_eras(shard, 1)
    assert before <= stored(shard)


def test_a_clock_that_jumps_deletes_nothing_early(shard: Collection) -> None:
    """The clients' clocks do not matter; only the store's own counts."""
    merge_all(shard)
    for jump_ms in (0, 1, 10, 100):
        client = client_on(shard, shard.location)
        client.clock = type(shard.clock)(shard.clock.now_ms() + jump_ms * GRACE_MS)
        assert collect(client, SHARD).deleted == 0
        assert client.state(SHARD).era == 0


def test_gc_may_die_at_every_call_and_another_one_ends_it(tmp_path: Path) -> None:
    """In mark and in sweep, before and after each call of a store."""
    for at, is_late in _until_it_lives():
        (folder := tmp_path / f"{at}-{is_late}").mkdir()
        shard = Collection(folder)
        shard.drop("1.txt", [ok(A, "one", 9)])
        shard.run(10)
        shard.drop("2.txt", [ok(A, "two", 19)])
        shard.run(20)
        merge_all(shard)
        before = [shard.contents(time) for time in range(20)]
        calls, died = [0], False
        for _ in range(ERAS_TO_SWEEP + 1):
            blob = DyingStore(shard.location.blob, calls, at, is_late=is_late)
            consensus = DyingStore(shard.location.consensus, calls, at, is_late=is_late)
            try:
                collect(client_on(shard, OpenLocation(blob, consensus)), SHARD)
            except Crash:
                died = True
            shard.clock.sleep_ms(GRACE_MS)
        pass_eras(shard, ERAS_TO_SWEEP + 1)
        assert unneeded(shard) == set()
        assert [shard.contents(time) for time in range(20)] == before
        shard.check()
        if not died:
            return


def _until_it_lives() -> Iterator[tuple[int, bool]]:
    for at in range(1, 2_000, 29):  # every call would take minutes; the simulator draws the others
        yield at, False
        yield at + 13, True


def test_the_options_are_checked(shard: Collection) -> None:
    for grace_ms, intent_ms in ((2, 1), (0, 1), (-1, -1)):
        with pytest.raises(InvalidInput, match="expected 0 < grace <= intent"):
            collect(shard.client, SHARD, grace_ms=grace_ms, intent_ms=intent_ms)
    merge_all(shard)
    first = collect(shard.client, SHARD, grace_ms=0, intent_ms=0)
    assert first.waiting == first.marked > 0
    assert collect(shard.client, SHARD, grace_ms=0, intent_ms=0).deleted == 0
    swept = collect(shard.client, SHARD, grace_ms=0, intent_ms=0, max_keys=2)
    assert (swept.deleted, swept.is_done) == (2, False)
    assert collect(shard.client, SHARD, grace_ms=0, intent_ms=0).is_done
    assert unneeded(shard) == set()


def test_two_collectors_at_once_do_no_harm(shard: Collection) -> None:
    merge_all(shard)
    others = PersistClient(shard.location, shard.clock, shard.client.ids, fetch_threads=1)
    for _ in range(ERAS_TO_SWEEP + 1):
        collect(shard.client, SHARD)
        collect(others, SHARD)
        shard.clock.sleep_ms(GRACE_MS)
    assert unneeded(shard) == set()
    shard.check()
