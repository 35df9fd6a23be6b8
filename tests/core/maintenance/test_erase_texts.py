"""Texts for people beside the data: an erasure removes the keys that they mention, or they never hold one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from persist_core.alerts.record import RECORD_KEY
from persist_core.contents.derived import Correction, Restored
from persist_core.handles.client import PersistClient
from persist_core.handles.erased import erased_list
from persist_core.inspection.holders import release
from persist_core.maintenance.erase import erase
from persist_core.maintenance.erase_files import Rewriting
from persist_core.maintenance.erase_objects import verify
from persist_core.maintenance.fsck import fsck, remember
from persist_core.maintenance.sought import Sought
from persist_core.schema import CollectionSchema, Column
from tests.core.maintenance.test_erase import in_memory
from tests.plain_commit import Update, commit
from tests.virtual import ManualClock, SeededIds

EMAIL, NAME = Column("email", "string", nullable=False), Column("name", "string")
SCHEMA = CollectionSchema(key=(EMAIL,), values=(NAME,))
KEY = ("ann@example.org",)
ANN, BO = (*KEY, "Ann"), ("bo@example.org", "Bo")
SAID = "export for ann@example.org is done"


@pytest.fixture
def client() -> PersistClient:
    clock = ManualClock(1_700_000_000_000)
    made = PersistClient(in_memory(), clock, SeededIds(1, clock))
    commit(made, "people", SCHEMA, 10, [(ANN, 5, 1), (BO, 5, 1)])
    return made


@pytest.mark.parametrize("is_erased_before", [False, True])
def test_reasons_lose_an_erased_key_and_keep_others(client: PersistClient, *, is_erased_before: bool) -> None:
    if is_erased_before:
        erase(client, "people", [KEY], by="me", reason="request 1")
    for holder, reason in (("report-1", SAID), ("report-2", "no longer read")):
        client.open_since("people", holder)
        release(client, "people", holder, by="me", reason=reason)
    erase(client, "people", [("cy@example.org",)], by="me", reason="asked by ann@example.org")
    assert len(verify(client, "people", [KEY])) >= 2
    assert erase(client, "people", [KEY], by="me", reason="request 2").status == "erased"
    assert verify(client, "people", [KEY]) == ()
    state = client.state("people")
    assert [each.reason for each in state.released] == ["", "no longer read"]
    requests = ["request 1"] if is_erased_before else []
    assert [each.reason for each in erased_list(client, state).erasures] == [*requests, "", "request 2"]
    assert erase(client, "people", [KEY], by="me", reason="request 2").status == "up_to_date"
    assert fsck(client, "people").is_clean


@pytest.mark.parametrize("reason", [SAID, "prices in cents"])
def test_a_manifest_loses_a_reason_with_the_key(client: PersistClient, reason: str) -> None:
    state = client.state("people")
    schema = state.schema
    assert schema is not None
    restored = Restored("people~reprocess", "id", None, Correction(0, None, 5, reason))
    manifest = replace(client.manifest(state.batches[0]), parts=(), restored=restored)
    sought = Sought.of([KEY], schema.key)
    assert sought.is_in_object(manifest.encode()) == (reason == SAID)
    after = Rewriting(client, "people", client.ids.uuid7(), state.era, sought).manifest(manifest, None, is_commit=True)
    assert (after is None) == (reason != SAID)
    if after is not None:
        assert not sought.is_in_object(after.encode())
        assert after.restored == replace(restored, correction=Correction(0, None, 5, ""))


@pytest.mark.parametrize(
    ("schema", "rows", "check"),
    [
        (SCHEMA, [(ANN, 15, 1)], "one_value_per_key"),
        (SCHEMA, [((*KEY, "Anna"), 15, -1)], "retraction_carries_its_value"),
        (CollectionSchema(key=(), values=(EMAIL, NAME)), [(ANN, 15, -1)], "counts_not_negative"),
    ],
)
def test_the_result_of_fsck_that_is_kept_shows_no_row(
    client: PersistClient, schema: CollectionSchema, rows: Sequence[Update], check: str
) -> None:
    shard = "people" if schema.key else "view"
    commit(client, shard, schema, 20, rows)
    report = fsck(client, shard)
    assert KEY[0] in report.violations[0].message
    remember(client, report)
    head = client.location.consensus.head(RECORD_KEY)
    assert head is not None
    assert check.encode() in head.data
    assert b"ann" not in head.data.lower()
