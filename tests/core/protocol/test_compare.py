"""`persist diff`: what differs between two times of a shard, and between a shard and its fork."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist_core.cli.main import run_command
from persist_core.errors import CheckpointNotFound, InvalidInput, ShardNotFound
from persist_core.handles.client import PersistClient
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol.compare import Side, compare, side_of
from persist_core.protocol.difference import KIND
from persist_core.protocol.fork import fork
from persist_core.schema import Column
from tests.core.maintenance.copies import merge_all
from tests.core.maintenance.test_reprocess_faults import A, B, ok
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.core.world import SCHEMA
from tests.oracle.consolidate import Err
from tests.oracle.strategies import History, histories
from tests.plain_commit import commit

UTC = "UTC"


def wanted(old: dict[Any, Any], new: dict[Any, Any]) -> dict[str, int]:
    """The counts, by whole contents."""
    oks = [{key: row for key, row in each.items() if not isinstance(row, Err)} for each in (old, new)]
    errs = [{key: row for key, row in each.items() if isinstance(row, Err)} for each in (old, new)]
    both = oks[0].keys() & oks[1].keys()
    changed_errs = sum(errs[0].get(key) != errs[1].get(key) for key in errs[0].keys() & errs[1].keys())
    return {
        "added": len(oks[1].keys() - both),
        "removed": len(oks[0].keys() - both),
        "changed": sum(oks[0][key] != oks[1][key] for key in both),
        "errs_added": len(errs[1].keys() - errs[0].keys()) + changed_errs,
        "errs_removed": len(errs[0].keys() - errs[1].keys()) + changed_errs,
    }


@settings(max_examples=settings().max_examples // 4)
@given(histories(may_close=False), st.data())
def test_differences_are_what_two_snapshots_say(history: History, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shard, ids = Collection(Path(folder)), []
        for number, batch in enumerate(history.batches):
            shard.drop(f"{number}.txt", batch.records)
            ids.append(shard.run(batch.upper))
        times = st.integers(0, shard.upper() - 1)
        sides = [side_of(shard.client, SHARD, str(data.draw(times)), zone=UTC) for _ in range(2)]
        contents = [shard.read(side.time) for side in sides]
        if data.draw(st.booleans(), label="fork"):
            fork(shard.client, SHARD, data.draw(st.sampled_from(ids)), "twin", writer="test")
            twin = shard.beside("twin")
            twin.drop("more.txt", history.batches[0].records)
            twin.run(shard.upper() + 10)
            sides[1] = side_of(shard.client, SHARD, "twin", zone=UTC)
            contents[1] = twin.read(sides[1].time)
        found = compare(shard.client, sides[0], sides[1])
        counts = {name: getattr(found, name) for name in wanted({}, {})}
        assert counts == wanted(contents[0], contents[1])
        assert found.total or not len(found.rows)
        back = compare(shard.client, sides[1], sides[0])
        assert (back.added, back.removed, back.changed) == (found.removed, found.added, found.changed)


def test_a_fork_is_compared_whole_if_its_history_has_moved_on(tmp_path: Path) -> None:
    shard = Collection(tmp_path)
    shard.drop("1.txt", [ok(A, "one"), ok(B, "two")])
    first = shard.run(10)
    fork(shard.client, SHARD, first, "twin", writer="test")
    twin = shard.beside("twin")
    for number, each in enumerate((shard, twin)):
        each.drop("2.txt", [ok(A, f"later {number}")])
        each.run(20)
        each.client.set_history(each.shard, 0)
        each.client.advance_since(each.shard)
    sides = [side_of(shard.client, SHARD, name, zone=UTC) for name in (None, "twin")]
    found = compare(shard.client, *sides)
    assert (found.added, found.removed, found.changed) == (0, 0, 1)
    assert [row["name"] for row in found.rows.to_pylist()] == ["later 0", "later 1"]


def test_a_shard_without_data_and_an_unknown_checkpoint() -> None:
    client = PersistClient(OpenLocation(MemBlob(), MemConsensus()))
    commit(client, "s", SCHEMA, 10)
    states = [client.ensure_shard("empty"), client.state("s")]
    for a, b in itertools.product(states, states):
        if states[0] in (a, b):
            with pytest.raises(ShardNotFound, match="has no data yet"):
                compare(client, Side(a, 0), Side(b, 0))
    with pytest.raises(CheckpointNotFound, match=r"shard s has no checkpoint .*; `persist checkpoints s` lists them"):
        side_of(client, "s", client.ids.uuid7(), zone=UTC)


def test_a_column_may_be_called_kind() -> None:
    client = PersistClient(OpenLocation(MemBlob(), MemConsensus()))
    schema = replace(SCHEMA, values=(Column("kind", "string"),))
    commit(client, "plain", schema, 10, [((1, "a"), 5, 1)])
    commit(client, "plain", schema, 20, [((1, "a"), 15, -1), ((1, "b"), 15, 1)])
    found = compare(client, *(side_of(client, "plain", time, zone=UTC) for time in ("9", None)))
    assert [(row[KIND], row["kind"]) for row in found.rows.to_pylist()] == [("before", "a"), ("after", "b")]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = PersistLocation(f"file://{tmp_path}/blobs", f"sqlite:///{tmp_path}/consensus.db")
    there = ["--blob-uri", where.blob_uri, "--consensus-uri", where.consensus_uri]
    client = PersistClient(open_location(where))
    commit(client, "plain", SCHEMA, 10, [((1, "a"), 5, 1), ((2, "b"), 5, 1)])
    commit(client, "plain", SCHEMA, 20, [((1, "a"), 15, -1), ((1, "c"), 15, 1), ((2, "b"), 15, -1), ((3, "d"), 15, 1)])
    file = tmp_path / os.fsdecode(b"rows\xff.parquet")  # a name that is not UTF-8
    assert run_command(["diff", "plain", "--a", "9", "--json", "--to", str(file), *there]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["added"], facts["removed"], facts["changed"], facts["columns"]) == (1, 1, 1, {"name": 1})
    assert [(row[KIND], row["id"], row["name"]) for row in facts["samples"]] == [
        ("before", 1, "a"),
        ("after", 1, "c"),
        ("removed", 2, "b"),
        ("added", 3, "d"),
    ]
    assert pq.read_table(io.BytesIO(file.read_bytes()))[KIND].to_pylist() == ["before", "after", "removed", "added"]
    assert run_command(["diff", "plain", "--a", "9", "--limit", "1", *there]) == 0
    assert "3 more" in capsys.readouterr().out
    with pytest.raises(InvalidInput, match="expected a checkpoint of plain, a time, or a shard"):
        side_of(client, "plain", "nothing", zone=UTC)


@pytest.mark.parametrize(("max_updates", "reads"), [(6, 1), (5, 2)])
def test_a_small_run_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_updates: int, reads: int
) -> None:
    """Its manifest says that it has 4 versions, which are 6 updates at most: nothing has to be counted."""
    shard = Collection(tmp_path)
    for number, records in enumerate([[ok(A, "1"), ok(B, "1")], [ok(A, "2")], [ok(A, "3")]], 1):
        shard.drop(f"{number}.txt", records)
        shard.run(10 * number)
    merge_all(shard.client, SHARD)
    sides = [side_of(shard.client, SHARD, text, zone=UTC) for text in ("9", None)]
    read: Counter[str] = Counter()
    original = MemBlob.get

    def get(self: MemBlob, key: str) -> bytes | None:
        read[key] += key.endswith(".parquet")
        return original(self, key)

    monkeypatch.setattr(MemBlob, "get", get)
    assert compare(shard.client, *sides, max_updates=max_updates).changed == 1
    assert max(read.values()) == reads


@pytest.mark.parametrize(("is_merged", "max_updates"), [(False, 20), (True, 2)])  # 20: as many small files make
def test_what_came_after_both_times_does_not_count(tmp_path: Path, is_merged: bool, max_updates: int) -> None:
    shard = Collection(tmp_path)
    for number in range(1, 7):
        shard.drop(f"{number}.txt", [ok(A, f"{number}")])
        shard.run(10 * number)
    if is_merged:
        merge_all(shard.client, SHARD)
    sides = [side_of(shard.client, SHARD, text, zone=UTC) for text in ("9", "19")]
    assert compare(shard.client, *sides, max_updates=max_updates).changed == 1
    with pytest.raises(InvalidInput, match="changed by 2 updates"):
        compare(shard.client, *sides, max_updates=1)


def test_a_whole_shard_as_of_an_old_time_counts_its_bytes(tmp_path: Path) -> None:
    """All that it holds then is read, also what a run has together with later updates."""
    shard = Collection(tmp_path)
    other = shard.beside("other")
    for number, name in enumerate([random.Random(1).randbytes(100_000).hex(), "later"], 1):
        for each in (shard, other):
            each.drop(f"{number}.txt", [ok(A, name)])
            each.run(10 * number)
    merge_all(shard.client, SHARD)
    sides = [side_of(shard.client, name, at, zone=UTC) for name, at in ((SHARD, "9"), ("other", None))]
    with pytest.raises(InvalidInput, match=rf"shard {SHARD} has changed by .* bytes\) since"):
        compare(shard.client, *sides, max_updates=100)
