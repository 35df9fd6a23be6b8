"""Minting over shards: how far a view goes, what is frozen, which holds it takes, when there is nothing to read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchCounts, BatchDescription, BatchManifest
from persist_core.contents.parts import updates_schema
from persist_core.errors import CorruptArtifact, InvalidInput, OutsideFrontiers, UnknownVersion
from persist_core.frontier import CLOSED, Frontier
from persist_core.handles.client import PersistClient
from persist_core.handles.write import manifest_for, stage_manifest
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.drop import create_again, drop
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import describe, stages
from persist_core.protocol.stages import Minted, NothingToDo
from persist_core.schema import DIFF, TIME, CollectionSchema, Column
from persist_core.sealed import seal
from persist_core.shard.history import Advance, Holder
from persist_core.shard.state import Committed
from persist_core.sources.frozen import load_frozen
from persist_core.sources.shards import FrozenShards, Refreshed, ShardSource, check_closable
from persist_core.time_text import MAX_TIME
from tests.dying_store import Crash
from tests.virtual import ManualClock, SeededIds

SCHEMA = CollectionSchema(key=(), values=(Column("n", "bigint"),))


class World:
    """Two inputs, `a` and `b`, and a view of them, in memory."""

    def __init__(self) -> None:
        self.blob, clock = MemBlob(), ManualClock(5)
        self.client = PersistClient(OpenLocation(self.blob, MemConsensus()), clock, SeededIds(1, clock))

    def view(self, **fields: Any) -> ViewConfig:
        body = {"name": "v", "query": "SELECT * FROM a, b", "inputs": ["a", "b"]}
        return ViewConfig.model_validate({**body, **fields})

    def lives(self) -> dict[str, str | None]:
        return {name: self.client.state(name).origin.life for name in ("a", "b")}

    def append(
        self, shard: str, upper: int | None, *numbers: int, diff: int = 1, schema: CollectionSchema = SCHEMA
    ) -> None:
        """A batch with these numbers at its last time, by a writer that knows nothing of views."""
        state = self.client.ensure_shard(shard)
        newest = state.newest_commit
        description = BatchDescription(
            shard=shard,
            lower=state.upper.time or 0,
            upper=upper,
            token=self.client.ids.uuid7(),
            checkpoint_id=self.client.ids.uuid7(),
            epoch=newest.epoch + 1 if newest else 1,
            parent_id=None,
            writer="test",
        )
        time = MAX_TIME if upper is None else upper - 1
        oks = pa.Table.from_pylist([{"n": n, TIME: time, DIFF: diff} for n in numbers], schema=updates_schema(schema))
        writer = self.client.open_writer(shard)
        key = writer.stage(description, schema, self.client.ids.uuid7(), oks)
        assert isinstance(writer.compare_and_append(self.client.staged_manifest(key), key), Committed)

    def mint(self, until: int | None = None, **fields: Any) -> Minted | NothingToDo:
        return stages.mint(self.client, self.view(**fields), until=until, writer="test")

    def refresh(self, until: int | None = None, **fields: Any) -> BatchDescription:
        """Mint, and commit an empty batch for it, as if the query had no rows."""
        minted = self.mint(until, **fields)
        assert isinstance(minted, Minted), minted
        description, config = minted.description, self.view(**fields)
        key = stages.write_without_input(self.client, config, description)
        if key is None:
            schema = self.client.state(description.shard).schemas.placed(SCHEMA)
            manifest: BatchManifest = manifest_for(description, schema, (), BatchCounts(), rows="none")
            key = stage_manifest(self.blob, manifest, self.client.ids.uuid7())
        assert isinstance(stages.append(self.client, description, key), Committed)
        stages.checkpoint(self.client, config)
        return description

    def held(self, shard: str) -> dict[str, int | None]:
        return {holder: hold.since.time for holder, hold in self.client.state(shard).holds.items()}


@pytest.fixture
def world() -> World:
    made = World()
    made.append("a", 10, 1)
    made.append("b", 7, 2)
    return made


def test_a_view_goes_as_far_as_its_inputs_and_until(world: World) -> None:
    minted = world.mint()
    assert isinstance(minted, Minted)
    assert (minted.description.lower, minted.description.upper, minted.description.input_files) == (0, 7, 2)
    assert minted.notices == ()
    bounded = world.mint(5)
    assert isinstance(bounded, Minted)
    assert (bounded.description.upper, bounded.notices) == (5, ())
    short = world.mint(9)
    assert isinstance(short, Minted)
    assert (short.description.upper, *short.notices) == (
        7,
        "view v goes up to 7, not to 9: that is the upper of its input b",
    )
    assert minted.description.input_key is not None
    frozen = load_frozen(world.client.blob, minted.description.input_key, FrozenShards)
    assert frozen == FrozenShards("SELECT * FROM a, b", 6, {"a": 10, "b": 7}, {"a": 1, "b": 1}, world.lives())
    refreshed = Refreshed.of(minted.description.sources)
    assert refreshed == Refreshed(6, minted.description.input_key, {"a": 10, "b": 7}, world.lives())


def test_the_same_dag_run_mints_the_same_token(world: World) -> None:
    first, second = world.mint(5), world.mint(5)
    assert isinstance(first, Minted)
    assert isinstance(second, Minted)
    assert first.description.token == second.description.token


def test_nothing_to_do_names_the_input_that_is_behind(world: World) -> None:
    world.refresh()
    world.append("a", 20)
    nothing = world.mint()
    assert isinstance(nothing, NothingToDo)
    assert "contains everything before 7, and the upper of its input b is 7" in nothing.reason
    covered = world.mint(6)
    assert isinstance(covered, NothingToDo)
    assert "covered by an earlier commit" in covered.reason
    missing = world.mint(query="SELECT * FROM c", inputs=["c"], name="w")
    assert isinstance(missing, NothingToDo)
    assert "its input c does not exist yet" in missing.reason


def test_a_view_holds_no_input_until_all_have_data(world: World) -> None:
    for _ in ("it is not there", "it is empty"):
        assert isinstance(world.mint(inputs=["a", "b", "c"]), NothingToDo)
        assert (world.held("a"), world.held("b")) == ({}, {})
        world.client.ensure_shard("c")
    world.append("c", 9, 3)
    assert isinstance(world.mint(inputs=["a", "b", "c"]), Minted)
    assert all(list(world.held(name)) == ["view/v"] for name in ("a", "b", "c"))


def test_a_view_holds_no_new_input_until_all_are_there(world: World) -> None:
    world.refresh()
    world.append("c", 9, 3)
    assert isinstance(world.mint(inputs=["a", "c", "d"]), NothingToDo)
    assert world.held("c") == {}
    world.append("d", 9, 3)
    assert isinstance(world.mint(inputs=["a", "c", "d"]), Minted)
    assert list(world.held("c")) == ["view/v"]


def test_closed_inputs_never_end_and_close_the_view_when_all_are(world: World) -> None:
    world.append("b", None, 3)
    assert world.refresh().upper == 10
    with pytest.raises(InvalidInput, match="its input a is open"):
        check_closable(world.client, world.view())
    world.append("a", None, 4)
    check_closable(world.client, world.view())
    assert world.refresh().upper is None
    assert world.client.state("v").upper == CLOSED
    assert "closed" in getattr(world.mint(), "reason", "")


def test_an_input_whose_since_has_passed_is_an_error(world: World) -> None:
    world.client.set_history("a", 2)
    world.client.advance_since("a")
    with pytest.raises(OutsideFrontiers, match="needs its input a as of 6, but a can be read from since 8 on"):
        world.mint()


def test_an_input_that_was_dropped_is_named(world: World) -> None:
    world.refresh()
    drop(world.client, "a", is_forced=True)
    world.append("b", 20)
    with pytest.raises(OutsideFrontiers, match=r"its input a, which was dropped: .* take it out of the query"):
        world.mint()


def test_holds_start_at_mint_and_move_if_they_block_history(world: World) -> None:
    world.mint()
    assert world.held("a") == {"view/v": 0}
    world.refresh()
    assert world.held("a") == {"view/v": 0}
    assert world.client.state("a").since == Frontier(0)
    world.client.set_history("a", 0)
    held_by = Holder("hold", "view/v", Frontier(0))
    assert world.client.advance_since("a") == Advance(Frontier(0), Frontier(0), held_by)
    stages.checkpoint(world.client, world.view())
    assert world.held("a") == {"view/v": 6}
    world.client.advance_since("a")
    assert world.client.state("a").since == Frontier(6), "the view may still need 6"
    seqno = world.client.state("a").seqno
    stages.checkpoint(world.client, world.view())
    assert world.client.state("a").seqno == seqno
    world.append("b", 12)
    assert world.refresh().upper == 10
    world.client.advance_since("a")
    assert world.client.state("a").since == Frontier(9)


def test_an_input_that_is_read_no_more_is_let_go(world: World) -> None:
    world.refresh()
    assert (world.held("a"), world.held("b")) == ({"view/v": 0}, {"view/v": 0})
    world.append("a", 20, 3)
    world.refresh(query="SELECT * FROM a", inputs=["a"])
    assert (world.held("a"), world.held("b")) == ({"view/v": 0}, {})
    world.append("a", 30, 4)
    world.refresh(query="SELECT * FROM a", inputs=["a"])
    assert (world.held("a"), world.held("b")) == ({"view/v": 0}, {})


def test_an_input_is_let_go_after_runs_that_died(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in a row end before their checkpoint tasks, and one of the inputs is dropped then."""
    world.append("c", 7, 3)
    world.refresh(inputs=["a", "b", "c"])
    with monkeypatch.context() as patch:
        patch.setattr(stages, "checkpoint", lambda *_: None)
        for upper in (20, 30):
            world.append("a", upper, upper)
            world.refresh(query="SELECT * FROM a", inputs=["a"])
    assert (world.held("b"), world.held("c")) == ({"view/v": 0}, {"view/v": 0})
    drop(world.client, "c", is_forced=True)
    progress = []
    for upper in (40, 50):
        world.append("a", upper, upper)
        progress.append(Refreshed.of(world.refresh(query="SELECT * FROM a", inputs=["a"]).sources))
    assert (world.held("a"), world.held("b")) == ({"view/v": 0}, {})
    assert [each.given_up for each in progress if each] == [("b",), ()]
    assert fsck(world.client, "v").is_clean


def test_dropping_a_view_again_releases_its_inputs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.refresh()

    def killed(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("persist_core.maintenance.drop._drop_hidden", killed)
        with pytest.raises(Crash):
            drop(world.client, "v")
    assert world.client.state("v").is_dropped
    assert (world.held("a"), world.held("b")) == ({"view/v": 0}, {"view/v": 0})
    assert not drop(world.client, "v")
    assert (world.held("a"), world.held("b")) == ({}, {})


def test_dropping_a_view_releases_what_it_only_minted(world: World) -> None:
    world.append("c", 7, 3)
    world.mint(inputs=["a", "c"])
    world.refresh()
    world.client.open_since("c", "view/other")
    assert drop(world.client, "v")
    assert (world.held("a"), world.held("b"), world.held("c")) == ({}, {}, {"view/other": 0})


def test_a_lost_frozen_input_does_not_stop_the_next_refresh(world: World) -> None:
    world.append("b", 10)
    first = world.refresh()
    for shard in ("a", "b"):
        world.append(shard, 20)
    assert first.input_key is not None
    world.blob.delete(first.input_key)
    (finding,) = fsck(world.client, "v").violations
    assert first.input_key in finding.message
    assert world.refresh().input_key is not None
    assert fsck(world.client, "v").is_clean  # a view needs only what its newest refresh has read


def test_where_no_input_has_changed_there_is_nothing_to_read(world: World) -> None:
    world.append("b", 10)
    first = world.refresh()
    for shard in ("a", "b"):
        world.append(shard, 20)
    minted = world.mint()
    assert isinstance(minted, Minted)
    assert minted.description.input_key is None
    assert minted.notices == ("no input has changed: nothing to read",)
    sealed = world.refresh()
    refreshed = Refreshed.of(sealed.sources)
    assert refreshed == Refreshed(19, first.input_key or "", {"a": 20, "b": 20}, world.lives())
    assert fsck(world.client, "v").is_clean
    world.append("a", 30, 5)
    world.append("b", 30)
    assert world.refresh().input_key is not None


@pytest.mark.parametrize("change", ["query", "rogue", "inputs", "life", "columns"])
def test_what_is_not_as_the_last_refresh_left_it_is_read_again(world: World, change: str) -> None:
    world.append("b", 10)
    world.refresh()
    for shard in ("a", "b"):
        world.append(shard, 20)
    fields: dict[str, Any] = {}
    if change == "query":
        fields["query"] = "SELECT 1 FROM a, b"
    if change == "inputs":
        fields |= {"query": "SELECT * FROM a", "inputs": ["a"]}
    if change == "life":  # with other rows at the times that the view has read
        drop(world.client, "a", is_forced=True)
        create_again(world.client, "a")
        world.append("a", 10, 7)
        world.append("a", 20)
    if change == "columns":
        world.append("a", 30, schema=replace(SCHEMA, values=(*SCHEMA.values, Column("m", "int"))))
        world.append("b", 30)
    if change == "rogue":
        world.append("v", 12, 99)
    minted = world.mint(**fields)
    assert isinstance(minted, Minted)
    assert minted.description.input_key is not None


def test_a_damaged_frozen_input_is_named(world: World) -> None:
    minted = world.mint()
    assert isinstance(minted, Minted)
    key = minted.description.input_key
    assert key is not None
    damaged = (
        b"{}",
        seal("frozen_files", 1, {}),
        FrozenShards("SELECT 2", 6, {"a": 10}, {"a": 1}, {"a": "one"}).encode(),
    )
    for data, error in (*((data, CorruptArtifact) for data in damaged), (seal("frozen_shards", 9, {}), UnknownVersion)):
        world.blob.set(key, data)
        with pytest.raises(error, match=key):
            load_frozen(world.client.blob, key, FrozenShards)
    world.blob.delete(key)
    with pytest.raises(CorruptArtifact, match="is missing"):
        load_frozen(world.client.blob, key, FrozenShards)


def test_fsck_finds_missing_frozen_inputs_and_invented_rows(world: World) -> None:
    description = world.refresh()
    assert fsck(world.client, "v").is_clean
    assert description.input_key is not None
    world.blob.delete(description.input_key)
    assert {finding.check for finding in fsck(world.client, "v").violations} == {"source_progress"}
    world.append("b", 9, 2, diff=-1)
    assert fsck(world.client, "b").is_clean
    world.append("b", 11, 2, diff=-1)
    (finding,) = fsck(world.client, "b").violations
    assert finding.check == "counts_not_negative"


def test_dry_runs_take_no_hold_and_stage_nothing(world: World) -> None:
    config = world.view()
    before = {entry.key for entry in world.blob.list_keys_and_metadata("")}
    assert ShardSource(world.client, config).dry_run_time(None) == 6
    assert ShardSource(world.client, config).dry_run_time(4) == 3
    description = describe.dry_run_description(world.client, config, 6)
    assert (description.lower, description.upper) == (0, 7)
    assert ShardSource(world.client, config).frozen_at(6).as_of == 6
    assert {entry.key for entry in world.blob.list_keys_and_metadata("")} == before
    assert world.client.shards() == ["a", "b"]
    assert world.held("a") == {}
    world.client.ensure_shard("c")
    with pytest.raises(OutsideFrontiers, match="not all of its inputs"):
        ShardSource(world.client, world.view(inputs=["a", "c"])).dry_run_time(None)


def test_minted_and_covered_by_another_description(world: World) -> None:
    loser = world.mint()
    assert isinstance(loser, Minted)
    world.refresh(5)
    key = stages.manifest_of_outdated(world.client, world.view(), loser.description)
    assert isinstance(stages.append(world.client, loser.description, key), stages.Conflict)
