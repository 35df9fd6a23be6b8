"""The schema of a collection: key columns, value columns, and the columns this project adds to every part.

A part is a Parquet file with the user's columns under their own names, then the system columns below. Oks leave the
`_persist_err_*` columns null. Errs leave the value columns null, and the key columns too if the key could not be
decoded; then `_persist_err_key` is the raw key.

A column of a shard has an id, which is the field id of its Parquet column: names change, ids do not. A definition in a
file knows names only; `persist_core.contents.schema_versions` gives ids to its columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from persist_core.errors import InvalidName

RESERVED_PREFIX = "_persist_"
TIME = "_persist_time"  # int64, milliseconds
DIFF = "_persist_diff"  # int64
ENDED = "_persist_ended"  # int64, milliseconds: when a version in the history of a keyed shard ended
ERR_KIND = "_persist_err_kind"  # string
ERR_KEY = "_persist_err_key"  # binary, null if no key could be read
ERR_PAYLOAD = "_persist_err_payload"  # binary: the raw record
ERR_MESSAGE = "_persist_err_message"  # string, for users; never compared
ERR_POSITION = "_persist_err_position"  # string, for users: where its source has the record; never compared
ORDER = "_persist_order"  # struct, in `sequence` order: what orders a record, then its position in its source
BAD_KEY = "_persist_bad_key"  # binary, of records and operator state: the slot if the key columns are not known
OP = "_persist_op"  # string, of records and operator state: what the record does
INDEX_KIND = "_persist_index_kind"  # string: what a row of the order index says, one of the next five
DELETED = "deleted"  # a tombstone won; also of a slot that was never seen
RAISED = "raised"  # an update that changed nothing raised the order of a slot that has a value
IN_ROW = "in_row"  # the order is with the slot's row: what the index said of the slot before no longer holds
FLOOR = "floor"  # of no slot: the order of the greatest truncate
FORGOTTEN = "forgotten"  # of no slot: the greatest order of the tombstones that were dropped
BEATEN_BY = "_persist_beaten_by"  # struct, of late records: the order that was seen before
INHERITED = "_persist_inherited"
"""array of structs: the columns whose values a record did not carry, with what is known of each (`inherited_type`)"""
ACTED = "_persist_acted"  # int64, milliseconds, of late records: the time at which it would have changed something
MISSING_ORDER = "missing_order"  # the kind of an err made from a record that cannot be ordered, in `sequence` order
BAD_FILE = "file"  # the kind of an err made from a file that was not read
UNORDERED = (MISSING_ORDER, BAD_FILE)  # kinds of errs that are compared with no record that has an order
LATE_TIME = "late_time"  # the kind of an err made from a record before the batch's lower, if the collection asks for it
FIRST_SYSTEM_ID = 1 << 30
"""Field ids of system columns begin here; ids of a shard's own columns count up from 1. Parquet has signed 32-bit
numbers, of which some readers refuse the negative ones, and Apache Iceberg reserves the highest 200."""
SYSTEM_IDS = {
    name: FIRST_SYSTEM_ID + place
    for place, name in enumerate(  # ids are permanent: new columns go to the end
        (
            TIME,
            DIFF,
            ENDED,
            ERR_KIND,
            ERR_KEY,
            ERR_PAYLOAD,
            ERR_MESSAGE,
            ORDER,
            BAD_KEY,
            OP,
            INDEX_KIND,
            BEATEN_BY,
            ACTED,
            INHERITED,
            ERR_POSITION,
        )
    )
}
BY_DESCRIPTION = "description"  # a record has the time of its batch
ERR_KIND_SEPARATOR = "/"  # in a view's err, between an input's name and the kind of its err: `orders/value`

_FIELD_ID = "PARQUET:field_id"  # of a field's metadata in Arrow
_SYSTEM_TYPES = {
    **dict.fromkeys((TIME, DIFF, ENDED, ACTED), pa.int64()),
    **dict.fromkeys((ERR_KIND, ERR_MESSAGE, ERR_POSITION, OP, INDEX_KIND), pa.string()),
    **dict.fromkeys((ERR_KEY, ERR_PAYLOAD, BAD_KEY), pa.binary()),
}

Late = Literal["lift", "error", "persisted"]
"""How to handle a record before the batch's lower: lift it, make it an err, or (redelivered) drop and count it."""

MAX_COLUMNS = 2_000  # more is a mistake in the file; Spark's code generation falls back far earlier
MAX_NAME_CHARS = 255

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "json": pa.string(),
}
SIMPLE_TYPES = tuple(_SIMPLE)
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")


def decimal_of(type_name: str) -> tuple[int, int] | None:
    """`(precision, scale)` of `decimal(p,s)`, else `None`."""
    found = _DECIMAL.fullmatch(type_name)
    return (int(found[1]), int(found[2])) if found else None


def folded(name: str) -> str:
    """Equal for names that are one name to Spark: it ignores case as Java does, by characters (`s` is `\u017f`)."""
    lower = name.lower().replace("i\u0307", "i")
    return "".join(upper.lower() if len(upper := char.upper()) == 1 else char for char in lower)


def arrow_type(type_name: str) -> pa.DataType:
    """The Arrow type of one of `SIMPLE_TYPES` or `decimal(p,s)` with `1 <= p <= 38`, `0 <= s <= p`."""
    if type_name in _SIMPLE:
        return _SIMPLE[type_name]
    decimal = decimal_of(type_name)
    if decimal and 1 <= decimal[0] <= 38 and decimal[1] <= decimal[0]:
        return pa.decimal128(*decimal)
    raise InvalidName(f"unknown column type {type_name!r}; expected one of {', '.join(_SIMPLE)}, decimal(p,s)")


@dataclass(frozen=True)
class Column:
    """One column. `type` is one of `SIMPLE_TYPES` or `decimal(p,s)`; key columns are never null.

    `id` is permanent, from 1 on; `None` in a definition, which is equal to the shard's column of the same name.
    `inherits`: a record may leave out its value, which is then the one before (docs/semantics.md, section 4).
    `renamed_from`: in a definition, the name that the shard's column had.
    """

    name: str
    type: str
    nullable: bool = True
    id: int | None = field(default=None, compare=False)
    inherits: bool = False
    renamed_from: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        bad = not self.name or len(self.name) > MAX_NAME_CHARS or any(ord(c) < 32 or ord(c) == 127 for c in self.name)
        if bad:
            raise InvalidName(f"column name {self.name[:80]!r}: expected 1 to {MAX_NAME_CHARS} printable characters")
        if folded(self.name).startswith(RESERVED_PREFIX):
            raise InvalidName(f"column name {self.name!r}: names starting with {RESERVED_PREFIX!r} are reserved")
        if self.name.startswith("."):  # Arrow takes it for a path, and `.x` for another column, x
            raise InvalidName(f"column name {self.name!r}: a name cannot start with a dot")
        arrow_type(self.type)


@dataclass(frozen=True)
class CollectionSchema:
    """Key columns, then value columns. Without key columns the shard is a plain multiset (a view).

    `order`: what orders records across batches, most significant first, before their position; such a shard is in
    `sequence` order. `None`: it is in `log` order, where the batches themselves are the order.
    `position`: the fields of a record's position, as its source declares them. They are compared after all others.
    `beside`: what is stored with each order and decides nothing.

    `version` counts a shard's schemas from 1; 0 in a definition, whose columns have no ids.
    `dropped`: in a definition, columns that are really gone, whatever was added beside them.

    `timed_by` and `zone`: where the times of records come from, and how a time without an offset is read; `None`
    in a view, and if a program gives them.
    """

    key: tuple[Column, ...]
    values: tuple[Column, ...] = field(default=())
    order: tuple[Column, ...] | None = None
    version: int = field(default=0, compare=False)
    position: tuple[Column, ...] = ()
    beside: tuple[Column, ...] = ()
    dropped: tuple[str, ...] = field(default=(), compare=False)
    timed_by: str | None = None
    zone: str | None = None

    def __post_init__(self) -> None:
        names = [folded(column.name) for column in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidName(f"columns named twice (case does not count): {', '.join(twice)}")
        if len(names) > MAX_COLUMNS:
            raise InvalidName(f"{len(names)} columns; expected at most {MAX_COLUMNS}")
        floats = [column.name for column in self.key if column.type in ("float", "double", "json")]
        if floats:
            raise InvalidName(f"key column {floats[0]!r}: float, double and json columns cannot be keys")
        if any(column.nullable for column in self.key):
            raise InvalidName("key columns cannot be nullable")
        if self.order is not None and not self.key:
            raise InvalidName("a shard without a key has no order of records")

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.key + self.values

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.key)

    @property
    def inherits(self) -> bool:
        """True if a record may leave out the value of a column."""
        return any(column.inherits for column in self.values)

    @property
    def field_ids(self) -> dict[str, int | None]:
        """The field id of every column that a file of this schema may have, by name."""
        return {**{column.name: column.id for column in self.columns}, **SYSTEM_IDS}

    def arrow(self) -> pa.Schema:
        """The user's columns as an Arrow schema (`json` is a string with field metadata `persist.type=json`)."""
        return pa.schema(
            [
                pa.field(
                    column.name,
                    arrow_type(column.type),
                    nullable=column.nullable,
                    metadata=({"persist.type": "json"} if column.type == "json" else {})
                    | ({} if column.id is None else {_FIELD_ID: str(column.id)}),
                )
                for column in self.columns
            ]
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "key": [_column_json(c) for c in self.key],
            "values": [_column_json(c) for c in self.values],
            "order": None if self.order is None else [_column_json(c) for c in self.order],
            "version": self.version,
            "position": [_column_json(c) for c in self.position],
            "beside": [_column_json(c) for c in self.beside],
            "timed_by": self.timed_by,
            "zone": self.zone,
        }


def show_order(schema: CollectionSchema) -> str:
    """The order of a shard's records, for people: `log`, or `sequence (lsn: bigint, position)`."""
    if schema.order is None:
        return "log"
    return f"sequence ({', '.join(filter(None, (show_types(schema.order), 'position')))})"


def show_times(schema: CollectionSchema) -> str:
    """The times of a shard's records, for people: `time: path, timezone: UTC`."""
    return f"time: {schema.timed_by}, timezone: {schema.zone}"


def order_type(schema: CollectionSchema) -> pa.StructType:
    """The Arrow type of `ORDER`: `order_cells`."""
    return pa.struct([pa.field(name, arrow_type(column.type)) for name, column in order_cells(schema).items()])


def order_cells(schema: CollectionSchema) -> dict[str, Column]:
    """The fields of `ORDER`, as they are compared: `by0`, `by1`, ... for the columns of `schema.order`, then
    `schema.position`; and, with the next numbers, `schema.beside`."""
    order = schema.order or ()
    cells = {f"by{place}": column for place, column in enumerate(order)}
    cells |= {column.name: column for column in schema.position}
    return cells | {f"by{place}": column for place, column in enumerate(schema.beside, start=len(order))}


def inherited_type(schema: CollectionSchema) -> pa.ListType:
    """The Arrow type of `INHERITED`: of each column, by its id, the state of the value that the record did not carry.

    `known`: it was found, or (false) no value exists that could be kept; null: not looked for yet. `ord`, in `sequence`
    order: the order of the record that it came from, or of the delete or err that has ended it.
    """
    fields = [pa.field("id", pa.int32()), pa.field("known", pa.bool_())]
    return pa.list_(pa.struct([*fields, *([] if schema.order is None else [pa.field("ord", order_type(schema))])]))


def show_types(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in columns)


def _column_json(column: Column) -> dict[str, Any]:
    plain = {"name": column.name, "type": column.type, "nullable": column.nullable, "id": column.id}
    return {**plain, "inherits": True} if column.inherits else plain


def system_field(name: str, type_: pa.DataType | None = None) -> pa.Field:
    """The system column `name` in Arrow; `type_` only for the orders, which differ from shard to shard."""
    return pa.field(name, type_ or _SYSTEM_TYPES[name], metadata={_FIELD_ID: str(SYSTEM_IDS[name])})


def field_id(column: pa.Field) -> int | None:
    found = (column.metadata or {}).get(_FIELD_ID.encode())
    return None if found is None else int(found)
