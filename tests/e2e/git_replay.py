"""Replays a git history through mint, write (Spark), append and checkpoint, and compares the table with git.

The feed is delivered as badly as the rules allow: in files whose ends do not meet the ends of the batches (so that
records wait in the stash), shuffled, and with some lines twice.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from persist_core.compaction.merge import ROWS_AT_ONCE, Merge, merge_here
from persist_core.config.collection import CollectionConfig, load_collection
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.open import OpenLocation
from persist_core.protocol import stages
from persist_core.shard.replace import Replaced
from persist_core.shard.state import Committed
from persist_core.spark_job.spec import JobSpec
from tests.e2e.git_feed import COLLECTION, Record, Tree, commits, records, tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLLECTION_FILE = """
source:
  path: feed/*.jsonl
  format: json
key: path
columns: {path: string, mode: string, blob: string}
time: {field: time, unit: ms}  # the number of the commit
delete: {column: deleted, values: ["true"]}
limits: {max_errors: 0}
"""
EARLY = 5  # so many commits after a batch's end, records are delivered before they are due
TWICE = 0.05  # of the lines are delivered again


@dataclass
class Replay:
    """The replayed commits, and the results."""

    commits: int
    records: int
    compared: list[int] = field(default_factory=list)
    stats: list[dict[str, int]] = field(default_factory=list)


def replay(
    spark: SparkSession, location: OpenLocation, repo: Path, folder: Path, *, batches: int, samples: int, seed: int
) -> Replay:
    """Replay the history of `repo` in `batches` batches, then compare with git at `samples` commits.

    `folder` takes the feed and the collection file. Raises `AssertionError` naming commit and paths that differ.
    """
    dice = random.Random(seed)
    client = PersistClient(location)
    config = _collection(folder)
    history = commits(repo)
    feed = list(records(repo, history))
    done = Replay(len(history), len(feed))
    for until, lines in deliveries(feed, len(history), batches, dice):
        (folder / "feed" / f"until-{until}.jsonl").write_text("".join(lines))
        done.stats.append(_run(spark, client, config, until))
        _merge(client, dice)
    chosen = sorted({1, len(history), *(dice.randint(1, len(history)) for _ in range(samples))})
    compare(client, repo, history, chosen)
    done.compared = chosen
    return done


def _collection(folder: Path) -> CollectionConfig:
    (folder / "feed").mkdir(parents=True)
    file = folder / f"{COLLECTION}.yaml"
    file.write_text(COLLECTION_FILE)
    return load_collection(file)


def deliveries(feed: Sequence[Record], last: int, batches: int, dice: random.Random) -> list[tuple[int, list[str]]]:
    """For each batch its frontier (the first time that is not yet due) and the lines that arrive before it."""
    ends = sorted({1 + last * number // batches for number in range(1, batches + 1)})
    early = [min(end + dice.randint(0, EARLY), last + 1) for end in ends[:-1]]
    delivered = accumulate([0, *early, last + 1], max)
    plan = []
    for end, (low, high) in zip(ends, pairwise(delivered), strict=True):
        lines = [record.to_line() + "\n" for record in feed if low <= record.time < high]
        lines += dice.sample(lines, int(len(lines) * TWICE))
        dice.shuffle(lines)
        plan.append((end, lines))
    return plan


def _run(spark: SparkSession, client: PersistClient, config: CollectionConfig, until: int) -> dict[str, int]:
    """One batch through the four stages; its `DrainStats`."""
    from persist_spark.upsert.job import run_write_job

    minted = stages.mint(client, config, until=until, writer=f"git-replay/{until}")
    assert isinstance(minted, stages.Minted), minted
    attempt = client.ids.uuid7()
    manifest = run_write_job(spark, JobSpec(minted.description, config, attempt), client.location)
    result = stages.append(client, minted.description, manifest_key(COLLECTION, attempt))
    assert isinstance(result, Committed), result
    stages.checkpoint(client, config)
    return dict(manifest.stats)


def _merge(client: PersistClient, dice: random.Random) -> None:
    """More merges than any plan asks for: some neighbors after every commit, with little in memory at a time."""
    state = client.state(COLLECTION)
    if len(state.batches) < 2:
        return
    first = dice.randrange(len(state.batches) - 1)
    inputs = state.batches[first : dice.randrange(first + 2, len(state.batches) + 1)]
    merge = Merge.of(client, state, inputs)
    rows_at_once = dice.choice([100, ROWS_AT_ONCE])
    assert isinstance(merge_here(client, merge, attempt=client.ids.uuid7(), rows_at_once=rows_at_once), Replaced)


def compare(client: PersistClient, repo: Path, history: Sequence[str], times: Sequence[int]) -> None:
    """Raise `AssertionError` unless the table as of each of these times is equal to git's tree of that commit."""
    reader = client.open_reader(COLLECTION)
    before: tuple[int, Tree] | None = None
    for time in times:
        table = reader.snapshot(as_of=time).select(["path", "mode", "blob"]).to_pydict()
        found: Tree = dict(zip(table["path"], zip(table["mode"], table["blob"], strict=True), strict=True))
        wanted = tree(repo, history[time - 1])
        assert len(table["path"]) == len(found), f"as of {time}: a path stands there twice"
        differing = sorted(path for path in found.keys() | wanted.keys() if found.get(path) != wanted.get(path))
        assert not differing, (
            f"commit {history[time - 1]} (time {time}): {len(differing)} paths differ: {differing[:5]}"
        )
        if before:
            _compare_changes(client, before, (time, wanted))
        before = (time, wanted)
    errors = reader.errors()
    assert errors.num_rows == 0, errors.slice(0, 5).to_pylist()


def _compare_changes(client: PersistClient, before: tuple[int, Tree], after: tuple[int, Tree]) -> None:
    """Applying the changelog between two commits to the older tree has to give the newer one."""
    state = {(path, *entry): 1 for path, entry in before[1].items()}
    changes = client.open_reader(COLLECTION).changes(before[0], after[0]).to_pylist()
    for row in changes:
        entry = (row["path"], row["mode"], row["blob"])
        state[entry] = state.get(entry, 0) + row["_persist_diff"]
    wanted = {(path, *entry): 1 for path, entry in after[1].items()}
    assert {entry: count for entry, count in state.items() if count} == wanted, f"changes({before[0]}, {after[0]})"
