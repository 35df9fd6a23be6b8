"""Shards in `sequence` order through restores, forks and damage: rows keep their orders, tombstones theirs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist_core.cli.main import run_command
from persist_core.compaction.merge import Merge, merge_here
from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, HollowBatch
from persist_core.contents.parts import PARQUET
from persist_core.errors import CorruptArtifact, SchemaMismatch
from persist_core.handles.read import Choose, ReadHandle
from persist_core.inspection.late import late_records
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import NothingToRestore, plan_restore
from persist_core.schema import ORDER
from persist_core.sources.natural_order import natural_key
from tests.core.protocol import log_source
from tests.core.protocol.ordered_shard import OrderedCollection, precedence
from tests.core.protocol.restored_shard import SHARD
from tests.oracle.strategies import STRAY, History, histories, redelivered
from tests.oracle.test_sequence import newest
from tests.oracle.upsert import TOMBSTONE, Record

A, B = ("eu", 1), ("eu", 2)
FILE = natural_key("1.txt")


def put(order: int, name: str | None, slot: tuple[str, int] = A) -> Record:
    """A row, or (`None`) a delete."""
    return Record(slot, TOMBSTONE if name is None else (name, None, None), None, (order, FILE, 0, order))


def merged(shard: OrderedCollection) -> None:
    batches = shard.client.state(shard.shard).batches
    if len(batches) > 1:
        attempt = shard.client.ids.uuid7()
        merge_here(shard.client, Merge.of(shard.client, shard.client.state(shard.shard), batches), attempt=attempt)


@settings(max_examples=settings().max_examples // 8)
@given(histories(may_close=False, ties=True), st.data())
def test_restores_forks_and_merges_change_no_decision(history: History, data: st.DataObject) -> None:
    """Whatever is undone meanwhile, all records together end in the contents that their orders say."""
    with tempfile.TemporaryDirectory() as folder, log_source.known():
        shard = OrderedCollection(Path(folder), is_log=data.draw(st.booleans(), label="log"))
        shard.client.ensure_shard(SHARD)
        ids, step = [], 0
        delivered = data.draw(redelivered(history.records), label="delivered")
        while delivered or step < 2:
            count = data.draw(st.integers(0, len(delivered)), label="read")
            taken, delivered = delivered[:count] if step < 3 else delivered, delivered[count:] if step < 3 else []
            shard.drop(f"{step}.txt", taken)
            ids.append(shard.run(shard.upper() + data.draw(st.integers(1, 3), label="width")))
            if data.draw(st.booleans(), label="merge"):
                merged(shard)
            target = data.draw(st.sampled_from(ids) | st.none(), label="back to")
            if target and not isinstance(plan_restore(shard.client, SHARD, target), NothingToRestore):
                ids.append(shard.go_back(target).commit.checkpoint_id)
            shard.check()
            step += 1
        if data.draw(st.booleans(), label="fork"):
            fork(shard.client, SHARD, data.draw(st.sampled_from(ids), label="fork at"), "twin", writer="test")
            shard = shard.beside("twin")
        shard.run(shard.upper() + 100 + STRAY)
        shard.check()
        assert shard.contents(shard.upper() - 1) == newest(history.records)


@pytest.fixture
def shard(tmp_path: Path) -> OrderedCollection:
    """`A` was deleted at order 5, `B` is there with order 5 and a value that came at order 1."""
    made = OrderedCollection(tmp_path)
    made.drop("1.txt", [put(1, "old"), put(1, "old", B)])
    made.run(10)
    made.drop("2.txt", [put(5, None), put(5, "old", B)])
    made.run(20)
    return made


def test_a_restore_takes_orders_back_where_the_value_is_the_same(shard: OrderedCollection) -> None:
    first = shard.client.state(SHARD).commits[0].checkpoint_id
    shard.drop("3.txt", [put(7, "new", B)])
    shard.run(30)
    shard.drop("4.txt", [put(9, "old", B)])
    shard.run(40)
    shard.go_back(first)
    for name in ("2.txt", "3.txt", "4.txt"):
        shard.take_out(name)
    assert shard.contents(40) == shard.read(40)
    assert {slot: seen.precedence for slot, seen in shard.rows().items()} == {
        slot: precedence((1, FILE, 0, 1), ("old", None, None)) for slot in (A, B)
    }
    shard.drop("5.txt", [put(3, "between", B), put(4, "between")])
    shard.run(50)
    made = [update.value for update in shard.updates() if update.time == 49 and update.diff > 0]
    assert made == [("between", None, None)] * 2
    shard.check()


def test_both_chains_are_minted_and_deltas_add_to_them(shard: OrderedCollection) -> None:
    assert [len(shard.mint(30).operators[ORDER_INDEX_OPERATOR])] == [1]
    shard.drop("3.txt", [put(3, "late"), put(9, None, B)])
    last = shard.run(30)
    description = shard.mint(40)
    assert {name: len(chain) for name, chain in description.operators.items()} == {
        ORDER_INDEX_OPERATOR: 1,
        LATE_OPERATOR: 1,
    }
    assert set(shard.client.state(SHARD).operators) == {ORDER_INDEX_OPERATOR, LATE_OPERATOR}
    assert len(shard.checkpointer.load_manifest(last).operators) == 2
    shard.drop("4.txt", [put(2, "later")])
    shard.run(40)
    assert [len(chain) for _, chain in sorted(shard.mint(50).operators.items())] == [2, 2]


def test_a_run_without_input_needs_no_job_and_keeps_the_state(shard: OrderedCollection) -> None:
    shard.drop("3.txt", [put(3, "late")])
    shard.run(30)
    before = shard.client.state(SHARD).operators
    description = shard.mint(40)
    assert (description.input_key, description.saves_deltas) == (None, True)
    key = stages.write_without_input(shard.client, shard.config, description)
    assert key is not None
    stages.append(shard.client, description, key)
    assert shard.client.state(SHARD).operators == before
    assert len(late_records(shard.client, SHARD)) == 1


def damaged(shard: OrderedCollection, operator: str, epoch: int, *, is_lost: bool) -> str:
    """Damage what the commit of this epoch staged of an operator's state, and its copy."""
    commit = next(commit for commit in shard.client.state(SHARD).commits if commit.epoch == epoch)
    (artifact,) = shard.client.manifest(commit).operators[operator].artifacts
    folder = shard.checkpointer.layout.folder(commit.checkpoint_id)
    copies = [entry.key for entry in shard.client.blob.list_keys_and_metadata(folder) if f"/{operator}/" in entry.key]
    for key in [artifact.key, *copies]:
        if is_lost:
            shard.client.blob.delete(key)
        else:
            shard.client.blob.set(key, b"rotten")
    return artifact.key


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "altered"])
@pytest.mark.parametrize("operator", [ORDER_INDEX_OPERATOR, LATE_OPERATOR])
@pytest.mark.parametrize("epoch", [3, 4, 5], ids=["snapshot", "delta", "newest delta"])
def test_damaged_orders_are_named_and_nothing_starts_afresh(
    shard: OrderedCollection, epoch: int, operator: str, is_lost: bool
) -> None:
    for number in (3, 4, 5):
        shard.drop(f"{number}.txt", [put(3, "late"), put(number + 10, None, ("eu", number))])
        shard.run(10 * number)
    first = shard.client.state(SHARD).commits[1].checkpoint_id
    before = shard.client.state(SHARD)
    key = damaged(shard, operator, epoch, is_lost=is_lost)
    with pytest.raises(CorruptArtifact, match=f"{key}.*persist restore {SHARD} --to .*orders of deleted keys|{key}"):
        shard.mint(60)
    assert shard.client.state(SHARD) == before
    with pytest.raises(CorruptArtifact, match=key):
        late_records(shard.client, SHARD)
    shard.go_back(first)
    shard.run(70)
    assert shard.contents(69) == {B: shard.contents(69)[B]}
    # Checkpoints from before the restore whose chain is broken are reported; nothing else is.
    assert {violation.check for violation in fsck(shard.client, SHARD).violations} <= {"checkpoint"}


def test_another_order_is_refused_before_anything_is_staged(shard: OrderedCollection) -> None:
    body = shard.config.model_dump(mode="json")
    before, keys = shard.client.state(SHARD), len(list(shard.client.blob.list_keys_and_metadata("")))
    shard.drop("3.txt", [put(3, "late")])
    for order in ({"mode": "log"}, {"mode": "sequence", "by": {"seq": "int"}}):
        shard.config = type(shard.config).model_validate({**body, "order": order})
        with pytest.raises(SchemaMismatch, match=r"is in sequence \(seq: bigint, position\) order.*persist rebuild"):
            shard.mint(30)
    assert shard.client.state(SHARD) == before
    assert len(list(shard.client.blob.list_keys_and_metadata(""))) == keys
    kept = {"mode": "sequence", "by": {"seq": "bigint"}, "keep_deleted": "3 days"}
    shard.config = type(shard.config).model_validate({**body, "order": kept})
    shard.mint(30)


def test_late_records_are_listed_newest_first(shard: OrderedCollection) -> None:
    assert late_records(shard.client, SHARD) == []
    for number in (3, 4):
        shard.drop(f"{number}.txt", [put(number, "late")])
        shard.run(10 * number)
    found = late_records(shard.client, SHARD)
    assert [(record.key, record.order, record.beaten_by) for record in found] == [
        ({"region": "eu", "id": 1}, {"seq": 4}, {"seq": 5}),
        ({"region": "eu", "id": 1}, {"seq": 3}, {"seq": 4}),
    ]
    assert [(record.position, record.op, record.acted) for record in found] == [
        ("1.txt, row 4", "upsert", 30),
        ("1.txt, row 3", "upsert", 20),
    ]
    assert late_records(shard.client, SHARD, limit=1) == found[:1]


def test_orders_are_not_seen_by_readers(shard: OrderedCollection) -> None:
    reader = shard.client.open_reader(SHARD)
    tables = [reader.snapshot(), reader.errors(), reader.changes(0), reader.error_changes(0)]
    merged(shard)
    tables += [reader.snapshot(), reader.errors(), reader.changes(0), reader.error_changes(0)]
    assert [name for table in tables for name in table.column_names if "order" in name] == []
    assert shard.rows()[B] == replace(shard.rows()[B], precedence=precedence((1, FILE, 0, 1), ("old", None, None)))


def test_persist_late_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a table and as JSON."""
    settings = PersistLocation(f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/consensus.db")
    (tmp_path / "feed").mkdir()
    with open_location(settings) as location:
        made = OrderedCollection(tmp_path / "feed", location)
        made.client.part_format = PARQUET
        made.drop("1.txt", [put(5, None)])
        made.run(10)
        made.drop("2.txt", [put(3, "late"), put(4, "later")])
        made.run(20)
    options = ["--blob-uri", settings.blob_uri, "--consensus-uri", settings.consensus_uri]
    capsys.readouterr()
    assert run_command(["late", SHARD, "--json", *options]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["order"]["seq"] for each in found] == [3]
    assert found[0]["key"] == {"region": "eu", "id": 1}
    assert run_command(["late", SHARD, "--limit", "1", *options]) == 0
    shown = capsys.readouterr().out
    assert "region eu, id 1" in shown
    assert "1.txt, row" in shown
    assert run_command(["describe", SHARD, *options]) == 0
    assert "sequence (seq: bigint, position)" in capsys.readouterr().out


def test_a_restore_keeps_only_orders_of_touched_rows(shard: OrderedCollection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the shard's size: a key between two that have changed may lie in the same file."""
    shard.drop("3.txt", [put(6, f"{number}", ("eu", number)) for number in range(1, 50)])
    target = shard.run(30)
    shard.drop("4.txt", [put(7, "new", ("eu", 1)), put(7, "new", ("eu", 49))])
    shard.run(40)
    sizes, original = [], ReadHandle.read

    def read(self: ReadHandle, batches: Sequence[HollowBatch], columns: pa.Schema, choose: Choose) -> pa.Table:
        found = original(self, batches, columns, choose)
        if ORDER in columns.names:
            sizes.append(len(found))
        return found

    monkeypatch.setattr(ReadHandle, "read", read)
    shard.go_back(target)
    assert max(sizes) == 4
    shard.check()
