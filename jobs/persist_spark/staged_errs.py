"""The errs that an attempt has staged, read by the driver within bounds: for the report of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from persist_core.contents.err_groups import MAX_READ
from persist_core.location.blob import Blob, BlobMetadata
from persist_core.schema import DIFF, ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION, TIME
from persist_spark.footers import read_rows

_MAX_FILES = 16  # of one attempt, the largest: each costs a round trip or two
_ROWS_AT_ONCE = 1_000
_COLUMNS = (ERR_KIND, ERR_MESSAGE, ERR_POSITION, ERR_KEY, ERR_PAYLOAD, TIME, DIFF)


def inserted_errs(blob: Blob, files: Sequence[BlobMetadata]) -> Iterator[Mapping[str, Any]]:
    """At most `MAX_READ` errs that the files insert, as rows by the names of their columns."""
    left = MAX_READ
    for file in sorted(files, key=lambda file: -file.size_bytes)[:_MAX_FILES]:
        for table in read_rows(blob, file, _COLUMNS, _ROWS_AT_ONCE):
            found = table.filter(pc.greater(table[DIFF], 0)).slice(0, left)
            left -= len(found)
            yield from found.to_pylist()
            if left == 0:
                return
