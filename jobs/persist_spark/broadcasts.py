"""Which keys may be broadcast: by what they take in memory, which compressed bytes say nothing about.

The driver collects them, builds a hash table of them, and sends it to each executor, which holds it too. By default a
driver has 1 GB; 20 million keys, 14 MB in Parquet, ended it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as T

from persist_spark.frame import quoted

# Of one hash table. Up to three are built of the same keys, and the driver holds a copy of each as it is sent.
MAX_BROADCAST_BYTES = 192 << 20
_ROW_BYTES, _CELL_BYTES = 64, 16  # of a row, and of each of its columns, once as a key and once as a value
_LONG_DECIMAL = 18  # digits; one with more takes two cells


def fits(rows: int, columns: Sequence[T.StructField], text_bytes: int) -> bool:
    """True if so many rows of these columns may be broadcast; `text_bytes`: of all that has no fixed width."""
    types = [column.dataType for column in columns]
    cells = len(types) + sum(isinstance(each, T.DecimalType) and each.precision > _LONG_DECIMAL for each in types)
    return rows * (_ROW_BYTES + _CELL_BYTES * cells) + 2 * text_bytes <= MAX_BROADCAST_BYTES


def text_bytes(columns: Sequence[T.StructField]) -> str | None:
    """SQL: the bytes of what has no fixed width in a row's columns; `None` if all have one."""
    texts = [column.name for column in columns if isinstance(column.dataType, T.StringType | T.BinaryType)]
    return " + ".join(f"CAST(coalesce(octet_length({quoted(name)}), 0) AS BIGINT)" for name in texts) or None
