"""Spark over runs: reads and look-ups answer as the plain reader does, and as a shard that was never merged."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import persist_spark
from persist_core.compaction.merge import Merge, merge_here, replace_inputs, stage_here
from persist_core.contents.batch import BatchDescription, BatchManifest, HollowBatch, PartKind
from persist_core.contents.parts import history_schema, part_schema
from persist_core.handles.client import PersistClient
from persist_core.handles.load import read_part
from persist_core.keys import manifest_key
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.schema import CollectionSchema
from persist_core.shard.replace import NotReplaced, Replaced
from persist_core.spark_job.launch import Ended, merge_by_job
from persist_core.spark_job.spec import JobSpec
from persist_spark.__main__ import run_item
from persist_spark.merge import stage_merge
from tests.core.compaction.histories import KEYED, MULTISET, History
from tests.spark.staged_shard import SHARD, StagedShard
from tests.spark.upsert_cases import MANY_KEYS_DOMAIN, Feed
from tests.spark.view_shards import BY_COLOUR, ITEMS, ViewShards

LOCATION = PersistLocation("mem:a", "mem:b")  # what the stand-in for a job is given, and does not open


def rows_of(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(
        tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row) for row in frame.collect()
    )


class SparkHistory(History):
    """Merges by Spark and in this process: both make the same run."""

    spark: SparkSession

    def merge_these(self, inputs: tuple[HollowBatch, ...]) -> None:
        merge = replace(Merge.of(self.client, self.state, inputs), **self.sizes)
        attempt = self.client.ids.uuid7()
        staged = stage_merge(self.spark, self.client, merge, attempt)
        here = stage_here(self.client, merge, self.client.ids.uuid7(), self.chance.choice([7, 10**6]))
        assert (staged.counts, staged.run, staged.token) == (here.counts, here.run, here.token)
        carried = {part.key for part in merge.carried}
        assert held(self.client, staged, carried) == held(self.client, here, carried)
        kinds = ("insertions", "retractions", "history")
        for kind in kinds if self.schema.key and staged.run and staged.run.merged_to is None else ():
            bounds = [part.keys for part in staged.parts if part.kind == kind]
            ids = sorted((int(each.first[0]), int(each.last[0])) for each in bounds if each.first and each.last)
            assert len(ids) == len(bounds)
            assert all(one[1] <= two[0] for one, two in pairwise(ids))
        key = manifest_key(self.shard, attempt)
        assert isinstance(replace_inputs(self.client, staged, key), Replaced)
        self.merges += 1


def held(client: PersistClient, manifest: BatchManifest, carried: Collection[str]) -> Counter[str]:
    """The rows of every kind that a manifest's parts hold; new ones are sorted."""
    found: Counter[str] = Counter()
    columns = {kind: part_schema(manifest.schema) for kind in PartKind}
    columns[PartKind.HISTORY] = history_schema(manifest.schema)
    for part in manifest.parts:
        table = read_part(client.blob, part, columns[part.kind])
        if manifest.schema.key and part.kind != "errs" and part.key not in carried:
            names = list(manifest.schema.key_names)
            ordered = table.sort_by([(name, "ascending") for name in names])
            assert table.select(names).equals(ordered.select(names))
        found.update(f"{part.kind} {row}" for row in table.to_pylist())
    return found


@pytest.mark.parametrize("schema", [KEYED, MULTISET], ids=["keyed", "multiset"])
@pytest.mark.family("merges")
def test_a_job_merges_as_one_process_does(
    spark: SparkSession, tmp_path: Path, schema: CollectionSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkHistory, "spark", spark, raising=False)
    history = SparkHistory(
        OpenLocation(FileBlob(tmp_path), MemConsensus()), schema, seed=8, sizes={"min_file_bytes": 4_000}
    )
    for _ in range(30):
        history.chance.choice([history, history, *history.forks]).step()
    history.append(close=True)
    for each in (history, *history.forks):
        if len(each.state.batches) > 1:
            each.merge_these(each.state.batches)
        each.check()
    assert history.merges > 2
    assert not schema.key or any(each.merges for each in history.forks)


@pytest.mark.family("merges")
def test_a_job_merges_in_steps_as_one_process_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkHistory, "spark", spark, raising=False)
    sizes = {"min_file_bytes": 1, "budget_bytes": 12_000}
    history = SparkHistory(OpenLocation(FileBlob(tmp_path), MemConsensus()), KEYED, seed=8, sizes=sizes, ids=16)
    while len(history.state.batches) < 6:
        history.append()
    history.merge_these(history.state.batches)
    while history.state.batches[0].is_partial:
        history.steps += 1
        history.append()
        time = (history.state.upper.time or 0) - 1
        found = persist_spark.snapshot(spark, history.client.location, history.shard, time)
        assert rows_of(found) == history.expected.snapshot(time)
        history.merge_these(history.state.batches[:1])
    assert history.steps > 2
    history.check()


def test_a_merger_stages_by_a_job_and_puts_in_place(spark: SparkSession, tmp_path: Path) -> None:
    history = History(OpenLocation(FileBlob(tmp_path), MemConsensus()), KEYED, seed=5)
    while len(history.state.batches) < 6:
        history.append()

    def start(items: Sequence[JobSpec], _arguments: Sequence[str]) -> Ended:
        (spec,) = (JobSpec.decode(item.encode()) for item in items)
        return Ended("", exit_status=run_item(spark, spec, history.client.location))

    merger = functools.partial(merge_by_job, history.client, start)
    before = history.state
    assert isinstance(merger(Merge.of(history.client, before, before.batches[1:4])), Replaced)
    assert [batch.lower for batch in history.state.batches] == [
        batch.lower for batch in before.batches if batch not in before.batches[2:4]
    ]
    late = merger(Merge.of(history.client, before, before.batches[2:5]))
    assert isinstance(late, NotReplaced)
    assert "another merge has replaced some of the batches" in late.reason
    history.check()


def merge(client: PersistClient, shard: str, count: int) -> None:
    """Merge the first batches of a shard."""
    state = client.state(shard)
    chosen = Merge.of(client, state, state.batches[:count])
    assert isinstance(merge_here(client, chosen, attempt=client.ids.uuid7()), Replaced)


@pytest.mark.parametrize("schema", [KEYED, MULTISET], ids=["keyed", "multiset"])
def test_reads_are_right_at_every_time(spark: SparkSession, tmp_path: Path, schema: CollectionSchema) -> None:
    history = History(OpenLocation(FileBlob(tmp_path), MemConsensus()), schema, seed=6)
    for _ in range(25):
        history.step()
    while schema.key and not history.forks:
        history.step()
    history.merge()
    history.append()
    assert history.merges
    for each in (history, *history.forks):
        assert any(each.client.manifest(batch).run for batch in each.state.batches)
        state = each.state
        since, end = state.since.time or 0, (state.upper.time or 1) - 1
        location, name, expected = each.client.location, each.shard, each.expected
        for time in sorted({since, (since + end) // 2, end}):
            assert rows_of(persist_spark.snapshot(spark, location, name, time)) == expected.snapshot(time)
            assert rows_of(persist_spark.errors(spark, location, name, time)) == expected.errors(time)
            changed = persist_spark.changes(spark, location, name, since, time)
            assert rows_of(changed) == expected.changes(expected.oks, since, time)
            changed = persist_spark.error_changes(spark, location, name, since, time)
            assert rows_of(changed) == expected.changes(expected.errs, since, time)


@pytest.mark.family("merges")
def test_commits_above_runs_are_those_of_a_shard_without(
    spark: SparkSession, tmp_path: Path, persist_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = StagedShard(spark, tmp_path / "plain", MANY_KEYS_DOMAIN.schema)
    merged = StagedShard(spark, tmp_path / "merged", MANY_KEYS_DOMAIN.schema)
    feed = Feed(MANY_KEYS_DOMAIN, random.Random(f"{persist_seed}/runs"), worlds=10)
    for number in range(5):
        if number == 4:  # a look-up of the batch's keys only, as in a large shard
            monkeypatch.setattr("persist_spark.upsert.batch.SMALL_STATE_BYTES", 0)
            monkeypatch.setattr("persist_spark.upsert.lookup.FEW_ERRS_BYTES", 0)
        lower, upper = 3 * number, 3 * number + 3
        records = feed.records(60, lower, upper)
        for shard in (plain, merged):
            shard.commit(records, upper)
        if number in (1, 3):
            merge(merged.client, SHARD, 2)
    assert len(merged.client.state(SHARD).batches) == 3
    theirs, ours = plain.client.open_reader(SHARD), merged.client.open_reader(SHARD)
    for time in (0, 4, 8, 14):
        assert sorted(map(repr, ours.snapshot(time).to_pylist())) == sorted(
            map(repr, theirs.snapshot(time).to_pylist())
        )
    assert sorted(map(repr, ours.changes(0).to_pylist())) == sorted(map(repr, theirs.changes(0).to_pylist()))


def test_a_view_and_its_input_are_merged_between_refreshes(spark: SparkSession, tmp_path: Path) -> None:
    shards = ViewShards(spark, tmp_path)
    expected = []
    for number in range(4):
        time = 5 * number
        added = [((number, "red", 1), time, 1), ((9, "blue", number), time + 1, 1)]
        gone = [((9, "blue", number - 1), time + 1, -1)] if number else []
        shards.commit("items", ITEMS, time + 5, [*added, *gone], [("value", b"%d" % number, b"p", time, 1)])
        assert shards.refresh(BY_COLOUR).stats["corrections"] == 0
        expected.append((time + 4, shards.rows("by_colour"), shards.errs("by_colour")))
        if number:
            merge(shards.client, "items", 2)
            merge(shards.client, "by_colour", 2)
    for time, rows, errs in expected:
        assert (shards.rows("by_colour", time), shards.errs("by_colour", time)) == (rows, errs)
    shards.commit("items", ITEMS, 25)
    merge(shards.client, "items", 2)
    description = shards.mint(BY_COLOUR)
    assert isinstance(description, BatchDescription)
    assert description.input_key is None  # no input has changed, though it was merged
    for name in ("items", "by_colour"):
        assert fsck(shards.client, name).is_clean
