"""Corrections of a shard that was filled: the fork is filled too, whatever has been forgotten or comes meanwhile."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from persist_core.config.collection import CollectionConfig
from persist_core.contents.parts import updates_schema
from persist_core.contents.stats import FILLED_COLUMN
from persist_core.errors import RunFailed
from persist_core.protocol import stages
from persist_core.protocol.describe import describe_change
from persist_core.schema import DIFF, TIME
from persist_core.shard.state import Committed
from tests.core.maintenance.test_reprocess import HIDDEN, corrected, replace_file
from tests.core.maintenance.test_reprocess_faults import A, B, C, names, ok
from tests.core.maintenance.test_reprocess_starts import forget_commits
from tests.core.protocol.restored_shard import SHARD, Collection


def fill(shard: Collection, name: str) -> None:
    """Commit what a fill commits: row `A` has another value, if it has not yet."""
    state = shard.client.state(name)
    row = next(row for row in shard.client.open_reader(name).snapshot().to_pylist() if row["id"] == A[1])
    if row["name"] == "filled" or state.schema is None:
        return
    both = [{**row, TIME: state.upper.time, DIFF: -1}, {**row, "name": "filled", TIME: state.upper.time, DIFF: 1}]
    description = describe_change(shard.client, state, f"fill {name} {state.upper}", writer="fill")
    updates = pa.Table.from_pylist(both, schema=updates_schema(state.schema))
    writer, stats = shard.client.open_writer(name), {f"{FILLED_COLUMN}name": 1}
    key = writer.stage(description, state.schema, shard.client.ids.uuid7(), updates, stats=stats)
    assert isinstance(stages.append(shard.client, description, key), Committed)
    stages.checkpoint(shard.client, shard.config.model_copy(update={"name": name}))


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collection:
    """Two commits, and a fill after them. A correction fills its fork in the same way."""
    shard = Collection(tmp_path)
    for number, slot in enumerate((A, B), 1):
        shard.drop(f"{number}.txt", [ok(slot, f"{number}")])
        shard.run(10 * number)
    fill(shard, SHARD)

    def filled(_: object, config: CollectionConfig, *__: object, **___: object) -> None:
        fill(shard, config.name)

    monkeypatch.setattr("persist_core.maintenance.reprocess.fill", filled)
    return shard


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_correction_takes_back_no_fill(
    shard: Collection, monkeypatch: pytest.MonkeyPatch, is_forgotten: bool
) -> None:
    if is_forgotten:
        forget_commits(monkeypatch)
    for number in (3, 4, 5):
        shard.drop(f"{number}.txt", [ok(C, f"{number}")])
        shard.run(10 * number)
    assert is_forgotten == (not any(each.is_change for each in shard.client.state(SHARD).commits))
    replace_file(shard, "2.txt", (ok(B, "right"),))
    found = corrected(shard, 10)
    assert (found.start.upper, found.found.total) == (10, 1)
    assert names(shard) == {A: "filled", B: "right", C: "5"}
    shard.check()


def test_a_restore_while_a_replay_is_filled_is_not_undone(shard: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fill moves the fork's upper as far as the restore moves the shard's."""
    good = shard.client.state(SHARD).commits[-1].checkpoint_id
    shard.drop("3.txt", [ok(C, "wrong")])
    shard.run(30)

    def filled(_: object, config: CollectionConfig, *__: object, **___: object) -> None:
        fill(shard, config.name)
        shard.go_back(good)

    monkeypatch.setattr("persist_core.maintenance.reprocess.fill", filled)
    replace_file(shard, "2.txt", (ok(B, "right"),))
    with pytest.raises(RunFailed, match="was rebuilt, restored or dropped in the meantime"):
        corrected(shard, 10)
    assert names(shard) == {A: "filled", B: "2"}
    assert shard.client.state(HIDDEN).upper.time == shard.upper()
