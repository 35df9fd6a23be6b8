"""The fields of a feed that no column takes, and the columns whose field the feed does not have.

    names in CSV headers and Parquet schemas, of each file ─┐
    names in a bounded sample of JSON records ──────────────┴─> FeedFields ─> warnings about no row, or `FeedChanged`

CSV and Parquet say their fields before a record is read. JSON does not: there the first records of the oldest and of
the newest file of a run are looked at, so a rare field may be found by a later run. The same sample says whether the
changes are of one table, and whether deletes are marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from persist_core.config.collection import CollectionConfig
from persist_core.config.column import ColumnConfig
from persist_core.contents.stats import MAX_NAMES, BatchWarning
from persist_core.errors import FeedChanged
from persist_core.sample.files import DMS_OP, RawRow, SampledFile, payload_of, raw_rows, take, value_at
from persist_core.sample.guess import better
from persist_core.sources.feed import Feed
from persist_core.sources.input_file import InputFile

SAMPLED_RECORDS = 1_000
BEFORE = "BI_"  # before the name of a column, its value before an update; the prefix of DMS's manual
NEW = "fields that are not in `columns`"
MISSING = "columns whose field is missing"
TABLES = "records of several tables: equal keys overwrite each other, and a truncate of one deletes the rows of all"
UNMARKED = "unwrapped records lack the field that marks deletes, which are lost without it"
UNNAMED = "unwrapped records of MariaDB lack the field that names the connector: a snapshot may win over later changes"
_CONNECTORS = ("__connector", "__source_connector")
_GTID = re.compile(r"\d+-\d+-\d+", re.ASCII)  # MariaDB's


def named_fields(config: CollectionConfig) -> frozenset[str]:
    """The fields of a row, at its top, that something in the collection file names."""
    columns = {name: column.field for name, column in config.columns.items() if name != config.source.rest}
    paths = [field for field in columns.values() if field]
    if config.source.format != "debezium-json":  # there the paths of order and time start at the envelope
        paths += [config.order_name(name) for name in config.order.fields if name not in columns]
        paths += [name for name in (config.time.field, config.delete.column) if name and name not in columns]
    if "csv" not in config.source.format:  # there dots mean nesting
        paths = [path.partition(".")[0] for path in paths]
    names = (name for name, field in columns.items() if not field)
    marks = {DMS_OP} if config.source.format in ("dms-csv", "dms-parquet") else set()
    return frozenset({*marks, *config.source.ignored, *names, *paths})


def known_fields(config: CollectionConfig) -> frozenset[str]:
    """`named_fields`, and the fields in which DMS gives what these held before an update."""
    named = named_fields(config)
    return named | {f"{BEFORE}{name}" for name in named} if config.source.format.startswith("dms-") else named


def rows_of(config: CollectionConfig, files: Sequence[SampledFile]) -> list[RawRow]:
    """The raw records of a sample of the collection's files."""
    source, names = config.source, None
    if "csv" in source.format and not source.header:
        names = [column.field or name for name, column in config.columns.items()]
        names = [DMS_OP, *names] if source.format == "dms-csv" else names
    return raw_rows(files, source.format, delimiter=source.delimiter, names=names, null_value=source.null_value)


def hints_of(config: CollectionConfig, raw: Sequence[RawRow]) -> tuple[str, ...]:
    """Questions about columns whose values would fit another type better."""
    hints = []
    for name, column in config.columns.items():
        values = [value_at(each.row, _path(name, column)) for each in raw]
        in_schema, is_text = any(each.has_schema for each in raw), config.source.format.endswith("csv")
        hints.append(better(name, column, values, is_text=is_text, in_schema=in_schema))
    return tuple(hint for hint in hints if hint is not None)


@dataclass
class FeedFields:
    """The findings in one batch so far: names in the order in which they were seen."""

    config: CollectionConfig
    new: dict[str, None] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)
    tables: dict[str, None] = field(default_factory=dict)
    unmarked: dict[str, None] = field(default_factory=dict)
    unnamed: dict[str, None] = field(default_factory=dict)

    def see(
        self,
        names: Iterable[str],
        count: int,
        unreadable: Iterable[str] = (),
        has: Callable[[tuple[str, ...]], bool] | None = None,
    ) -> None:
        """Take in the names of all fields of `count` files; of the unreadable ones, `rest` has nothing.

        `has`: true if there is a field at a path; by default a path is one name.
        """
        if count:
            self._add_new(found := dict.fromkeys(names))
            has = has or (lambda path: ".".join(path) in found)
            known = named_fields(self.config)
            self.new.update(dict.fromkeys(name for name in unreadable if name not in known))
            gone = (name for name, path in self._paths() if not has(path))
            self.missing.update(dict.fromkeys(gone))

    def look_at(self, feed: Feed, files: Sequence[InputFile]) -> None:
        """Take in a sample of JSON records. A column is missing only if `missing_field: fail` asks for it."""
        if not self.config.source.format.endswith("json"):
            return
        rows = rows_of(self.config, take(feed, files, SAMPLED_RECORDS, self.config.source))
        self._add_new(dict.fromkeys(name for each in rows for name in each.row))
        if self.config.source.format != "json":
            tables = (_table(each) for each in rows if each.row)
            self.tables.update(dict.fromkeys(table for table in tables if table))
            flat = [each.row for each in rows if each.is_unwrapped]
            is_marked = any("__deleted" in row or row.get("__op") == "d" for row in flat)
            if flat and self.config.order.by != "position" and not is_marked:
                self.unmarked["__deleted"] = None
            lacking = (row for row in flat if not any(name in row for name in _CONNECTORS))
            if self.config.order.by == "auto" and any(_GTID.fullmatch(str(row.get("__gtid"))) for row in lacking):
                self.unnamed["__connector"] = None
        whole = [each for each in rows if _is_whole(each)]
        if whole and self.config.source.missing_field == "fail":
            gone = (name for name, path in self._paths() if not any(_has(each.row, path) for each in whole))
            self.missing.update(dict.fromkeys(gone))

    def warnings(self) -> tuple[BatchWarning, ...]:
        """The findings, for the run's report. Raises `FeedChanged` if the collection file says `fail` for one."""
        source, tables = self.config.source, self.tables if len(self.tables) > 1 else {}
        found = {
            NEW: self.new,
            MISSING: self._named_alike(),
            TABLES: tables,
            UNMARKED: self.unmarked,
            UNNAMED: self.unnamed,
        }
        fatal = {NEW: source.on_new_field == "fail", MISSING: source.missing_field == "fail"}
        warned = tuple(BatchWarning(name, 0, _shown([*names])) for name, names in found.items() if names)
        failed = [each.counted for each in warned if fatal.get(each.name)]
        if failed:
            raise FeedChanged(
                f"{self.config.name}: {'; '.join(failed)}. Nothing was committed. Write new fields into `columns`"
                f" (`persist columns {self.config.name}` proposes the lines), or into `ignored`; remove columns that"
                ' are gone; or write `on_new_field: ignore`, `missing_field: "null"`'
            )
        return warned

    def _named_alike(self) -> list[str]:
        """The missing columns, each with the new field that has its name but for case and blanks around it."""
        alike = {name.strip().casefold(): name for name in self.new}
        fields = {name: alike.get(".".join(path).strip().casefold()) for name, path in self._paths()}
        return [f"{name} (perhaps the field {fields[name]!r})" if fields[name] else name for name in self.missing]

    def _add_new(self, names: Iterable[str]) -> None:
        known = known_fields(self.config)
        hides = self.config.source.format == "debezium-json"  # unwrapped records: __op, __deleted, ...
        if self.config.source.rest is None:
            self.new.update((name, None) for name in names if name not in known and not (hides and name[:2] == "__"))

    def _paths(self) -> list[tuple[str, tuple[str, ...]]]:
        columns = self.config.columns.items()
        return [(name, _path(name, column)) for name, column in columns if name != self.config.source.rest]


def _path(name: str, column: ColumnConfig) -> tuple[str, ...]:
    return tuple(column.field.split(".")) if column.field else (name,)


def _is_whole(row: RawRow) -> bool:
    """True unless it is a delete, whose row may be the key alone."""
    payload = payload_of(row.message)
    return bool(row.row) and (row.is_unwrapped or "before" not in payload or bool(payload.get("after")))


def _table(row: RawRow) -> str:
    """The name of its table, as Debezium or DMS says it, or nothing."""
    source = payload_of(row.message).get("source")
    if row.is_unwrapped:
        names = [row.row.get(f"__{name}", row.row.get(f"__source_{name}")) for name in ("db", "schema", "table")]
    elif isinstance(source, Mapping):
        names = [source.get(name) for name in ("db", "schema", "table")]
    else:
        names = [value_at(row.message, ("metadata", name)) for name in ("schema-name", "table-name")]
    return ".".join(str(name) for name in names if name) if names[-1] else ""


def _has(row: Any, path: Sequence[str]) -> bool:
    above = value_at(row, path[:-1])
    return isinstance(above, dict) and path[-1] in above


def _shown(names: Sequence[str]) -> tuple[str, ...]:
    more = len(names) - MAX_NAMES
    return (*(name[:100] for name in names[:MAX_NAMES]), *([f"and {more} more"] if more > 0 else []))
