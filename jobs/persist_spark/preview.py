"""The records of a sample as they were decoded, for `persist preview`."""

from __future__ import annotations

from pyspark.sql import DataFrame

from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION, TIME, CollectionSchema
from persist_spark.frame import OP, ORDER, quoted

_PAYLOAD_BYTES = 2_000  # of the payload of an err


def as_json_lines(records: DataFrame, schema: CollectionSchema) -> bytes:
    """The records frame, a JSON object a line: key, op, time, order, kind, message, position, payload (base64).

    It is collected whole: the frame must be a sample's.
    """
    keys = ", ".join(quoted(column.name) for column in schema.key)
    cells = {
        "key": f"struct({keys})",
        "op": OP,
        "time": TIME,
        "order": ORDER,
        "kind": ERR_KIND,
        "message": ERR_MESSAGE,
        "position": ERR_POSITION,
        "payload": f"substring({ERR_PAYLOAD}, 1, {_PAYLOAD_BYTES})",
    }
    struct = ", ".join(f"'{name}', {sql}" for name, sql in cells.items())
    rows = records.selectExpr(f"to_json(named_struct({struct}), map('ignoreNullFields', 'false')) AS line").collect()
    return "\n".join(row["line"] for row in rows).encode()
