"""`persist fill` but for its Spark job: kills at each call of a store, lost races, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.operator_state import OperatorState
from persist_core.contents.parts import updates_schema
from persist_core.errors import InvalidInput, OutdatedDescription, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.differences import report_of
from persist_core.maintenance.fill import Filled, Wishes, fill
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.planned import planned
from persist_core.protocol.stages import Minted
from persist_core.schema import DIFF, TIME
from persist_core.shard.state import Committed
from tests.dying_store import Crash, DyingStore
from tests.virtual import ManualClock, SeededIds

NAME = "things"
CONFIRMED = Wishes(is_confirmed=True)
FULL = {1: ("a", None), 2: ("b", None), 3: ("c", None)}


class World:
    """Three rows in two commits, the first of which had no column `c`: `more` holds its text."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock(1_700_000_000_000)
        self.location = OpenLocation(MemBlob(clock=self.clock), MemConsensus())
        self.ids = SeededIds(7, self.clock)
        self.client = self.opened(self.location)
        self.config = self.defined(c=None)
        self.commit(10, [(1, None, "a"), (2, None, "b")])
        self.config = self.defined()
        self.commit(20, [(3, "c", None)])

    def opened(self, location: OpenLocation) -> PersistClient:
        return PersistClient(location, self.clock, self.ids, fetch_threads=1)

    def defined(self, rest: str | None = "more", **changes: Any) -> CollectionConfig:
        columns = {"id": "bigint", "c": "string", "more": "json"} | changes
        return CollectionConfig.model_validate(
            {
                "name": NAME,
                "source": {"path": "*.jsonl", "format": "json", "rest": rest},
                "key": "id",
                "columns": {name: kind for name, kind in columns.items() if kind is not None},
                "delete": "none",
                "base_dir": str(self.folder),
            }
        )

    def updates(self, rows: list[tuple[int, str | None, str | None, int]], time: int) -> pa.Table:
        schema = self.client.state(NAME).schemas.placed(self.config.collection_schema())
        cells = [{"id": i, "c": c, "more": more, TIME: time, DIFF: diff} for i, c, more, diff in rows]
        return pa.Table.from_pylist(cells, schema=updates_schema(schema))

    def commit(self, until: int, rows: list[tuple[int, str | None, str | None]]) -> None:
        minted = stages.mint(self.client, self.config, until=until, writer="test")
        assert isinstance(minted, Minted)
        description, schema = minted.description, self.config.collection_schema()
        oks = self.updates([(*row, 1) for row in rows], description.lower)
        key = self.client.open_writer(NAME).stage(description, schema, self.ids.uuid7(), oks)
        assert isinstance(stages.append(self.client, description, key), Committed)
        stages.checkpoint(self.client, self.config)

    def rows(self, as_of: int | None = None) -> dict[int, tuple[str | None, str | None]]:
        found = self.client.open_reader(NAME).snapshot(as_of).to_pylist()
        return {row["id"]: (row.get("c"), row["more"]) for row in found}

    def write(self, client: PersistClient, description: BatchDescription) -> str:
        """Act as the job: `c` is the whole text of `more`."""
        stages.check_not_outdated(client.state(NAME), description)
        rows = client.open_reader(NAME).snapshot(description.lower - 1).to_pylist()
        pairs = [(row["id"], row["c"], row["more"]) for row in rows if row["more"] is not None]
        oks = [*((*row, -1) for row in pairs), *((i, more, None, 1) for i, _, more in pairs)]
        unchanged = {name: OperatorState(is_delta=True, artifacts=()) for name in description.operators}
        schema, updates = self.config.collection_schema(), self.updates(oks, description.lower)
        writer = client.open_writer(NAME)
        return writer.stage(description, schema, self.ids.uuid7(), updates, operators=unchanged)

    def fill(self, request: Wishes = CONFIRMED, client: PersistClient | None = None, **more: Any) -> Filled:
        own = client or self.client
        options: dict[str, Any] = {"write": lambda _, each: self.write(own, each), "say": lambda _: None}
        return fill(own, self.config, request, writer="test", **(options | more))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_fill_is_one_commit_and_a_second_one_none(world: World) -> None:
    before, sources = world.rows(), world.client.state(NAME).sources
    assert report_of(world.fill(Wishes(is_dry_run=True))).done == "nothing was committed"
    assert world.rows() == before
    found = world.fill()
    assert found.commit is not None
    assert (found.commit.lower, found.commit.upper, found.changed, found.rows) == (20, 21, 2, 3)
    assert world.rows() == FULL
    assert world.rows(19) == before
    again = world.fill()
    assert (again.commit, again.changed) == (None, 0)
    assert report_of(again).done == f"nothing to fill in {NAME}"
    assert world.client.state(NAME).sources == sources
    assert fsck(world.client, NAME).is_clean


@pytest.mark.family("commands")
@pytest.mark.parametrize("is_late", [False, True])
def test_a_killed_fill_is_called_again(tmp_path: Path, is_late: bool) -> None:
    """At each call of a store."""
    at, done = 0, False
    while not done:
        at += 1
        assert at < 500
        world, calls = World(tmp_path), [0]
        blob, consensus = (
            DyingStore(store, calls, at, is_late=is_late) for store in (world.location.blob, world.location.consensus)
        )
        dying: Any = (blob, consensus)
        try:
            world.fill(client=world.opened(OpenLocation(*dying)))
            done = True
        except Crash:
            assert world.rows() in ({**FULL, 1: (None, "a"), 2: (None, "b")}, FULL)
            world.fill()
        assert world.rows() == FULL
        assert len(world.client.state(NAME).commits) == 3
        report = fsck(world.client, NAME)
        assert report.is_clean, report.violations


@pytest.mark.parametrize("is_before", [False, True])
def test_what_comes_meanwhile_is_filled_too(world: World, is_before: bool) -> None:
    """Before the job has looked, or between the job and the append."""
    said: list[str] = []
    late = iter([(4, None, "d")])

    def write(_: object, description: BatchDescription) -> str:
        row = next(late, None)
        if row is not None and is_before:
            world.commit(30, [row])
        key = world.write(world.client, description)
        if row is not None and not is_before:
            world.commit(30, [row])
        return key

    found = world.fill(write=write, say=said.append)
    assert (found.changed, found.commit is not None, len(said)) == (3, True, 1)
    assert world.rows() == {**FULL, 4: ("d", None)}


def test_a_fill_gives_up_if_others_always_win(world: World) -> None:
    def write(_: object, description: BatchDescription) -> str:
        raise OutdatedDescription(description.interval)

    with pytest.raises(RunFailed, match="lost 10 appends"):
        world.fill(write=write)


def test_a_large_fill_needs_a_person(world: World) -> None:
    shown: list[Filled] = []
    with pytest.raises(InvalidInput, match=r"2 rows of things would change, more than 10 %.*\(in the action: confirm,"):
        world.fill(Wishes(max_changed=("10 %",)), report=shown.append)
    assert [each.changed for each in shown] == [2], "the report comes first"
    assert world.rows() == {**FULL, 1: (None, "a"), 2: (None, "b")}
    assert world.fill(Wishes(max_changed=(2,))).commit is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda world: setattr(world, "config", world.defined(rest=None)), "has no `source.rest`"),
        (lambda world: setattr(world, "config", world.defined(d="int")), "run the collection first"),
        (lambda world: setattr(world, "config", replace_name(world, "others")), "closed or empty"),
    ],
)
def test_a_fill_is_refused_with_a_remedy(world: World, change: Callable[[World], None], why: str) -> None:
    change(world)
    world.client.ensure_shard("others")
    with pytest.raises(InvalidInput, match=why):
        world.fill()


def replace_name(world: World, name: str) -> CollectionConfig:
    return world.config.model_copy(update={"name": name})


def test_a_plan_names_the_fill(world: World) -> None:
    world.config = world.defined(d="int")
    (added, then) = planned(world.client, world.config).changes
    assert added == "d (int) is added: null in earlier rows"
    assert then == f"after the run, `persist fill {NAME}` fills earlier rows from more"
    assert len(planned(world.client, world.defined(rest=None, d="int")).changes) == 1
    assert len(planned(world.client, world.defined(c=None)).changes) == 1
