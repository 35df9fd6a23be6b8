"""Manifests with many parts: lists beside them, read only if parts are needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from persist_core.contents import part_lists
from persist_core.contents.batch import BatchCounts, BatchManifest, Part, PartKind
from persist_core.contents.key_range import KeyRange
from persist_core.errors import CorruptArtifact
from persist_core.handles.load import load_head, load_lists, load_manifest
from persist_core.handles.write import stage_manifest
from persist_core.keys import attempt_of, list_key, manifest_of_list, part_key
from persist_core.location.mem import MemBlob
from persist_core.schema import CollectionSchema, Column

OLDER = CollectionSchema((Column("id", "bigint", nullable=False, id=1),), (Column("qty", "int", id=2),), version=1)
NEWER = replace(OLDER, values=(Column("qty", "bigint", id=2),), version=2)
ATTEMPT = "01900000-0000-7000-8000-00000000000a"


def part(number: int, kind: PartKind = PartKind.INSERTIONS, schema: CollectionSchema = NEWER) -> Part:
    first, last = (None, None) if kind is PartKind.ERRS else ((10 * number,), (10 * number + 9,))
    key = part_key("s", ATTEMPT, kind, number)
    return Part(key, kind, 100, f"{number:064x}", schema, 7, number, first, last, index=(3, "e" * 64))


def manifest_of(*parts: Part) -> BatchManifest:
    return BatchManifest("s", 0, 9, "t", "c" * 64, NEWER, parts, BatchCounts(7), "c", 1, None, "test")


@pytest.fixture
def manifest(monkeypatch: pytest.MonkeyPatch) -> BatchManifest:
    """Seven parts, out of order, in lists of two."""
    monkeypatch.setattr(part_lists, "MAX_PARTS", 2)
    kinds = (part(0, PartKind.ERRS), part(1, PartKind.RETRACTIONS), part(3), part(2, schema=OLDER), part(5), part(4))
    return manifest_of(*kinds, part(6))


def test_a_manifest_with_few_parts_holds_them() -> None:
    few, blob = manifest_of(part(1), part(0)), MemBlob()
    key = stage_manifest(blob, few, ATTEMPT)
    assert [entry.key for entry in blob.list_keys_and_metadata("")] == [key]
    assert load_head(blob, key) == load_manifest(blob, key) == few


def test_many_parts_are_in_lists_of_a_kind_by_key(manifest: BatchManifest) -> None:
    blob = MemBlob()
    key = stage_manifest(blob, manifest, ATTEMPT)
    lists = [
        (each.kind, each.files, each.size_bytes, each.rows, each.last_time, each.first_key, each.last_key)
        for each in manifest.lists
    ]
    assert lists == [
        ("errs", 1, 100, 7, 0, None, None),
        ("insertions", 2, 200, 14, 3, (20,), (39,)),
        ("insertions", 2, 200, 14, 5, (40,), (59,)),
        ("insertions", 1, 100, 7, 6, (60,), (69,)),
        ("retractions", 1, 100, 7, 1, (10,), (19,)),
    ]
    whole = load_manifest(blob, key)
    assert sorted(whole.parts, key=lambda each: each.key) == sorted(manifest.parts, key=lambda each: each.key)
    assert whole.hollow(key) == manifest.hollow(key) == load_head(blob, key).hollow(key)
    assert (whole.encode(), whole.schemas) == (manifest.encode(), manifest.schemas)


def test_a_manifest_without_its_lists_says_all_but_its_parts(manifest: BatchManifest) -> None:
    blob = MemBlob()
    head = load_head(blob, stage_manifest(blob, manifest, ATTEMPT))
    assert (len(head.parts), head.size_bytes, head.schemas) == (7, 700, {1: OLDER, 2: NEWER})
    assert head.encode() == manifest.encode()
    with pytest.raises(AssertionError, match="were not read"):
        list(head.parts)


def test_a_range_of_keys_reads_only_the_lists_that_may_hold_it(manifest: BatchManifest) -> None:
    blob = MemBlob()
    key = stage_manifest(blob, manifest, ATTEMPT)
    for number in (1, 3, 4):
        blob.delete(list_key(key, number))
    found = load_lists(blob, key, load_head(blob, key), [KeyRange((45,), (45,))])
    assert [each.key for each in found.parts] == [part(0, PartKind.ERRS).key, part(4).key, part(5).key]
    assert found.hollow(key).manifest_sha256 == manifest.sha256
    with pytest.raises(CorruptArtifact, match=f"{list_key(key, 1)} is missing"):
        load_manifest(blob, key)


def test_another_list_in_a_lists_place_is_found(manifest: BatchManifest) -> None:
    blob = MemBlob()
    key = stage_manifest(blob, manifest, ATTEMPT)
    blob.set(list_key(key, 1), blob.get(list_key(key, 2)) or b"")
    with pytest.raises(CorruptArtifact, match=f"{list_key(key, 1)} .*another object is in its place"):
        load_manifest(blob, key)


def test_the_key_of_a_list_names_its_manifest(manifest: BatchManifest) -> None:
    key = stage_manifest(MemBlob(), manifest, ATTEMPT)
    assert manifest_of_list(list_key(key, 1_000_000)) == key
    assert [manifest_of_list(each) for each in (key, part(1).key, "s/batches/parts-000001.json")] == [None] * 3
    assert attempt_of(list_key(key, 0)) is None
