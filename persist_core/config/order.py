"""The order of a collection's records: the section `order:` of its file.

order: {mode: sequence, by: {lsn: bigint}} ──> what orders a record, with its type ──> CollectionSchema.order
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, Literal, get_args

from pydantic import field_validator, model_validator

from persist_core.config import checks
from persist_core.config.column import ColumnConfig
from persist_core.config.model import ConfigModel
from persist_core.config.problems import nearest, refuse, show
from persist_core.errors import InvalidTime
from persist_core.schema import Column
from persist_core.time_text import parse_time

NEVER_ORDERS = ("boolean", "float", "double", "json")
DEFAULT_KEEP_DELETED = "30 days"
Mode = Literal["log", "sequence"]
# In `order: auto` of Debezium: the rank of the run of numbers that the record belongs to, and what tells runs apart.
ERA, SERVER, SOURCE_MS, SEEN_MS = "era", "server", "source_ms", "seen_ms"
DOMAIN = "domain "  # before the number of a GTID domain of MariaDB, which does not name a server
ENVELOPE_OBJECTS = ("before", "after", "source")  # of Debezium
AUTO_ORDERS = {  # what `order: auto` is in each format, most significant first, before the position
    "debezium-json": (
        Column(ERA, "bigint"),
        Column("number", "bigint"),  # LSN, number of the binlog file, sequence of a MariaDB GTID, SCN, oplog second
        Column("pos", "bigint"),
        Column("lsn", "string"),  # of SQL Server and Db2; the redo record of Oracle
        Column("row", "bigint"),
    ),
    "dms-csv": (Column("change", "string"),),  # the name of its file; null, the least, in a full load
    "dms-parquet": (Column("change", "string"),),
    "dms-json": (Column("timestamp", "timestamp"),),
}


BESIDE = (Column(SERVER, "string"), Column(SOURCE_MS, "bigint"), Column(SEEN_MS, "bigint"))  # of Debezium's `auto`


class OrderConfig(ConfigModel):
    """The order of a key's records, and across which records it holds.

    `by` in a file: `position` (file and row), `auto` (the format's own: LSN, binlog), a list of fields, or a mapping of
    fields to types. `mode`: `log`, the last batch wins and the order decides within one time; or `sequence`, the
    highest order ever seen for a key wins, deletes included; `None` until the collection's format settles it
    (`settled`). `types` gives the types of fields that are not columns, in `sequence` mode only. `keep_deleted`: how
    long the order of a deleted key is kept after its time. `servers`: the servers (or MariaDB's GTID domains) that
    wrote the log, first to last; or `restarts`: the times at which its numbers started again.
    """

    by: Literal["auto", "position", "fields"] = "auto"
    fields: tuple[str, ...] = ()
    types: dict[str, ColumnConfig] = {}  # noqa: RUF012 - pydantic copies defaults
    mode: Mode | None = None
    keep_deleted: str | None = None
    servers: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, data: Any) -> Any:
        if isinstance(data, list | tuple):
            data = {"by": data}
        if data in get_args(Mode):
            return {"mode": data}
        if isinstance(data, str):
            cls._check_word(data, at=[])
            return {"by": data}
        if not isinstance(data, Mapping):
            return data
        by = data.get("by")
        if isinstance(by, list | tuple) and "fields" not in data:
            return {**data, "by": "fields", "fields": by}
        if isinstance(by, Mapping) and "fields" not in data and "types" not in data:
            return {**data, "by": "fields", "fields": list(by), "types": dict(by)}
        if isinstance(by, str):
            cls._check_word(by, at=["by"])
        return {**data, "by": "fields"} if "fields" in data and "by" not in data else data

    @staticmethod
    def _check_word(word: str, *, at: list[str | int]) -> None:
        known = ("auto", "position", "fields")
        if word not in known:
            words = known if at else (*known, *get_args(Mode))
            remedy = nearest(word, words) or f"for a field write {'by' if at else 'order'}: [{show(word)}]"
            raise refuse(word, f"{', '.join(w for w in words if w != 'fields')} or a list of fields", remedy, at=at)

    @field_validator("keep_deleted", mode="before")
    @classmethod
    def _check_keep_deleted(cls, text: object) -> str | None:
        return None if text is None else checks.history(text, field="keep_deleted")

    @field_validator("servers", mode="before")
    @classmethod
    def _server_texts(cls, data: Any) -> Any:
        if not isinstance(data, list | tuple):
            raise refuse(data, "a list of servers, first to last", "for example servers: [184, 185]")
        return [checks.scalar_text(item) for item in data]

    @model_validator(mode="after")
    def _check_fields(self) -> OrderConfig:
        if self.by == "fields" and not self.fields:
            raise refuse(None, "the fields that order the records", "write order: [lsn, seq]", at=["fields"])
        if self.by != "fields" and self.fields:
            raise refuse(self.by, "by: fields if fields are given", "remove one of the two", at=["by"])
        checks.distinct(self.fields, at=["fields"])
        for name in self.fields:
            checks.field_name(name, at=["fields"])
        return self

    @model_validator(mode="after")
    def _check_eras(self) -> OrderConfig:
        checks.distinct(self.servers, at=["servers"])
        if self.servers and self.restarts:
            raise refuse(list(self.restarts), "either servers or restarts", "remove one of the two", at=["restarts"])
        unknown = next((name for name in self.types if name not in self.fields), None)
        if unknown is not None:
            raise refuse(unknown, "a type for one of the fields", "remove it", at=["types", unknown])
        return self

    def settled(self, format: str) -> OrderConfig:
        """This order with its mode: `sequence` if each record of `format` has an order, or fields are named.

        Raises if it has settings of another mode or format.
        """
        if self.by == "auto" and format not in AUTO_ORDERS and self.mode is None and "by" in self.model_fields_set:
            raise refuse("auto", f"position, or a list of fields: {format} has no order of its own", "remove it")
        is_ordered = self.by == "fields" or (self.by == "auto" and format in AUTO_ORDERS)
        order = self.model_copy(update={"mode": self.mode or ("sequence" if is_ordered else "log")})
        if order.mode == "log":
            for name, value in (("types", order.types or None), ("keep_deleted", order.keep_deleted)):
                if value is not None:
                    where = "by" if name == "types" else name
                    expected = "fields without types" if name == "types" else "no such field"
                    raise refuse(value, f"{expected} in log order", "remove it, or write mode: sequence", at=[where])
        if (order.servers or order.restarts) and not has_eras(order, format):
            name = "servers" if order.servers else "restarts"
            expected = "no such field: only order: auto of debezium-json has it"
            raise refuse(list(order.servers or order.restarts), expected, "remove it", at=[name])
        return order

    def restarts_ms(self, zone: str) -> tuple[int, ...]:
        """`restarts` in ms since 1970; `zone` is the collection's."""
        return tuple(parse_time(text, zone=zone) for text in self.restarts)

    @property
    def keep_deleted_ms(self) -> int | None:
        """The time that the order of a deleted key is kept, in ms; `None`: without limit. Only for `sequence` mode."""
        return checks.history_ms(self.keep_deleted or DEFAULT_KEEP_DELETED)


def order_fields(order: OrderConfig, columns: Mapping[str, ColumnConfig]) -> dict[str, ColumnConfig]:
    """Each field of a `sequence` order by fields with its type, most significant first; empty for other orders."""
    if order.mode == "log":
        return {}
    return {name: columns.get(name) or order.types[name] for name in order.fields}


def order_columns(order: OrderConfig, columns: Mapping[str, ColumnConfig], format: str) -> tuple[Column, ...] | None:
    """The columns that order records across batches, before their position; `None` in `log` order."""
    if order.mode == "log":
        return None
    if order.by == "auto":
        return AUTO_ORDERS[format]
    return tuple(Column(name, column.type) for name, column in order_fields(order, columns).items())


def has_eras(order: OrderConfig, format: str) -> bool:
    """True if the numbers of orders can start again, so that `BESIDE` is stored with them."""
    return order.by == "auto" and format == "debezium-json"


def check_order(order: OrderConfig, columns: Mapping[str, ColumnConfig], format: str, zone: str) -> None:
    """Refuse a wrong restart, and, in `sequence` order, a wrong field."""
    _check_restarts(order, zone)
    if order.mode == "sequence":
        _check_sequence(order, columns, format)


def check_paths(
    order: OrderConfig, path_of: Callable[[str], str], time: str | None, columns: Container[str], rest: str | None
) -> None:
    """Refuse a path of Debezium's `order` or `time` that leads to no value. They start at the envelope, or are names of
    columns, which may be called as its parts."""
    if time is not None and time == rest:
        raise refuse(time, "the place of one value: source.rest holds all fields without a column",
                     "for example source.ts_ms", at=["time", "field"])  # fmt: skip
    places: dict[tuple[str | int, ...], str] = {
        ("order", "by", name if name in order.types else index): path_of(name)
        for index, name in enumerate(order.fields)
    }
    for at, path in (places | ({("time", "field"): time} if time else {})).items():
        first, _, inner = path.partition(".")
        if path in columns:
            continue
        if first in ("schema", "payload"):
            remedy = f"write {inner}" if inner and first == "payload" else "for example source.ts_ms"
            raise refuse(path, f"a path within the envelope, without {first}", remedy, at=at)
        if first in ENVELOPE_OBJECTS and not inner:
            raise refuse(path, "a field of this object", f"for example {path}.ts_ms", at=at)


def _check_restarts(order: OrderConfig, zone: str) -> None:
    """Refuse a restart that is not a time, or that the clocks of `zone` (the collection's) skip or repeat."""
    for index, text in enumerate(order.restarts):
        try:
            parse_time(text, zone=zone)
        except InvalidTime as error:
            raise refuse(text, "a time at which the numbers of the log started again",
                         "for example 2026-03-01T10:00:00Z", at=["order", "restarts", index]) from error  # fmt: skip


def _check_sequence(order: OrderConfig, columns: Mapping[str, ColumnConfig], format: str) -> None:
    """Refuse a `sequence` order whose fields have no type that orders them."""
    if order.by == "auto" and format not in AUTO_ORDERS:
        raise refuse("auto", f"fields or position: {format} has no order of its own",
                     "for example by: [version], or by: {lsn: bigint} for a field that is not a column",
                     at=["order", "by"])  # fmt: skip
    for index, name in enumerate(order.fields):
        column, typed = columns.get(name), order.types.get(name)
        if column is None and typed is None:
            remedy = nearest(name, columns) or f"write by: {{{name}: bigint}}, or add it to columns"
            raise refuse(name, "a column, or a field with its type", remedy, at=["order", "by", index])
        if column and typed and (typed.type, typed.unit or column.unit) != (column.type, column.unit):
            raise refuse(typed.type, f"the type of column {name}, which is {column.type}",
                         "write the column's type, or rename the column", at=["order", "by", name])  # fmt: skip
        found = column or typed
        if found is not None and found.type in NEVER_ORDERS:
            raise refuse(found.type, "a type that has an order: not boolean, float, double or json",
                         "use another field or type", at=["order", "by", name])  # fmt: skip
