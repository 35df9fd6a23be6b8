"""Rebuilds and swaps that are killed at any call of a store, that race each other or other writers, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from persist_core.contents.batch import BatchDescription
from persist_core.errors import (
    GenerationChanged,
    InvalidInput,
    OutsideFrontiers,
    RunFailed,
    SchemaMismatch,
    StorageError,
)
from persist_core.gc.collect import GRACE_MS, collect
from persist_core.handles.client import PersistClient
from persist_core.keys import LOCATION
from persist_core.location.open import OpenLocation
from persist_core.maintenance import actions
from persist_core.maintenance.drop import drop, with_dropped
from persist_core.maintenance.fsck import fsck
from persist_core.maintenance.hidden import generations, give_up_rebuild, kept_generations
from persist_core.maintenance.maintain import maintain
from persist_core.maintenance.rebuild import Rebuilt
from persist_core.protocol import fork as fork_module
from persist_core.protocol import stages
from persist_core.protocol import swap as swap_module
from persist_core.protocol.stages import Conflict
from tests.core.maintenance.rebuilt_shard import A, B, C, Keyed, check_only_left, made, names, ok, rebuilt
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.dying_store import Crash, DyingStore
from tests.sampling import sample
from tests.sim.simulator.write_stage import ArrowParts
from tests.virtual import SeededIds

NAMES = {A: "one", B: "b", C: "three"}
MAX_CALLS = 500
KILLS = 6
REBUILD = f"{SHARD}~rebuild"


@pytest.fixture
def shard(tmp_path: Path) -> Keyed:
    return made(tmp_path)


def generation(shard: Collection) -> int:
    return shard.client.state(SHARD).origin.generation


@pytest.mark.family("commands")
@pytest.mark.parametrize("is_back", [False, True], ids=["rebuild", "back"])
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_killed_rebuild_is_ended_by_the_next_call(tmp_path: Path, is_late: bool, is_back: bool) -> None:
    calls = [0]
    (tmp_path / "whole").mkdir()
    assert not dies(made(tmp_path / "whole", is_swapped=is_back), calls, MAX_CALLS, is_late=is_late, is_back=is_back)
    assert 50 < calls[0] < MAX_CALLS
    for at in sample(range(1, calls[0] + 1), KILLS, f"rebuild/{is_late}/{is_back}"):
        (folder := tmp_path / str(at)).mkdir()
        shard = made(folder, is_swapped=is_back)
        assert dies(shard, [0], at, is_late=is_late, is_back=is_back)
        assert names(shard) == NAMES
        assert generation(shard) in (is_back, is_back + 1)
        check_only_left(fsck(shard.client, SHARD).violations)
        stages.checkpoint(shard.client, shard.config)
        shard.check()
        maintain(shard.client, SHARD)
        shard.check()
        again = rebuilt(shard, back_to=-1 if is_back else None)
        assert (again.shard, again.generation) == (SHARD, is_back + 1)
        assert names(shard) == NAMES
        assert generation(shard) == is_back + 1
        assert not shard.client.state(REBUILD).commits
        assert [each["generation"] for each in generations(shard.client, SHARD)] == ([2, 1, 0] if is_back else [1, 0])
        shard.check()
        shard.drop("3.txt", [ok(A, "later", 3)])
        shard.run(60)
        assert names(shard) == {**NAMES, A: "later"}
        shard.check()


def dies(shard: Keyed, calls: list[int], at: int, *, is_late: bool, is_back: bool) -> bool:
    blob, consensus = (
        DyingStore(store, calls, at, is_late=is_late) for store in (shard.location.blob, shard.location.consensus)
    )
    ids = SeededIds(99, shard.clock)
    client = PersistClient(OpenLocation(blob, consensus), shard.clock, ids, fetch_threads=1, part_format=ArrowParts())
    try:
        rebuilt(shard, client, back_to=-1 if is_back else None)
    except Crash:
        return True
    return False


def test_another_definition_is_built_before_clean_up(shard: Keyed) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the store does not answer")

    with patch("persist_core.maintenance.rebuild._clean_up", fail):
        rebuilt(shard)
    shard.define(1, time={"source": "field", "field": "at", "unit": "ms"})  # the schema does not show it
    assert rebuilt(shard).generation == 2
    shard.drop("3.txt", [ok(C, "three", 3)])
    shard.run(60)
    with patch("persist_core.maintenance.rebuild._clean_up", fail):
        rebuilt(shard)
    again = rebuilt(shard)
    assert (again.generation, again.is_new) == (3, False)
    assert names(shard) == NAMES
    shard.check()


def test_appends_meanwhile_are_taken_in_too(shard: Keyed) -> None:
    turns = iter((40, 50))

    def append(_: BatchDescription) -> None:
        if (upper := next(turns, None)) is not None:
            shard.define(0)
            shard.drop(f"{upper}.txt", [ok(C, f"at {upper}", upper)])
            shard.run(upper)
            shard.define(1)

    found = rebuilt(shard, first=append)
    assert found.commit is not None
    assert (found.commit.lower, found.commit.upper) == (50, 51)
    assert names(shard) == {**NAMES, C: "at 50"}
    shard.check()


def test_an_append_before_the_swap_is_taken_in_too(shard: Keyed) -> None:
    said: list[str] = []

    def report(_: Rebuilt) -> None:
        if shard.upper() == 30:
            shard.define(0)
            shard.drop("late.txt", [ok(A, "newest", 9)])
            shard.run(40)
            shard.define(1)

    found = rebuilt(shard, report=report, say=said.append)
    assert found.commit is not None
    assert found.commit.lower == 40
    assert any("another writer was faster" in line for line in said)
    assert names(shard) == {**NAMES, A: "newest"}
    assert shard.client.state(f"{SHARD}~g3").commits, "forked for the swap that was refused"
    maintain(shard.client, SHARD)
    assert not shard.client.state(f"{SHARD}~g3").commits
    assert names(shard.beside(found.kept or "")) == {**NAMES, A: "newest"}
    shard.check()


def test_two_concurrent_rebuilds_make_one(shard: Keyed) -> None:
    ran: list[str] = []

    def another(_: BatchDescription) -> None:
        if not ran:
            ran.append("begun")
            rebuilt(shard)

    with pytest.raises(RunFailed, match="another rebuild"):
        rebuilt(shard, first=another)
    assert names(shard) == NAMES
    assert generation(shard) == 1
    shard.check()


def test_a_run_that_began_before_the_swap_commits_nothing(shard: Keyed) -> None:
    shard.define(0)
    shard.drop("3.txt", [ok(A, "late", 3)])
    description = shard.mint(40)
    key = shard.write(description)
    shard.define(1)
    rebuilt(shard)
    assert isinstance(stages.append(shard.client, description, key), Conflict)
    assert names(shard) == NAMES
    shard.run(40)
    assert names(shard) == {**NAMES, A: "late"}
    shard.check()


def test_a_reader_finishes_on_the_generation_it_began_on(shard: Keyed) -> None:
    reader = shard.client.open_leased_reader(SHARD, lease_ms=30 * GRACE_MS)
    began = reader.state()
    rebuilt(shard)
    for _ in range(10):
        shard.clock.sleep_ms(GRACE_MS + 1)
        maintain(shard.client, SHARD)
    assert not kept_generations(shard.client, shard.client.state(SHARD))
    rows = reader.snapshot_of(began).to_pylist()
    assert {(row["region"], row["id"]): row["name"] for row in rows} == NAMES
    assert list(rows[0])[:2] == ["region", "id"]
    assert reader.snapshot().column_names[:2] == ["id", "region"]


def test_consumers_of_changes_learn_of_the_generation(shard: Keyed) -> None:
    rebuilt(shard)
    reader = shard.client.open_reader(SHARD)
    for after in (0, 29):
        with pytest.raises(
            GenerationChanged, match=r"generation 1 was swapped in at 30.*persist diff things --a things~g3"
        ):
            reader.changes(after)
        with pytest.raises(GenerationChanged):
            reader.error_changes(after)
    shard.drop("3.txt", [ok(A, "later", 3)])
    shard.run(60)
    assert reader.changes(30)["name"].to_pylist() == ["one", "later"]
    assert len(shard.client.open_reader(SHARD, generation=1).changes(9)) == 5
    with pytest.raises(GenerationChanged, match="of generation 0"):
        shard.client.open_reader(SHARD, generation=0).changes(30)
    for unknown in (2, -1, "1"):  # of a life before a drop, or a mistake
        with pytest.raises(GenerationChanged, match=f"no generation {unknown!r}; it is in generation 1"):
            shard.client.open_reader(SHARD, generation=unknown).changes(30)  # type: ignore[arg-type] # - a mistake


def test_a_dry_run_changes_nothing_and_is_gone_on_with(shard: Keyed) -> None:
    before = shard.client.state(SHARD)
    found = rebuilt(shard, is_dry_run=True)
    assert (found.before.rows, found.after.rows, found.commit) == (3, 3, None)
    assert shard.client.state(SHARD) == before
    assert shard.client.shards() == [SHARD]
    asked: list[BatchDescription] = []
    assert rebuilt(shard, first=asked.append).commit is not None
    assert asked == []


def test_rows_that_cannot_be_compared_need_a_confirmation(shard: Keyed) -> None:
    with pytest.raises(InvalidInput, match=r"has 3 rows, 0 errors; before 3 rows, 0 errors.*--yes"):
        rebuilt(shard, is_confirmed=False)
    shard.define(0)
    found = rebuilt(shard, is_confirmed=False, max_changed=(0,))
    assert found.found is not None
    assert found.found.total == 0


def test_more_than_the_limit_needs_a_confirmation(shard: Keyed) -> None:
    shard.define(0)
    shard.feed["2.txt"] = (ok(C, "four", 2),)
    with pytest.raises(InvalidInput, match=r"changes 1 of 3 rows, 0 errors, more than 10 %"):
        rebuilt(shard, is_confirmed=False, max_changed=("10 %",))
    assert names(shard) == NAMES


def test_files_that_are_gone_are_refused_with_a_list(shard: Keyed) -> None:
    shard.take_out("2.txt")
    with pytest.raises(InvalidInput, match=r"1 files .* are gone: 2\.txt"):
        rebuilt(shard)
    assert shard.client.machine.fetch(REBUILD) is None
    assert rebuilt(shard, takes_back_gone=True).gone == ("2.txt",)
    assert names(shard) == {**NAMES, C: "two"}


def test_only_a_generation_that_fits_the_file_is_swapped_back(shard: Keyed) -> None:
    with pytest.raises(InvalidInput, match="has no generation to swap back; kept are: none"):
        rebuilt(shard, back_to=-1)
    rebuilt(shard)
    with pytest.raises(InvalidInput, match="does not fit generation 0: write it as it was then"):
        rebuilt(shard, back_to=-1)
    shard.define(0)
    with pytest.raises(InvalidInput, match="no generation 3 to swap back; kept are: 0"):
        rebuilt(shard, back_to=3)
    with pytest.raises(SchemaMismatch, match="persist rebuild"):
        shard.run(60)
    assert rebuilt(shard, back_to=0).generation == 2
    assert names(shard) == NAMES


def test_pinned_checkpoints_are_not_lost_in_silence(shard: Keyed) -> None:
    pinned = shard.client.state(SHARD).commits[0].checkpoint_id
    actions.pin(shard.client, SHARD, pinned)
    with pytest.raises(InvalidInput, match=rf"are pinned: {pinned}.*persist unpin"):
        rebuilt(shard, first=lambda _: pytest.fail("it was built in vain"))
    actions.unpin(shard.client, SHARD, pinned)
    assert rebuilt(shard).commit is not None


def test_a_pin_that_is_made_before_the_swap_refuses_it(shard: Keyed) -> None:
    pinned = shard.client.state(SHARD).commits[0].checkpoint_id
    swapping = swap_module._swapped

    def late(*args: Any) -> Any:
        actions.pin(shard.client, SHARD, pinned)
        return swapping(*args)

    refused = pytest.raises(InvalidInput, match=rf"are pinned: {pinned}.*persist unpin")
    with patch("persist_core.protocol.swap._swapped", late), refused:
        rebuilt(shard)
    assert generation(shard) == 0
    actions.unpin(shard.client, SHARD, pinned)
    assert rebuilt(shard).commit is not None


def test_a_drop_takes_the_generations_along(shard: Keyed) -> None:
    rebuilt(shard)
    drop(shard.client, SHARD)
    for _ in range(10):
        shard.clock.sleep_ms(GRACE_MS + 1)
        maintain(shard.client, SHARD)
    left = [entry.key for entry in shard.client.blob.list_keys_and_metadata("") if "/gc/" not in entry.key]
    assert left == [LOCATION]


def test_gc_of_a_dropped_shard_deletes_its_generations_too(shard: Keyed) -> None:
    kept = rebuilt(shard).kept or ""
    drop(shard.client, SHARD)
    with pytest.raises(OutsideFrontiers):
        shard.client.open_reader(kept).snapshot()
    for _ in range(10):
        shard.clock.sleep_ms(GRACE_MS + 1)
        for name in with_dropped(shard.client, [SHARD]):
            collect(shard.client, name)
    left = [entry.key for entry in shard.client.blob.list_keys_and_metadata("") if "/gc/" not in entry.key]
    assert left == [LOCATION]


def test_a_name_that_is_used_again_has_no_generations_of_before(shard: Keyed) -> None:
    kept = rebuilt(shard).kept or ""
    shard.define(0)
    actions.recreate(shard.client, SHARD)
    assert not shard.client.state(kept).commits
    assert not shard.client.state(kept).is_dropped
    for upper in (10, 20, 30):
        shard.drop(f"new {upper}.txt", [ok(A, f"at {upper}", upper)])
        shard.run(upper)
    shard.define(1)
    assert rebuilt(shard).kept == kept
    shard.define(0)
    assert rebuilt(shard, back_to=-1).generation == 2
    assert names(shard)[A] == "at 30"
    shard.check()


def test_a_fork_for_a_swap_that_did_not_come_is_given_up(shard: Keyed) -> None:
    with patch("persist_core.protocol.swap._swapped", side_effect=Crash), pytest.raises(Crash):
        rebuilt(shard)
    assert give_up_rebuild(shard.client, SHARD) == [REBUILD, f"{SHARD}~g3"]
    assert give_up_rebuild(shard.client, SHARD) == []
    kept = rebuilt(shard).kept
    assert give_up_rebuild(shard.client, SHARD) == []
    assert shard.client.state(kept or "").commits
    shard.check()


def test_a_rebuild_half_given_up_is_not_taken_for_the_last(shard: Keyed) -> None:
    rebuilt(shard)
    shard.drop("3.txt", [ok(A, "later", 3)])
    shard.run(60)
    rebuilt(shard, is_dry_run=True)
    drop(shard.client, REBUILD, is_forced=True)
    assert rebuilt(shard).generation == 2
    shard.check()


def test_a_swap_whose_rebuild_is_given_up_meanwhile_is_refused(shard: Keyed) -> None:
    stage = fork_module.stage_shared

    def given_up(*arguments: Any) -> Any:
        give_up_rebuild(shard.client, SHARD)
        return stage(*arguments)

    refused = pytest.raises((RunFailed, OutsideFrontiers))
    with patch("persist_core.protocol.swap.stage_shared", given_up), refused:
        rebuilt(shard)
    assert generation(shard) == 0
    shard.check()


def test_a_swap_writes_no_rows(tmp_path: Path) -> None:
    sizes: dict[int, Any] = {}
    for rows in (10, 3_000):
        (tmp_path / str(rows)).mkdir()
        shard = Keyed(tmp_path / str(rows))
        shard.drop("0.txt", [ok(("eu", number), f"row {number}" * 20) for number in range(rows)])
        shard.run(10)
        shard.define(1)
        rebuilt(shard, is_dry_run=True)
        before = stored(shard)
        rebuilt(shard)
        sizes[rows] = before, stored(shard) - before
    assert sizes[3_000][0] > 20 * sizes[10][0]
    assert abs(sizes[3_000][1] - sizes[10][1]) < 2_000


def stored(shard: Collection) -> int:
    return sum(entry.size_bytes for entry in shard.client.blob.list_keys_and_metadata(""))
