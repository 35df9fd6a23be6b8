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
_LONG_DECIMAL = 18  # digits; one with more is held like a text


def fits(rows: int, columns: Sequence[T.StructField], text_bytes: int) -> bool:
    """Whether so many rows of these columns may be broadcast; `text_bytes`: of all that has no fixed width."""
    return rows * (_ROW_BYTES + _CELL_BYTES * len(columns)) + 2 * text_bytes <= MAX_BROADCAST_BYTES


def text_bytes(columns: Sequence[T.StructField]) -> str:
    """SQL: the bytes of all in a row's columns that has no fixed width."""
    sizes = ["0L"]
    for column in columns:
        if isinstance(column.dataType, T.StringType | T.BinaryType):
            sizes.append(f"coalesce(octet_length({quoted(column.name)}), 0)")
        elif isinstance(column.dataType, T.DecimalType) and column.dataType.precision > _LONG_DECIMAL:
            sizes.append(f"{_CELL_BYTES}L")
    return " + ".join(sizes)
