"""A shard with 10,000 commits: what the page and `persist describe` need costs well below a second of processor time.

Each batch is really staged. The state is kept in memory until the last one, because 10,000 compare-and-sets would only
take longer to make the same state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persist_core.checkpoint.publish import publish_missing
from persist_core.cli.main import run_command
from persist_core.contents.batch import BatchDescription
from persist_core.contents.parts import updates_schema
from persist_core.handles.client import PersistClient
from persist_core.inspection.inspector import Inspector
from persist_core.location.consensus import CaSResult, VersionedData
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.maintain import maintain
from persist_core.shard import state as transitions
from persist_core.shard.codec import StateVersion, encode_state
from tests.core.world import SCHEMA
from tests.sampling import is_long

COMMITS, HOUR_MS, SHARD = 10_000, 3_600_000, "big"
COUNTS = {"inserts": 3, "updates": 0, "deletes": 0, "errors": 0, "records_read": 3}


def fill(client: PersistClient) -> None:
    """One commit an hour, up to now, with three new rows each."""
    state, columns, writer = client.ensure_shard(SHARD), updates_schema(SCHEMA), client.open_writer(SHARD)
    version, start_ms = state.seqno, client.clock.now_ms() // HOUR_MS * HOUR_MS - COMMITS * HOUR_MS
    for number in range(COMMITS):
        lower, upper, newest = state.upper.time or 0, start_ms + (number + 1) * HOUR_MS, state.newest_commit
        description = BatchDescription(
            shard=SHARD,
            lower=lower,
            upper=upper,
            token=client.ids.uuid7(),
            checkpoint_id=client.ids.uuid7(),
            epoch=number + 1,
            parent_id=newest.checkpoint_id if newest else None,
            writer=f"persist_upsert__{SHARD}/scheduled__{number}",
        )
        rows = [dict(zip(columns.names, (3 * number + n, "x", upper - 1, 1), strict=True)) for n in range(3)]
        table = pa.Table.from_pylist(rows, schema=columns)
        key = writer.stage(description, SCHEMA, client.ids.uuid7(), table, stats=COUNTS)
        state, _ = transitions.compare_and_append(
            state, client.staged_manifest(key), key, expected_upper=lower, now_ms=client.clock.now_ms()
        )
        state = replace(state, seqno=state.seqno + 1)
    data = encode_state(StateVersion(client.ids.uuid7(), client.clock.now_ms(), state))
    done = client.location.consensus.compare_and_set(SHARD, version, VersionedData(state.seqno, data))
    assert done is CaSResult.COMMITTED
    publish_missing(client, client.state(SHARD))


@pytest.mark.skipif(not is_long(), reason="10,000 commits (PERSIST_PROFILE=nightly)")
def test_a_shard_with_10_000_commits_is_shown_fast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With and without maintenance. Prints what docs/page.md says."""
    location = PersistLocation(f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/consensus.db")
    options = ["--blob-uri", location.blob_uri, "--consensus-uri", location.consensus_uri, "--json"]
    with open_location(location) as opened:
        client = PersistClient(opened)
        fill(client)
        for is_maintained in (False, True):
            while is_maintained and maintain(client, SHARD).merges:
                pass
            listing, inspector = Inspector(client), Inspector(client)
            asked: dict[str, Callable[[], object]] = {
                "list": partial(_list, listing),
                "shard": partial(_page, inspector),
                "shard again": partial(_page, inspector),
                "persist describe": partial(run_command, ["describe", SHARD, *options]),
            }
            spent_s = {name: _processor_s(ask) for name, ask in asked.items()}
            said = json.loads(capsys.readouterr().out)
            assert (said["commits"], said["rows"]) == (COMMITS, 3 * COMMITS)
            assert (said["batches"] == COMMITS) is not is_maintained
            with capsys.disabled():
                shown = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in spent_s.items())
                print(f"{COMMITS} commits, {said['batches']} batches: {shown}")  # noqa: T201 - figures for the docs
            assert max(spent_s.values()) < 1


def _list(inspector: Inspector) -> None:
    json.dumps([asdict(each) for each in inspector.summaries()])


def _page(inspector: Inspector) -> None:
    """The requests of a shard's page, without rows."""
    found: list[Any] = [inspector.description(SHARD), inspector.commits(SHARD), inspector.batches(SHARD)]
    found += [*inspector.checkpoints(SHARD), *inspector.conflicts(SHARD)]
    json.dumps([asdict(each) for each in found])


def _processor_s(ask: Callable[[], object]) -> float:
    started_s = time.process_time()
    ask()
    return time.process_time() - started_s
