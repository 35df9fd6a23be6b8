"""Values that a record does not carry: Debezium's placeholders for unavailable values, and missing fields of JSON.

    raw text of a column ──is it a placeholder?────> boolean per column, `Field.unsent` ──> `INHERITED`
    text of the row ──fields──has it such a field?─┘

Debezium fills the place of a large value that the update did not change, and that the database did not log (TOAST in
PostgreSQL, LOBs in Oracle), with `unavailable.value.placeholder`, in a form that fits the column's type.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import operator
import uuid
from collections.abc import Mapping, Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from persist_core.config.collection import UNAVAILABLE_TYPES, CollectionConfig
from persist_core.schema import INHERITED, CollectionSchema
from persist_spark.decode.encoding import Field
from persist_spark.decode.json import MARK, Path
from persist_spark.frame import ANY_LENGTH, entries_sql, quoted

ROW_FIELDS = "row_fields"  # of the raw frame: the fields of the row, by name
_FIELDS = "map<string,string>"
# Debezium's points for unavailable values of PostGIS, far outside of the world: `geometry`, then `geography`.
_PLACES = (
    "0101000020E6100000000000FC83D797C1000000FC83D797C1",
    "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640",
)


def unavailable_texts(placeholder: str) -> list[str]:
    """All texts that stand for a value that was not sent, as leaves of `persist_spark.decode.json`.

    The placeholder itself; base64 and hex of it, for bytes; arrays of texts, bytes, UUIDs and numbers (its bytes); the
    map of an hstore; a geometry. `placeholder` may be `hex:` and digits, as in Debezium.
    """
    data = bytes.fromhex(placeholder[4:]) if placeholder.startswith("hex:") else placeholder.encode()
    text = data.decode("utf-8", "replace")
    encoded = base64.b64encode(data).decode()
    signed = [byte - 256 if byte > 127 else byte for byte in data]
    documents = [
        [text],
        [encoded],
        [str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))],
        [f"{MARK}{byte}" for byte in signed],
        {text: text},
        *({"wkb": base64.b64encode(bytes.fromhex(place)).decode(), "srid": f"{MARK}4326"} for place in _PLACES),
    ]
    plain = [text, encoded, base64.urlsafe_b64encode(data).decode(), data.hex(), data.hex().upper()]
    compact = functools.partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
    return list(dict.fromkeys([*plain, *map(compact, documents)]))


def unsent(config: CollectionConfig, fields: Sequence[Field], paths: Mapping[str, Path]) -> dict[str, SparkColumn]:
    """`RawRecords.unsent`. `paths`: of each field, within the row, whose fields are in `ROW_FIELDS` if they matter."""
    source, found = config.source, dict[str, SparkColumn]()
    for field in fields:
        conditions = []
        if source.format == "debezium-json" and field.column.type in UNAVAILABLE_TYPES:
            conditions.append(F.col(field.raw).isin(unavailable_texts(source.unavailable_value)))
        if source.missing_field == "unchanged":
            conditions.append(is_absent(F.col(ROW_FIELDS), paths[field.raw]))
        if conditions:
            found[field.raw] = F.coalesce(functools.reduce(operator.or_, conditions), F.lit(False))
    return found


def is_sent(field: Field) -> SparkColumn:
    """True unless the record leaves out the field's value."""
    return ~F.col(field.unsent) if field.column.inherits else F.lit(True)


def inherited_column(schema: CollectionSchema, values: Sequence[Field], is_kept: SparkColumn) -> list[SparkColumn]:
    """`INHERITED` of a decoded record, if a column inherits. Columns are named by their places among the values."""
    found = {place: quoted(field.unsent) for place, field in enumerate(values) if field.column.inherits}
    if not found:
        return []
    entries = F.expr(entries_sql(schema, {place: (is_unsent, "NULL", "NULL") for place, is_unsent in found.items()}))
    is_partial = F.expr(" OR ".join(found.values()))
    return [F.when(is_kept & is_partial, entries).alias(INHERITED)]


def fields_in(text: SparkColumn) -> SparkColumn:
    """The fields of an object in JSON text, by name: their texts; a field that is null is there."""
    return F.from_json(text, _FIELDS, ANY_LENGTH)


def is_absent(fields: SparkColumn, path: Path) -> SparkColumn:
    """True if there is no field at `path`; false if it, or something on the way, is null."""
    name, rest = path[0], path[1:]
    absent = ~F.map_contains_key(fields, name)
    return absent | F.coalesce(is_absent(fields_in(_last(fields, name)), rest), F.lit(False)) if rest else absent


def _last(fields: SparkColumn, name: str) -> SparkColumn:
    """The text of a field: the last one of those with this name, as `persist_spark.decode.json` has it."""
    place = F.nullif(F.array_position(F.reverse(F.map_keys(fields)), name).cast("int"), F.lit(0))
    return F.element_at(F.map_values(fields), -place)
