"""The facts of an inspection, compared with what plain reads of the same shard find."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import pytest

from persist_core.alerts.facts import problems_of
from persist_core.checkpoint.publish import publish_missing
from persist_core.compaction.due import next_merge
from persist_core.compaction.merge import Merge, merge_here
from persist_core.contents.batch import BatchDescription
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import Determinate, ShardNotFound
from persist_core.handles.client import PersistClient
from persist_core.inspection.facts import CommitFacts
from persist_core.inspection.inspector import MAX_COMMITS, MAX_CONFLICTS, WEEK_MS, Inspector
from persist_core.location.consensus import VersionedData
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.maintain import maintain
from persist_core.protocol.conflicts import record_conflict
from persist_core.protocol.fork import fork
from persist_core.protocol.swap import swap
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.receive import move_away
from persist_core.shard.state import UpperMismatch
from persist_core.time_text import parse_time
from tests.core.maintenance.rebuilt_shard import made, rebuilt
from tests.core.protocol.restored_shard import SHARD
from tests.plain_commit import commit
from tests.virtual import ManualClock

DAY = 86_400_000
DAY_1 = parse_time("2026-01-01")
NOW = DAY_1 + 40 * DAY
KEYED = CollectionSchema(key=(Column("id", "bigint", nullable=False),), values=(Column("name", "string"),))
MULTISET = CollectionSchema(key=(), values=(Column("name", "string"),))


@pytest.fixture
def client() -> Iterator[PersistClient]:
    with OpenLocation(MemBlob(), MemConsensus()) as opened:
        yield PersistClient(opened, ManualClock(NOW))


def history(client: PersistClient, days: int) -> None:
    """A key more each day, the one of the day before changed, every third deleted again, an error each fifth day."""
    for day in range(days):
        time = DAY_1 + day * DAY
        updates = [((day, f"new {day}"), time, 1)]
        if day % 3 == 1:
            updates += [((day - 1, f"new {day - 1}"), time, -1)]
        errs = [("value", None, f"payload {day}".encode(), time, 1)] if day % 5 == 0 else []
        commit(client, "orders", KEYED, time + DAY, updates, errs)


def lose(client: PersistClient, shard: str, token: str) -> None:
    """Record a conflict."""
    description = BatchDescription(shard, 0, 1, token, client.ids.uuid7(), 1, None, writer=f"dag/{token}")
    mismatch = UpperMismatch(0, client.state(shard).upper, None, is_stale=True)
    record_conflict(client.blob, client.clock, description, mismatch)


def test_counts_are_those_of_a_read_before_and_after_merges(client: PersistClient) -> None:
    history(client, 30)
    inspector, reader = Inspector(client), client.open_reader("orders")
    for _ in range(4):
        (summary,) = inspector.summaries()
        assert (summary.rows, summary.errors) == (len(reader.snapshot()), len(reader.errors())) == (20, 6)
        assert (summary.kind, summary.stash, summary.commits) == ("other", 0, 30)
        due = next_merge(client.state("orders").batches)
        if due is None:
            break
        assert summary.due_merge is not None
        assert summary.due_merge.batches == len(due)
        merge_here(client, Merge.of(client, client.state("orders"), due), attempt=client.ids.uuid7())
    assert client.state("orders").batches[0].run_changed_at is not None


def test_what_depends_on_the_clock(client: PersistClient) -> None:
    history(client, 30)
    lose(client, "orders", "old")
    inspector = Inspector(client)
    assert inspector.summary("orders").conflicts_7d == 1
    assert inspector.summary("orders").lag_ms == NOW - (DAY_1 + 30 * DAY)
    assert inspector.summary("orders").attention == ("errors", "conflicts")
    client.clock.sleep_ms(WEEK_MS + 1)
    assert inspector.summary("orders").conflicts_7d == 0
    lose(client, "orders", "new")
    assert inspector.summary("orders").conflicts_7d == 1
    assert [record.loser for record in inspector.conflicts("orders")] == ["dag/old", "dag/new"]
    commit(client, "early", KEYED, client.clock.now_ms() + 2 * DAY)
    assert inspector.summary("early").attention == ("future_upper",)
    assert inspector.summary("early").lag_ms == 0


def test_a_moved_shard_says_only_where_it_is(client: PersistClient) -> None:
    history(client, 3)
    assert Inspector(client).summary("orders").attention == ("errors",)
    client.machine.apply("orders", lambda state: move_away(state, "blob s3://new, consensus s3://new"))
    summary = Inspector(client).summary("orders")
    assert (summary.moved_to, summary.attention) == ("blob s3://new, consensus s3://new", ("moved",))
    assert [problem.urgency for problem in problems_of(summary.attention, ())] == ["note"]


def test_counters_have_no_lag_and_closed_shards_neither(client: PersistClient) -> None:
    commit(client, "counter", KEYED, 7)
    commit(client, "closed", KEYED, None)
    assert [(s.shard, s.upper, s.lag_ms) for s in Inspector(client).summaries()] == [
        ("closed", None, None),
        ("counter", 7, None),
    ]


def test_rows_of_a_multiset_are_known_if_its_writer_counted(client: PersistClient) -> None:
    commit(client, "names", MULTISET, 10, [(("Ada",), 1, 3)])
    assert Inspector(client).summary("names").rows is None


def test_commits_say_how_they_changed_the_schema(client: PersistClient) -> None:
    """In a page that spans a swap too, which itself is another schema and no change of one."""
    commit(client, "orders", KEYED, 10, [((1, "a"), 5, 1)])
    changed = (Column("title", "string", renamed_from="name"), Column("age", "int"))
    wide = client.state("orders").schemas.placed(replace(KEYED, values=changed))
    for upper in (20, 30):
        commit(client, "orders", wide, upper, [((upper, "b", 1), upper - 5, 1)])
    commit(client, "orders~rebuild", replace(KEYED, key=(Column("id", "int", nullable=False),)), 30)
    swap(client, client.state("orders"), client.state("orders~rebuild"), keep_ms=None, writer="test")
    swapped = client.state("orders")
    assert swapped.schema is not None
    commit(client, "orders", swapped.schemas.placed(replace(swapped.schema, values=())), 40)
    inspector, before = Inspector(client), None
    found: list[CommitFacts] = []
    for limit in (3, 1, 1):
        page = inspector.commits("orders", before=before, limit=limit)
        found, before = [*page.commits, *found], page.older
    assert [(each.upper, each.schema_changes, each.swapped_in) for each in found] == [
        (10, (), None),
        (20, ("name is renamed to title", "age (int) is added: null in earlier rows"), None),
        (30, (), None),
        (31, (), "orders~rebuild"),
        (40, ("name is dropped; its history stays readable",), None),
    ]
    whole = inspector.commits("orders").commits
    assert [each.schema_changes for each in whole] == [each.schema_changes for each in found]


def test_all_commits_are_found_page_by_page(client: PersistClient) -> None:
    total = 230  # more than a state keeps
    for upper in range(1, total + 1):
        commit(client, "orders", KEYED, upper, [((upper, "x"), upper - 1, 1)] if upper % 20 == 0 else [])
    inspector = Inspector(client)
    pages, before = [], None
    for _ in range(10):
        page = inspector.commits("orders", before=before, limit=60)
        pages.append(page)
        before = page.older
        if before is None:
            break
    found = [each for page in reversed(pages) for each in page.commits]
    assert [each.upper for each in found] == list(range(1, total + 1))
    assert [each.upper for each in found if each.inserts] == list(range(20, total + 1, 20))
    assert len(inspector.commits("orders", limit=10_000).commits) == MAX_COMMITS
    client.location.consensus.truncate("orders", client.state("orders").seqno)
    kept = len(client.state("orders").commits)
    assert kept < total
    assert inspector.commits("orders", limit=kept).older is None
    assert len(inspector.commits("orders", before=total - kept).commits) == 0


def test_a_shard_without_rights_hides_no_other(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader may have rights for some shards of a bucket: lists and metrics name what it may not read."""
    history(client, 1)
    commit(client, "secret", KEYED, 5)
    get = client.blob.get

    def granted(key: str) -> bytes | None:
        if key.startswith("secret/"):
            raise Determinate("403 Access Denied; grant the rights")
        return get(key)

    monkeypatch.setattr(client.blob, "get", granted)
    orders, secret = Inspector(client).summaries()
    assert (orders.rows, orders.error) == (1, None)
    assert (secret.attention, secret.error) == (
        ("unreadable",),
        "storage_determinate: 403 Access Denied; grant the rights",
    )
    (_, known), (denied, unknown) = Inspector(client).newest_commits(["orders", "secret"])
    assert known is not None
    assert known.inserts == 1
    assert (denied.attention, unknown and unknown.inserts) == (("unreadable",), None)


def test_conflicts_of_earlier_weeks_are_not_read() -> None:
    clock = ManualClock(NOW)
    with OpenLocation(MemBlob(clock=clock), MemConsensus()) as opened:
        client = PersistClient(opened, clock)
        history(client, 1)
        for number in range(MAX_CONFLICTS + 1):
            lose(client, "orders", f"old {number}")
        assert Inspector(client).summary("orders").conflicts_7d is None
        clock.sleep_ms(WEEK_MS + 1)
        lose(client, "orders", "new")
        with patch.object(opened.blob, "get", wraps=opened.blob.get) as get:
            assert Inspector(client).summary("orders").conflicts_7d == 1
        assert sum("/conflicts/" in call.args[0] for call in get.call_args_list) == 1
        assert len(Inspector(client).conflicts("orders")) == MAX_CONFLICTS + 2


def test_damage_hides_nothing_else(client: PersistClient) -> None:
    history(client, 3)
    commit(client, "rotten", KEYED, 5)
    head = client.location.consensus.head("rotten")
    assert head is not None
    client.location.consensus.compare_and_set("rotten", head.seqno, VersionedData(head.seqno + 1, b"rotten"))
    client.blob.set(client.state("orders").commits[1].manifest_key, b"rotten")
    inspector = Inspector(client)
    orders, rotten = inspector.summaries()
    assert (orders.rows, rotten.attention) == (2, ("unreadable",))
    assert rotten.error is not None
    assert rotten.error.startswith("corrupt_artifact: ")
    commits = inspector.commits("orders").commits
    assert [each.inserts for each in commits] == [1, None, 1]
    assert "corrupt_artifact: manifest orders/" in (commits[1].error or "")
    lose(client, "orders", "lost")
    (record,) = islice(client.blob.list_keys_and_metadata("orders/conflicts/"), 1)
    client.blob.set(record.key, b"rotten")
    summary = Inspector(client).summary("orders")
    assert (summary.rows, summary.conflicts_7d) == (2, None)
    assert "conflict record" in (summary.error or "")


def test_a_description_has_holders_and_forks(client: PersistClient) -> None:
    history(client, 12)
    client.open_leased_reader("orders", lease_ms=60_000)
    client.open_since("orders", "view/totals")
    description = Inspector(client).description("orders")
    held = {each.kind: each for each in description.held}
    assert (held["view"].holder, held["lease"].expires_ms) == ("view/totals", NOW + 60_000)
    assert description.schema == SchemaVersions().placed(KEYED).to_json()
    assert (description.rows, description.definition) == (8, None)
    publish_missing(client, client.state("orders"))
    fork(client, "orders", client.state("orders").commits[5].checkpoint_id, "copy", writer="test")
    assert [each.holder for each in Inspector(client).description("orders").held if each.kind == "fork"] == ["copy"]
    copy = Inspector(client).summary("copy")
    assert (copy.forked_from, copy.rows) == ("orders", len(client.open_reader("copy").snapshot()))
    json.dumps(asdict(Inspector(client).description("orders")))


def test_commits_of_a_generation_that_is_gone_are_no_damage(tmp_path: Path) -> None:
    shard = made(tmp_path)
    rebuilt(shard)
    for _ in range(10):
        shard.clock.sleep_ms(WEEK_MS)
        maintain(shard.client, SHARD)
    found = Inspector(shard.client).commits(SHARD).commits
    assert [(each.inserts, each.error) for each in found] == [(None, None)] * 3 + [(0, None)]
    shard.client.blob.delete(shard.client.state(SHARD).commits[-1].manifest_key)
    newest = Inspector(shard.client).commits(SHARD).commits[-1]
    assert "is missing" in (newest.error or "")


def test_a_state_is_decoded_once(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    history(client, 3)
    inspector = Inspector(client)
    first = inspector.summaries()
    monkeypatch.setattr("persist_core.inspection.inspector.read_version", None)
    assert inspector.summaries() == first


def test_an_unknown_shard_is_named(client: PersistClient) -> None:
    with pytest.raises(ShardNotFound, match="'none'"):
        Inspector(client).summary("none")
