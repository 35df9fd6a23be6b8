"""The rows of an operator's state, its digest verified."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from persist_core.checkpoint.checkpointer import load_verified
from persist_core.errors import CorruptArtifact
from persist_core.location.blob import Blob
from persist_core.shard.operator_state import StateArtifact
from persist_core.shard.parts import PARQUET, PartFormat, read_as
from persist_core.shard.schema_versions import SchemaVersions

ROWS_AT_ONCE = 1 << 16


def state_rows(
    blob: Blob,
    artifact: StateArtifact,
    columns: pa.Schema,
    schemas: SchemaVersions,
    part_format: PartFormat = PARQUET,
) -> Iterator[pa.Table]:
    """These columns of one artifact, at most `ROWS_AT_ONCE` rows at a time. `schemas`: the shard's.

    Raises `CorruptArtifact` naming the artifact if it is missing or damaged.
    """
    data = load_verified(blob, artifact.key, artifact.sha256)
    written = schemas.of(artifact.schema_version, what=f"artifact {artifact.key}")
    try:
        yield from read_as(part_format, data, columns, written, rows=ROWS_AT_ONCE)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptArtifact(
            f"artifact {artifact.key} has the bytes that its writer staged, but cannot be read: {error!r}"
        ) from error
