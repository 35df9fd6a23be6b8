"""Digests of staged files by executors: the same as by the driver, which reads none of the bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession, functions

from persist_core.errors import CorruptArtifact
from persist_core.keys import attempt_prefix
from persist_core.location.blob import BlobMetadata
from persist_core.location.file.blob import FileBlob
from persist_spark import digests, footers
from persist_spark.digests import max_file_bytes, staged_digests
from tests.oracle.upsert import Err, Record
from tests.spark.s3_store import s3_blob, shard_on_one_store
from tests.spark.staged_shard import SHARD, StagedShard
from tests.spark.upsert_cases import ONE_KEY

pytest_generate_tests = shard_on_one_store
HOSTILE_NAME = "we [ird] {a,b} *?% ü"


@pytest.fixture
def shard(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StagedShard]:
    monkeypatch.setattr(digests, "BY_EXECUTORS_BYTES", 0)
    where = tmp_path / HOSTILE_NAME
    with closing(FileBlob(where) if request.param == "file" else s3_blob(request, HOSTILE_NAME)) as blob:
        yield StagedShard(spark, blob, ONE_KEY)


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The bytes that this process reads for digests, by key."""
    read: dict[str, int] = {}
    chunks = footers._chunks

    def counted(blob: Any, file: BlobMetadata) -> Iterator[bytes]:
        for chunk in chunks(blob, file):
            read[file.key] = read.get(file.key, 0) + len(chunk)
            yield chunk

    monkeypatch.setattr(footers, "_chunks", counted)
    return read


def _staged(shard: StagedShard) -> list[BlobMetadata]:
    records = [Record((key,), (f"row {key}", key, None), None, (None, "f", 0, key)) for key in range(200)]
    manifest = shard.commit([*records, Record((500,), Err("value", b"k", b"raw"), None, (None, "f", 0, 500))], 10)
    return [BlobMetadata(part.key, part.size_bytes) for part in manifest.parts]


def _digests(shard: StagedShard, files: list[BlobMetadata]) -> list[str]:
    return staged_digests(shard.spark, shard.blob, attempt_prefix(SHARD, shard.attempt), files)


def _sha256(shard: StagedShard, file: BlobMetadata) -> str:
    return hashlib.sha256(shard.blob.get(file.key) or b"").hexdigest()


def test_a_manifest_names_digests_of_executors(shard: StagedShard, read_here: dict[str, int]) -> None:
    files = _staged(shard)
    manifest = shard.client.manifests(shard.client.state(SHARD).batches)[0]
    assert len(files) > 1
    assert [part.sha256 for part in manifest.parts] == [_sha256(shard, file) for file in files]
    assert read_here == {}


def test_only_files_too_large_for_a_task_are_read_here(
    shard: StagedShard, read_here: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(_staged(shard), key=lambda file: file.size_bytes)
    largest = files[-1]
    monkeypatch.setattr(digests, "max_file_bytes", lambda _: largest.size_bytes - 1)
    assert _digests(shard, files) == [_sha256(shard, file) for file in files]
    assert read_here == {largest.key: largest.size_bytes}


def test_a_file_that_is_gone_or_changed_is_named(shard: StagedShard) -> None:
    first, *others = _staged(shard)
    with pytest.raises(CorruptArtifact, match=f"{first.key}: found {first.size_bytes} bytes, expected 7;"):
        _digests(shard, [*others, replace(first, size_bytes=7)])
    shard.blob.delete(first.key)
    with pytest.raises(CorruptArtifact, match=f"{first.key}: found 0 bytes, expected .*stage again"):
        _digests(shard, [*others, first])


def test_a_file_that_goes_after_the_listing_is_named(shard: StagedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = _staged(shard)
    sha2 = functions.sha2

    def late(content: Any, bits: int) -> Any:  # the files are listed by now
        shard.blob.delete(first.key)
        return sha2(content, bits)

    monkeypatch.setattr(functions, "sha2", late)
    with pytest.raises(CorruptArtifact, match=f"{first.key}: found 0 bytes, expected .*stage again"):
        _digests(shard, [first, *others])


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark.master": "local[2]"}, 128 << 20),
        ({"spark.master": "local[2]", "spark.driver.memory": "512m"}, 64 << 20),
        ({"spark.master": "yarn"}, 64 << 20),
        ({"spark.master": "yarn", "spark.executor.memory": "8g", "spark.executor.cores": "4"}, 512 << 20),
        ({"spark.master": "yarn", "spark.executor.memory": "64GB", "spark.executor.cores": "1"}, 512 << 20),
        ({"spark.executor.memory": "2048", "spark.executor.cores": "2"}, 256 << 20),
    ],
)
def test_a_task_holds_what_its_process_has_memory_for(conf: dict[str, str], expected: int) -> None:
    session = SimpleNamespace(conf=SimpleNamespace(get=conf.get))
    assert max_file_bytes(cast(SparkSession, session)) == expected
