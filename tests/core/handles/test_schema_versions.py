"""One shard in two schema versions reads right in plain Python, merged or not; ids are checked wherever files are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.checkpoint.publish import publish_missing
from persist_core.cli.main import run_command
from persist_core.compaction.files import MIN_FILE_BYTES
from persist_core.compaction.merge import Merge, merge_here
from persist_core.contents import pieces
from persist_core.contents.batch import PartKind
from persist_core.contents.key_range import exactly
from persist_core.contents.parts import updates_schema
from persist_core.errors import CorruptArtifact, InvalidInput, InvariantViolation, SchemaMismatch
from persist_core.handles.client import PersistClient
from persist_core.handles.write import stage_manifest
from persist_core.inspection.rows import Cut, changes_between, rows_as_of
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance import actions
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.schema import DIFF, ERR_PAYLOAD, FIRST_SYSTEM_ID, SYSTEM_IDS, TIME, CollectionSchema, Column, field_id
from persist_core.shard.state import Committed
from tests import two_versions
from tests.plain_commit import commit
from tests.two_versions import CHANGES, ERRORS_1, ERRORS_2, ROWS_1, ROWS_2, SHARD, VERSION_1, VERSION_2, WIDE, by_number
from tests.virtual import ManualClock, SeededIds


@pytest.fixture
def client() -> PersistClient:
    clock = ManualClock(1)
    return PersistClient(OpenLocation(MemBlob(), MemConsensus()), clock, SeededIds(1, clock))


def check(client: PersistClient, shard: str = SHARD) -> None:
    """Every read of the whole shard, at times in either version."""
    reader = client.open_reader(shard)
    for time, rows, errors in ((9, ROWS_1, ERRORS_1), (19, ROWS_2, ERRORS_2)):
        assert by_number(reader.snapshot(time).to_pylist()) == rows
        assert reader.snapshot(time).schema.equals(VERSION_2.arrow())
        found = [(row[ERR_PAYLOAD], row[TIME]) for row in reader.errors(time).to_pylist()]
        assert sorted(found) == errors
        page = rows_as_of(client, shard, time, Cut(limit=2))
        assert [column.name for column in page.columns] == list(rows[0])
        assert [row[2] for row in page.rows] == [row["title"] for row in rows[:2]]
    changes = reader.changes(9, 19).to_pylist()
    assert sorted((row.pop(DIFF), row.pop(TIME), row["number"], row) for row in changes) == sorted(
        (diff, 15, row["number"], row) for row, diff in CHANGES
    )
    assert changes_between(client, shard, 9, 19, Cut()).total == len(CHANGES)
    assert reader.snapshot(19, keys=[exactly((WIDE,))]).to_pylist() == [ROWS_2[2]]
    assert reader.snapshot(9, keys=[exactly((3,))]).to_pylist() == [ROWS_1[2]]
    assert not fsck(client, shard).violations


def merge_all(client: PersistClient, min_file_bytes: int = MIN_FILE_BYTES, **options: Any) -> None:
    state = client.state(SHARD)
    merge = replace(Merge.of(client, state, state.batches), min_file_bytes=min_file_bytes)
    merge_here(client, merge, attempt=client.ids.uuid7(), **options)


def test_two_versions_read_right(client: PersistClient) -> None:
    two_versions.write_both(client)
    assert [(each.schema.version, each.seqno) for each in client.state(SHARD).schemas.versions] == [(1, 1), (2, 2)]
    check(client)


@pytest.mark.parametrize("rows_at_once", [1, 1000])
def test_a_merge_of_two_versions_is_in_the_newer(client: PersistClient, rows_at_once: int) -> None:
    two_versions.write_both(client)
    merge_all(client, rows_at_once=rows_at_once)
    (batch,) = client.state(SHARD).batches
    assert set(client.manifest(batch).schemas) == {2}
    check(client)


def test_a_run_carries_files_of_an_older_version(client: PersistClient) -> None:
    for upper, (row, *_) in ((5, two_versions.OLD), (10, two_versions.OLD[2:])):
        commit(client, SHARD, VERSION_1, upper, [(row, upper - 1, 1)])
    merge_all(client, min_file_bytes=1)
    two_versions.evolve(client)
    commit(client, SHARD, VERSION_2, 20, [(tuple(ROWS_2[2].values()), 15, 1)])
    merge_all(client, min_file_bytes=1)
    (batch,) = client.state(SHARD).batches
    manifest = client.manifest(batch)
    assert (set(manifest.schemas), manifest.schema.version) == ({1, 2}, 2)
    assert by_number(client.open_reader(SHARD).snapshot().to_pylist()) == [ROWS_1[0], *ROWS_2[1:]]
    assert not fsck(client, SHARD).violations


def test_a_multiset_of_two_versions_adds_up(client: PersistClient) -> None:
    first = CollectionSchema((), (Column("name", "string"), Column("n", "int")))
    second = CollectionSchema((), (Column("n", "bigint", id=2), Column("word", "string", id=1)), version=2)
    commit(client, SHARD, first, 10, [(("a", 1), 5, 2), (("b", 2), 5, 1)])
    two_versions.evolve(client, second)
    commit(client, SHARD, second, 20, [((1, "a"), 15, -1), ((2, "b"), 15, 1)])
    for _ in range(2):
        rows = client.open_reader(SHARD).snapshot().to_pylist()
        assert sorted(map(tuple, (row.values() for row in rows))) == [(1, "a"), (2, "b"), (2, "b")]
        assert len(client.open_reader(SHARD).snapshot(9)) == 3
        assert not fsck(client, SHARD).violations
        merge_all(client) if len(client.state(SHARD).batches) > 1 else None


def test_a_restore_and_a_fork_go_back_in_the_newest_schema(client: PersistClient) -> None:
    two_versions.write_both(client)
    publish_missing(client, client.state(SHARD))
    first = client.state(SHARD).commits[0].checkpoint_id
    fork(client, SHARD, first, "twin", writer="test")
    twin = client.open_reader("twin")
    assert by_number(twin.snapshot().to_pylist()) == ROWS_1
    assert client.state("twin").schemas.newest == VERSION_2
    commit(client, "twin", VERSION_2, 20, [(tuple(ROWS_1[1].values()), 15, -1)])
    assert by_number(twin.snapshot().to_pylist()) == [ROWS_1[0], ROWS_1[2]]
    plan = plan_restore(client, SHARD, first)
    assert isinstance(plan, RestorePlan)
    assert plan.dropped_columns == (("gone",), 1)
    said = actions.restore(client, SHARD, first, writer="test", is_dry_run=True)
    assert said.facts["dropped_columns"] == ["gone"]
    assert f"dropped since: gone. `persist snapshot {SHARD} --schema 1` shows" in said.lines[1]
    assert isinstance(restore(client, plan, writer="test"), Committed)
    assert by_number(client.open_reader(SHARD).snapshot().to_pylist()) == ROWS_1
    assert not fsck(client, SHARD).violations
    assert not fsck(client, "twin").violations


def test_the_command_line_shows_two_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    location = PersistLocation(f"file://{tmp_path}/blobs", f"sqlite:///{tmp_path}/consensus.db")
    with open_location(location) as opened:
        two_versions.write_both(PersistClient(opened))
    there = ["--blob-uri", location.blob_uri, "--consensus-uri", location.consensus_uri]
    assert run_command(["snapshot", SHARD, "--as-of", "9", "--json", *there]) == 0
    assert '"title":"a","price":0.10000000149011612,"gone":null' in capsys.readouterr().out.splitlines()[0]
    assert run_command(["fsck", SHARD, *there]) == 0
    assert run_command(["describe", SHARD, "--json", *there]) == 0
    assert '"name":"title","type":"string","nullable":true,"id":2' in capsys.readouterr().out


def test_files_have_the_ids_of_their_version(client: PersistClient) -> None:
    two_versions.write_both(client)
    for batch, expected in zip(client.state(SHARD).batches, (VERSION_1, VERSION_2), strict=True):
        manifest = client.manifest(batch)
        for part in manifest.parts:
            found = pq.read_schema(pa.BufferReader(client.blob.get(part.key)))
            ids = {field.name: field_id(field) for field in found}
            assert ids == {name: number for name, number in manifest.schema.field_ids.items() if name in ids}
            assert set(expected.arrow().names) < set(ids)
            assert min(SYSTEM_IDS.values()) == FIRST_SYSTEM_ID > max(column.id or 0 for column in part.schema.columns)


def renamed(table: pa.Table) -> pa.Table:
    """Columns under each other's names, as if someone had trusted names: `name` and `gone` are both texts."""
    names = {"name": "gone", "gone": "name"}
    return table.rename_columns([names.get(name, name) for name in table.column_names])


def without_ids(table: pa.Table) -> pa.Table:
    return pa.table(table.columns, names=table.column_names)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (renamed, "column 'gone' has field id 2, expected 4 of schema version 1"),
        (without_ids, "column 'id' has field id None, expected 1 of schema version 1"),
    ],
)
def test_a_file_with_other_ids_is_refused(
    client: PersistClient, spoil: Callable[[pa.Table], pa.Table], found: str
) -> None:
    """A writer staged it so: the manifest has its size and digest."""
    two_versions.write_version_1(client)
    state = client.state(SHARD)
    manifest = client.manifest(state.batches[0])
    part = next(part for part in manifest.parts if part.kind is PartKind.INSERTIONS)
    out = pa.BufferOutputStream()
    pq.write_table(spoil(pq.read_table(pa.BufferReader(client.blob.get(part.key)))), out)
    data = out.getvalue().to_pybytes()
    key = f"{part.key}.spoiled"
    client.blob.set(key, data)
    changed = replace(part, key=key, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    parts = tuple(changed if each.key == part.key else each for each in manifest.parts)
    bad = replace(manifest, parts=parts, lower=10, upper=20, token="bad", epoch=2, contents_digest="bad")
    key = stage_manifest(client.blob, bad, client.ids.uuid7())
    assert isinstance(client.open_writer(SHARD).compare_and_append(bad, key), Committed)
    with pytest.raises(CorruptArtifact, match=found):
        client.open_reader(SHARD).snapshot()
    assert any(found in each.message for each in fsck(client, SHARD).violations if each.check == "part")


def test_a_batch_of_another_version_is_refused(client: PersistClient) -> None:
    two_versions.write_both(client)
    state = client.state(SHARD)
    manifest = client.manifest(state.batches[1])
    other = replace(
        manifest.schema, values=tuple(replace(each, id=9) if each.id == 6 else each for each in VERSION_2.values)
    )
    bad = replace(manifest, schema=other, parts=(), lower=20, upper=30, token="bad", epoch=3)
    with pytest.raises(SchemaMismatch, match="its columns have other ids"):
        client.open_writer(SHARD).compare_and_append(bad, "k")
    with pytest.raises(SchemaMismatch, match="written in schema version 1, and the shard is at 2"):
        client.open_writer(SHARD).compare_and_append(replace(bad, schema=state.schemas.versions[0].schema), "k")


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(replace(VERSION_2, version=3), id="a version is left out"),
        pytest.param(replace(VERSION_2, values=(*VERSION_2.values[:3], Column("more", "int", id=4))), id="used again"),
        pytest.param(replace(VERSION_2, values=(*VERSION_2.values, Column("more", "int", id=6))), id="used twice"),
    ],
)
def test_no_id_is_ever_used_again(client: PersistClient, schema: CollectionSchema) -> None:
    two_versions.write_version_1(client)
    if schema.version == 2 and schema.values[3].id == 4:  # first without column 4, then with it
        two_versions.evolve(client, replace(VERSION_2, values=VERSION_2.values[:3]))
        schema = replace(schema, version=3)
    with pytest.raises(InvariantViolation, match="column_ids_are_never_used_again"):
        two_versions.evolve(client, schema)


def test_a_version_is_never_changed(client: PersistClient) -> None:
    two_versions.write_both(client)

    def forget(state: Any) -> Any:
        return replace(state, schemas=replace(state.schemas, versions=state.schemas.versions[:1])), None

    with pytest.raises(InvariantViolation, match="schema_versions_are_kept"):
        client.machine.apply(SHARD, forget)


def test_a_column_that_comes_back_is_another_column(client: PersistClient) -> None:
    """A definition knows names only: a name that is gone gets a new id, one that stays keeps its own."""
    two_versions.write_both(client)
    wider = replace(VERSION_2, values=(*VERSION_2.values, Column("name", "string")))
    placed = client.state(SHARD).schemas.placed(wider)
    assert ({column.name: column.id for column in placed.columns}, placed.version) == (
        {"number": 1, "amount": 5, "title": 2, "price": 3, "gone": 6, "name": 7},
        3,
    )


def test_a_read_with_a_definition_is_refused(client: PersistClient) -> None:
    """Its columns have names only."""
    two_versions.write_version_1(client)
    state = client.state(SHARD)
    with pytest.raises(InvalidInput, match="column 'id' has no id"):
        client.open_reader(SHARD).read(state.batches, updates_schema(VERSION_1), lambda b, m: pieces.all_oks(b, m))
