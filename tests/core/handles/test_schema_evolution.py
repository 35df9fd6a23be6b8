"""The schema of a shard evolves in place, or is refused with both schemas and the remedy."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from persist_core.checkpoint.publish import publish_missing
from persist_core.compaction.due import merge_due
from persist_core.compaction.merge import Merge, merge_here
from persist_core.contents.evolution import changes_between
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import InvalidInput, OutsideFrontiers, SchemaMismatch
from persist_core.frontier import Frontier
from persist_core.gc.collect import GRACE_MS, collect
from persist_core.handles.client import PersistClient
from persist_core.handles.read import in_schema
from persist_core.inspection.rows import Cut, rows_as_of
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.schema import DIFF, TIME, CollectionSchema, Column
from tests.plain_commit import commit
from tests.virtual import ManualClock, SeededIds

SHARD = "things"
KEY = (Column("id", "int", nullable=False),)


@pytest.fixture
def client() -> PersistClient:
    clock = ManualClock(1)
    return PersistClient(OpenLocation(MemBlob(), MemConsensus()), clock, SeededIds(1, clock))


def schema(*values: Column, dropped: tuple[str, ...] = ()) -> CollectionSchema:
    return CollectionSchema(KEY, values, dropped=dropped)


def after(*wanted: CollectionSchema) -> SchemaVersions:
    """The versions of a shard whose runs had these definitions."""
    found = SchemaVersions()
    for each in wanted:
        found = found.with_batch_of(found.placed(each), seqno=len(found.versions) + 1, lower=10 * len(found.versions))
    return found


def ids(found: SchemaVersions) -> dict[str, int | None]:
    assert found.newest is not None
    return {column.name: column.id for column in found.newest.columns}


A, B, N = Column("a", "string"), Column("b", "string"), Column("n", "int")


@pytest.mark.parametrize(
    ("wanted", "expected", "words"),
    [
        pytest.param(schema(A, N), {"id": 1, "a": 2, "n": 3}, None, id="nothing"),
        pytest.param(
            schema(B, A, N),
            {"id": 1, "b": 4, "a": 2, "n": 3},
            ["b (string) is added: null in earlier rows"],
            id="added",
        ),
        pytest.param(schema(N), {"id": 1, "n": 3}, ["a is dropped; its history stays readable"], id="dropped"),
        pytest.param(
            schema(replace(B, renamed_from="a"), N), {"id": 1, "b": 2, "n": 3}, ["a is renamed to b"], id="renamed"
        ),
        pytest.param(
            schema(replace(B, renamed_from="a"), A, N),
            {"id": 1, "b": 2, "a": 4, "n": 3},
            ["a is renamed to b", "a (string) is added: null in earlier rows"],
            id="renamed, and its name given to another",
        ),
        pytest.param(
            schema(B, N, dropped=("a",)),
            {"id": 1, "b": 4, "n": 3},
            ["a is dropped; its history stays readable", "b (string) is added: null in earlier rows"],
            id="really a drop and an add",
        ),
        pytest.param(
            schema(A, Column("m", "bigint", renamed_from="n")),
            {"id": 1, "a": 2, "m": 3},
            ["n is renamed to m", "n is widened from int to bigint"],
            id="renamed and widened",
        ),
        pytest.param(
            schema(N, A), {"id": 1, "n": 3, "a": 2}, ["the columns are in another order, or inherit values"], id="moved"
        ),
    ],
)
def test_the_table_of_evolutions(wanted: CollectionSchema, expected: dict[str, int], words: list[str] | None) -> None:
    found = after(schema(A, N), wanted)
    assert ids(found) == expected
    if words is None:
        assert len(found.versions) == 1
    else:
        said = changes_between(*(each.schema for each in found.versions))
        assert [each.replace("m is widened", "n is widened") for each in said] == words
    assert found.placed(wanted) is found.newest, "the declarations may stay in the file"


def test_declarations_that_were_applied_may_stay() -> None:
    once, twice = replace(B, renamed_from="a"), replace(A, name="c", renamed_from="b")
    assert ids(after(schema(A), schema(once), schema(once), schema(twice), schema(twice))) == {"id": 1, "c": 2}
    back = replace(A, renamed_from="b")
    assert ids(after(schema(A), schema(once), schema(back), schema(back))) == {"id": 1, "a": 2}
    assert ids(after(schema(once), schema(once))) == {"id": 1, "b": 2}, "a shard that never had the old name"
    again = after(schema(A), schema(once), schema(once, A), schema(once))
    assert ids(again) == {"id": 1, "b": 2}, "the second a is dropped, and is no rename"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (schema(B, N), r"write `b: \{type: string, renamed_from: a\}`; if not, write `dropped: \[a\]`"),
        (schema(A, Column("m", "bigint")), "renamed_from: n"),
        (schema(A, replace(N, name="m", renamed_from="x")), "the shard has no column x; its columns are id, a, n"),
        (schema(replace(A, renamed_from="n")), "the shard has both"),
        (schema(replace(A, renamed_from="n"), replace(N, renamed_from="a")), "columns a, n exchange their names"),
        (schema(replace(B, renamed_from="a"), replace(A, name="c", renamed_from="a"), N), "`renamed_from` one"),
        (schema(A, N, Column("m", "double", nullable=False)), "the new column m is not nullable"),
        (schema(A, replace(N, nullable=False)), "n would go from nullable to required"),
        (schema(A, replace(N, type="string")), r"n would go from int to string(?s:.)*n: int +!= n: string"),
        (schema(A, replace(N, type="double")), "n would go from int to double"),
        (CollectionSchema((*KEY, replace(A, nullable=False)), (N,)), "the key is id, and would be id, a"),
        (CollectionSchema((), (replace(KEY[0]), A, N)), "the key is id, and would be none"),
    ],
)
def test_all_else_is_refused(wanted: CollectionSchema, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        after(schema(A, N), wanted)


def test_of_a_view_the_first_remedy_keeps_the_history() -> None:
    rows = CollectionSchema((), (A, N))
    with pytest.raises(SchemaMismatch, match="Give the column another name, or drop the shard and its history"):
        after(rows, replace(rows, values=(A, replace(N, type="string"))))


def test_a_rename_to_the_name_of_another_column_is_refused() -> None:
    """Also if the old name goes to a new column in the same file: nothing would happen, silently."""
    wanted = schema(replace(B, renamed_from="a"), A, N)
    with pytest.raises(SchemaMismatch, match="the shard has both"):
        after(schema(A, N), schema(A, B, N), wanted)
    assert ids(after(wanted, wanted)) == {"id": 1, "b": 2, "a": 3, "n": 4}, "a shard that begins so"


WIDENINGS: list[tuple[str, str, list[Any]]] = [
    ("int", "bigint", [-(2**31), -1, 0, 2**31 - 1, None]),
    ("float", "double", [0.10000000149011612, -0.5, 0.0, float("inf"), 1.401298464324817e-45, None]),
    ("decimal(4,2)", "decimal(38,2)", [Decimal("-99.99"), Decimal("0.00"), Decimal("1.10"), None]),
]


@pytest.mark.parametrize(("old", "new", "values"), WIDENINGS)
def test_a_value_is_one_value_before_and_after_it_is_widened(
    client: PersistClient, old: str, new: str, values: list[Any]
) -> None:
    """A retraction in the wider type ends a row of the narrower one, merged or not; in a multiset by its whole row."""
    for key in (KEY, ()):
        shard = f"wide-{len(key)}"
        first = CollectionSchema(key, (Column("place", "int"), Column("v", old)))
        rows = [(*((place,) if key else ()), place, value) for place, value in enumerate(values)]
        commit(client, shard, first, 10, [(row, 5, 1) for row in rows])
        second = replace(first, values=(first.values[0], Column("v", new)))
        commit(client, shard, second, 20, [(row, 15, -1) for row in rows[1:]])
        for _ in range(2):
            reader = client.open_reader(shard)
            assert [row["v"] for row in reader.snapshot(9).sort_by("place").to_pylist()] == values
            assert [row["v"] for row in reader.snapshot().to_pylist()] == values[:1]
            assert reader.snapshot().schema.equals(client.state(shard).schemas.placed(second).arrow())
            assert not fsck(client, shard).violations
            merge_all(client, shard)


def test_an_evolution_writes_as_much_whatever_the_size(client: PersistClient) -> None:
    """Each of its kinds, in one commit of one row: what a table of 10 rows costs, one of 10,000 costs."""
    first = schema(A, N)
    second = schema(replace(B, renamed_from="a"), replace(N, type="bigint"), Column("more", "string"))
    written = {}
    for rows in (10, 10_000):
        shard = f"of-{rows}"
        commit(client, shard, first, 10, [((key, f"row {key}" * 20, key), 5, 1) for key in range(1, rows)])
        before = stored(client)
        commit(client, shard, second, 20, [((0, "new", 1, "more"), 15, 1)])
        written[rows] = stored(client) - before
        assert client.open_reader(shard).snapshot().num_rows == rows
    assert stored(client) > 10 * written[10]
    assert abs(written[10_000] - written[10]) < 200


def stored(client: PersistClient) -> int:
    return sum(entry.size_bytes for entry in client.blob.list_keys_and_metadata(""))


def merge_all(client: PersistClient, shard: str = SHARD) -> None:
    state = client.state(shard)
    if len(state.batches) > 1:
        merge_here(client, Merge.of(client, state, state.batches), attempt=client.ids.uuid7())


def test_the_history_of_a_dropped_column_stays_readable(client: PersistClient) -> None:
    commit(client, SHARD, schema(A, N), 10, [((1, "x", 7), 5, 1), ((2, "y", 8), 5, 1)])
    wide = replace(KEY[0], type="bigint")
    commit(client, SHARD, CollectionSchema((wide,), (N,)), 20, [((1, 7), 15, -1), ((2**40, 9), 15, 1)])
    for upper in range(30, 430, 10):  # as many small ones as a merge takes
        commit(client, SHARD, CollectionSchema((wide,), (N,)), upper, [((upper, 1), upper - 5, 1)])
    reader = client.open_reader(SHARD)
    while due := merge_due(client.state(SHARD)):
        assert due[0].lower >= 10, "the history is kept"
        merge_here(client, Merge.of(client, client.state(SHARD), due), attempt=client.ids.uuid7())
    assert reader.snapshot(9).to_pylist() == [{"id": 1, "n": 7}, {"id": 2, "n": 8}]
    expected = [{"id": 1, "a": "x", "n": 7}, {"id": 2, "a": "y", "n": 8}]
    assert reader.snapshot(9, schema=1).to_pylist() == reader.snapshot(schema=1).to_pylist() == expected
    state = in_schema(client.state(SHARD), 1)
    assert reader.snapshot_of(state).to_pylist() == expected
    with pytest.raises(OutsideFrontiers, match="upper 10"):
        reader.snapshot(10, schema=1)
    with pytest.raises(InvalidInput, match="schema version 3: expected 1 to 2"):
        reader.snapshot(schema=3)
    moved = replace(client.state(SHARD), since=Frontier(10))
    assert moved.schemas.borders() == (10,)
    due = merge_due(moved)
    assert due is None or due[0].lower == 0, "it may be merged now"
    with pytest.raises(OutsideFrontiers):
        reader.snapshot_of(in_schema(moved, 1))


TYPES = {"int": "bigint", "float": "double", "decimal(6,2)": "decimal(9,2)", "string": "string", "boolean": "boolean"}
SOME: dict[str, list[Any]] = {
    "int": [1, -5, 2**31 - 1],
    "bigint": [1, 2**40],
    "float": [0.5, 0.10000000149011612],
    "double": [0.5, 0.1],
    "decimal(6,2)": [Decimal("1.10"), Decimal("-9.00")],
    "decimal(9,2)": [Decimal("1.10"), Decimal("1234567.00")],
    "string": ["", "ü"],
    "boolean": [True, False],
}


class Evolving:
    """A shard under random evolutions, and what it should show: rows by column id, as of each upper."""

    def __init__(self, client: PersistClient, random: Random, shard: str = SHARD) -> None:
        self.client, self.random, self.shard = client, random, shard
        self.schema = schema(Column("c0", "int"), Column("c1", "string"))
        self.names, self.upper, self.forks = 2, 0, 0
        self.rows: dict[int, dict[int, Any]] = {}
        self.past: list[tuple[int, dict[int, dict[int, Any]]]] = []

    def step(self) -> None:
        acts = [self.append, self.append, self.evolve, self.evolve, self.merge, self.back, self.fork, self.gc]
        self.random.choice(acts)()
        self.check()

    def placed(self) -> CollectionSchema:
        state = self.client.ensure_shard(self.shard)
        return state.schemas.placed(self.schema)

    def append(self) -> None:
        placed, lower, self.upper = self.placed(), self.upper, self.upper + 10
        living = [column.id or 0 for column in placed.values]
        updates = []
        for key in self.random.sample(range(6), 3):
            if key in self.rows:
                old = self.rows.pop(key)
                updates.append(((key, *(old.get(each) for each in living)), lower + 5, -1))
            if self.random.random() < 0.7:
                values = [self.random.choice([None, *SOME[column.type]]) for column in placed.values]
                self.rows[key] = dict(zip(living, values, strict=True))
                updates.append(((key, *values), lower + 5, 1))
        commit(self.client, self.shard, self.schema, self.upper, updates)
        publish_missing(self.client, self.client.state(self.shard))
        self.past.append((self.upper - 1, {key: dict(row) for key, row in self.rows.items()}))
        self.schema = replace(self.schema, dropped=()) if self.random.random() < 0.5 else self.schema

    def evolve(self) -> None:
        """One change, and an append in it."""
        values = list(self.schema.values)
        change = self.random.choice(["add", "drop", "rename", "widen", "move"])
        place = self.random.randrange(len(values)) if values else 0
        dropped = self.schema.dropped
        is_widest = change == "widen" and values and values[place].type not in TYPES
        if change == "add" or not values or is_widest:
            self.names += 1
            name = f"c{self.random.choice([self.names, *range(4)])}"  # a name may come back, for another column
            if name not in {column.name for column in values}:
                values.insert(place, Column(name, self.random.choice(list(TYPES))))
        elif change == "drop":
            dropped = (*dropped, values.pop(place).name)
        elif change == "rename":
            self.names += 1
            values[place] = replace(values[place], name=f"r{self.names}", renamed_from=values[place].name)
        elif change == "widen":
            values[place] = replace(values[place], type=TYPES.get(values[place].type, values[place].type))
        else:
            self.random.shuffle(values)
        self.schema = schema(*values, dropped=dropped)
        self.append()

    def merge(self) -> None:
        state = self.client.state(self.shard) if self.past else None
        if state is not None and not state.schemas.borders():  # else only what is due, which keeps history apart
            merge_all(self.client, self.shard)

    def back(self) -> None:
        if not self.past:
            return
        commits = self.client.state(self.shard).commits
        number = self.random.randrange(len(commits))
        plan = plan_restore(self.client, self.shard, commits[number].checkpoint_id)
        if isinstance(plan, RestorePlan):
            restore(self.client, plan, writer="test")
            time = (commits[number].upper or 0) - 1
            self.rows = {key: dict(row) for key, row in dict(self.past)[time].items()}
            self.upper = self.client.state(self.shard).upper.time or 0
            self.past.append((self.upper - 1, {key: dict(row) for key, row in self.rows.items()}))

    def fork(self) -> None:
        if not self.past:
            return
        self.forks += 1
        publish_missing(self.client, self.client.state(self.shard))
        name = f"fork-{self.forks}"
        fork(self.client, self.shard, self.client.state(self.shard).commits[-1].checkpoint_id, name, writer="test")
        self.shard = name

    def gc(self) -> None:
        if self.past:
            assert isinstance(self.client.clock, ManualClock)
            self.client.clock.sleep_ms(GRACE_MS)
            collect(self.client, self.shard)

    def shown(self, version: int) -> list[tuple[int, list[dict[str, Any]]]]:
        """The rows at the latest times in a version of the schema, as far as they can be read in it."""
        state = in_schema(self.client.state(self.shard), version)
        assert state.schema is not None
        return [
            (
                time,
                [
                    {"id": key, **{column.name: rows[key].get(column.id or 0) for column in state.schema.values}}
                    for key in sorted(rows)
                ],
            )
            for time, rows in self.past[-4:]
            if time < (state.upper.time or 0)
        ]

    def check(self) -> None:
        if not self.past:
            return
        newest = len(self.client.state(self.shard).schemas.versions)
        reader = self.client.open_reader(self.shard)
        for version in range(1, newest + 1):
            shown = self.shown(version)
            for time, expected in shown:
                assert reader.snapshot(time, schema=version).sort_by("id").to_pylist() == expected
            for (low, before), (high, after) in itertools.pairwise(shown):
                check_changes(before, reader.changes(low, high, schema=version).to_pylist(), after)
        for time, expected in self.shown(newest):
            assert reader.snapshot(time).sort_by("id").to_pylist() == expected
            assert rows_as_of(self.client, self.shard, time, Cut()).total == len(expected)
        assert not fsck(self.client, self.shard).violations


def check_changes(before: list[dict[str, Any]], changes: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """The rows before and the changes are the rows after."""
    summed = Counter(repr(sorted(row.items())) for row in before)
    for change in changes:
        row = {name: value for name, value in change.items() if name not in (TIME, DIFF)}
        summed[repr(sorted(row.items()))] += change[DIFF]
    assert {row: count for row, count in summed.items() if count} == Counter(repr(sorted(r.items())) for r in after)


@pytest.mark.family("histories in Python")
@pytest.mark.parametrize("seed", range(12))
def test_random_evolutions_agree_with_the_oracle(client: PersistClient, seed: int) -> None:
    evolving = Evolving(client, Random(seed))
    for _ in range(12):
        evolving.step()
