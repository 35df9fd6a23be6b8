"""`persist resolve`: errs of records without an order are removed by a user, and nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from persist_core.cli.main import run_command
from persist_core.contents.parts import PARQUET
from persist_core.errors import InvalidInput, RunFailed
from persist_core.keys import CheckpointLayout
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance import actions
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.resolve import plan_resolve, resolve
from persist_core.protocol.stages import Conflict
from persist_core.schema import MISSING_ORDER
from persist_core.sources.natural_order import natural_key
from tests.core.protocol import log_source
from tests.core.protocol.ordered_shard import OrderedCollection
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.core.protocol.test_ordered import A, B, put
from tests.oracle.upsert import Err, Record


def unordered(file: str, row: int) -> Record:
    """As the Spark job decodes a record without an order: an err under its position."""
    place = json.dumps({"file": natural_key(file), "block": 0, "row": row})
    slot = f"{MISSING_ORDER} {place}".encode()
    where = f"{file}, line {row}"
    err = Err(MISSING_ORDER, slot, b'{"lsn":null}', "order field 'lsn' is missing or null", position=where)
    return Record(slot, err, None, (None, natural_key(file), 0, row))


def with_unordered(shard: OrderedCollection) -> OrderedCollection:
    """`A` was deleted at order 5, `B` is there with order 5; three records had no order."""
    shard.drop("1.txt", [put(1, "old"), put(1, "old", B), unordered("day=1/1.txt", 3)])
    shard.run(10)
    shard.drop("2.txt", [put(5, None), put(5, "old", B), unordered("day=2/2.txt", 10), unordered("day=2/2.txt", 11)])
    shard.run(20)
    return shard


@pytest.fixture
def shard(tmp_path: Path) -> OrderedCollection:
    return with_unordered(OrderedCollection(tmp_path))


@contextmanager
def in_files(folder: Path) -> Iterator[tuple[OrderedCollection, list[str]]]:
    """The shard in a location that the command opens, and the command's options for it."""
    settings = PersistLocation(f"file://{folder}/blob", f"sqlite:///{folder}/consensus.db")
    (folder / "feed").mkdir()
    with open_location(settings) as location:
        shard = OrderedCollection(folder / "feed", location)
        shard.client.part_format = PARQUET
        with_unordered(shard)
        yield shard, ["--blob-uri", settings.blob_uri, "--consensus-uri", settings.consensus_uri]


def places(shard: Collection, as_of: int | None = None) -> list[str]:
    """The positions of the living errs."""
    records = plan_resolve(shard.client, SHARD).records
    assert len(shard.client.open_reader(shard.shard).errors(as_of)) == len(records)
    return sorted(record.position for record in records)


def test_removed_errs_leave_late_records_decided_as_before(tmp_path: Path) -> None:
    """Follow docs/operations.md: look, deliver the record again with an order, remove the err."""
    with in_files(tmp_path) as (shard, options):
        shard.drop("3.txt", [put(6, "again")])
        shard.run(30)
        operators = shard.client.state(SHARD).operators
        assert run_command(["resolve", SHARD, "--at", "day=2/*", *options]) == 0
        assert shard.client.state(SHARD).operators == operators
        assert shard.client.state(SHARD).upper.time == 31
        assert places(shard) == ["day=1/1.txt, line 3"]
        assert len(shard.client.open_reader(SHARD).errors(29)) == 3
        assert {A, B} < shard.contents(30).keys()
        shard.drop("4.txt", [put(4, "late", B), put(2, "late")])
        shard.run(40)
        assert shard.client.manifest(shard.client.state(SHARD).commits[-1]).stats["late"] == 2
        shard.check()
        assert len(shard.checkpointer.list_checkpoints()) == 5


@pytest.mark.parametrize("file", ["orders[eu]/1.txt", "a?/[!b].txt", "*.txt"])
def test_a_position_as_it_is_shown_matches_itself(tmp_path: Path, file: str) -> None:
    shard = OrderedCollection(tmp_path)
    shard.drop("1.txt", [put(1, "old"), unordered(file, 3), unordered("other/1.txt", 4)])
    shard.run(10)
    (record,) = plan_resolve(shard.client, SHARD, at=f"{file}, line 3").records
    assert record.position == f"{file}, line 3"
    assert len(plan_resolve(shard.client, SHARD).records) == 2


def test_the_command_says_what_it_would_remove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with in_files(tmp_path) as (_, options):
        pass
    capsys.readouterr()
    for chosen in ([], ["--at", ""], ["--all", "--at", "*"]):  # empty: a variable of a shell that is not set
        assert run_command(["resolve", SHARD, *chosen, *options]) == 2
        assert "either --all or --at" in capsys.readouterr().err
    assert run_command(["errors", SHARD, *options]) == 0
    assert f"`persist resolve {SHARD}` does" in capsys.readouterr().out
    assert run_command(["resolve", SHARD, "--all", "--dry-run", *options]) == 0
    assert "would remove 3 errors missing_order" in capsys.readouterr().out
    assert run_command(["resolve", SHARD, "--all", "--json", *options]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["status"], len(done["records"]), done["upper"]) == ("resolved", 3, 21)
    assert run_command(["resolve", SHARD, "--all", *options]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_positions_are_shown_as_their_source_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A source whose positions have other fields: errs, late records, and what `--at` takes."""
    settings = PersistLocation(f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/consensus.db")
    options = ["--blob-uri", settings.blob_uri, "--consensus-uri", settings.consensus_uri]
    with open_location(settings) as location, log_source.known():
        shard = OrderedCollection(tmp_path, location, is_log=True)
        shard.client.part_format = PARQUET
        slot = b'missing_order {"partition":3,"offset":17}'
        where = "partition 3, offset 17"
        err = Err(MISSING_ORDER, slot, b"{}", "order field 'lsn' is missing or null", position=where)
        shard.drop("1", [put(5, "new"), Record(slot, err, None, (None, "day-3", 0, 17))])
        shard.run(10)
        shard.drop("2", [put(2, "late")])
        shard.run(20)
        assert run_command(["errors", SHARD, *options]) == 0
        shown = capsys.readouterr().out
        assert "partition 3, offset 17" in shown
        assert "missing_order {" not in shown
        assert run_command(["changes", SHARD, "--errs", "--after", "0", *options]) == 0
        assert "partition 3, offset 17" in capsys.readouterr().out
        assert run_command(["late", SHARD, *options]) == 0
        assert "partition 1, offset 2" in capsys.readouterr().out
        assert run_command(["resolve", SHARD, "--at", "partition 3,*", *options]) == 0
        assert places(shard) == []
        shard.check()


def test_a_restore_and_a_redelivery_bring_errs_back(shard: OrderedCollection) -> None:
    second = shard.client.state(SHARD).commits[1].checkpoint_id
    resolve(shard.client, plan_resolve(shard.client, SHARD), writer="test")
    assert places(shard) == []
    shard.drop("3.txt", [unordered("day=1/1.txt", 3)])
    shard.run(30)
    assert places(shard) == ["day=1/1.txt, line 3"]
    shard.go_back(second)
    assert places(shard) == ["day=1/1.txt, line 3", "day=2/2.txt, line 10", "day=2/2.txt, line 11"]
    shard.check()


@pytest.mark.parametrize("what", ["resolve", "restore"])
def test_a_change_killed_after_its_commit_is_ended(shard: OrderedCollection, what: str) -> None:
    """Called again, it has nothing to do, and publishes the checkpoint."""
    first = shard.client.state(SHARD).commits[0].checkpoint_id
    if what == "resolve":
        again = partial(actions.resolve, shard.client, SHARD, writer="test")
    else:
        again = partial(actions.restore, shard.client, SHARD, first, writer="test")
    again()
    newest = shard.client.state(SHARD).commits[-1].checkpoint_id
    shard.client.blob.delete(CheckpointLayout(SHARD).manifest(newest))
    assert not fsck(shard.client, SHARD).is_clean
    assert again().facts["status"] == "up_to_date"
    shard.check()


def test_a_lost_race_changes_nothing(shard: OrderedCollection) -> None:
    plan = plan_resolve(shard.client, SHARD)
    shard.drop("3.txt", [put(7, "new")])
    shard.run(30)
    assert isinstance(resolve(shard.client, plan, writer="test"), Conflict)
    assert len(places(shard)) == 3


def test_a_record_in_the_stash_is_processed_first(shard: OrderedCollection) -> None:
    shard.drop("3.txt", [replace(put(8, "due"), time=30), replace(put(9, "later", B), time=35)])
    shard.run(30)
    with pytest.raises(RunFailed, match=r"records in the stash .* are due at .*run the collection once"):
        resolve(shard.client, plan_resolve(shard.client, SHARD), writer="test")
    assert len(places(shard)) == 3
    shard.run(31)
    resolve(shard.client, plan_resolve(shard.client, SHARD), writer="test")
    assert places(shard) == []
    shard.run(40)
    assert sorted(update.time for update in shard.updates() if update.time >= 30 and update.diff > 0) == [30, 35]
    shard.check()


def test_a_closed_shard_and_one_in_log_order(tmp_path: Path) -> None:
    log = Collection(tmp_path)
    log.drop("1.txt", [put(1, "old")])
    log.run(10)
    assert plan_resolve(log.client, SHARD).records == ()
    (tmp_path / "1.txt").unlink()
    ordered = OrderedCollection(tmp_path, shard="closed")
    ordered.config = ordered.config.model_copy(update={"end_of_input": "close"})
    ordered.run(None)
    with pytest.raises(InvalidInput, match="is closed"):
        plan_resolve(ordered.client, "closed")
