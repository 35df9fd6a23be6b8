"""One collection, as its YAML file describes it: frozen, validated, with errors that name file, field and remedy.

    dags/collections/<name>.yaml --yaml_text--> plain data --the models here--> CollectionConfig --> CollectionSchema

A file has a long form (the models below) and shorthands for common settings: `key: id`, `columns: {id: bigint}`,
`order: position`, `order: [lsn, seq]`, `order: {mode: sequence, by: {lsn: bigint}}`, `time: path`,
`time: {field: ts_ms}`, `delete: none`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from persist_core.config import checks
from persist_core.config.files import load_folder, read_mapping
from persist_core.config.model import ConfigModel
from persist_core.config.path_pattern import PathPattern, parse_pattern
from persist_core.config.problems import explain, nearest, refuse, show
from persist_core.config.shard import ShardConfig
from persist_core.errors import ConfigError
from persist_core.schema import MAX_COLUMNS, CollectionSchema, Column

Format = Literal["debezium-json", "dms-csv", "dms-parquet", "dms-json", "json", "csv", "parquet"]
Unit = Literal["s", "ms", "us", "ns", "days"]

PLAIN_FORMATS = ("json", "csv", "parquet")  # formats that do not mark deletes
PATH_FIELDS = ("path", "moved_from", "replaces")  # fields of `source` in which `${VAR}` is expanded
NEVER_KEYS = ("float", "double", "json")
NEVER_ORDERS = (*NEVER_KEYS, "boolean")
DEFAULT_KEEP_DELETED = "30 days"
AUTO_ORDERS = {  # what `order: auto` is in each format, most significant first, before the position
    "debezium-json": (
        Column("commit_lsn", "string"),
        Column("change_lsn", "string"),
        Column("event_serial_no", "bigint"),
        Column("lsn_or_file", "bigint"),
        Column("pos", "bigint"),
        Column("binlog_row", "bigint"),
    ),
    "dms-csv": (Column("is_change", "int"),),
    "dms-parquet": (Column("is_change", "int"),),
    "dms-json": (Column("timestamp", "timestamp"),),
}


class SourceConfig(ConfigModel):
    """Where records come from.

    `path` is a glob. It may contain one `{date:%Y-%m-%d}` (any strftime pattern of year/month/day/hour), which is the
    date of its files in UTC: a file dated at or after the run's upper is not yet due. `moved_from` and `replaces` name
    folders that `path` started at before: `moved_from` if the same files were moved, `replaces` if these are other
    files. `decimals` defines the quoted numbers in Debezium messages without a schema (`precise`: base64 of the
    unscaled integer, `string`: its digits), `binary` how text formats write bytes. If they are not set, a value that
    can be read in two ways is an err.
    """

    path: str
    moved_from: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    format: Format
    decimals: Literal["precise", "string"] | None = None
    binary: Literal["base64", "hex"] | None = None
    delimiter: str = ","
    header: bool = True

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        return checks.source_path(path)

    @field_validator("moved_from", "replaces", mode="before")
    @classmethod
    def _folder_shorthand(cls, data: Any) -> Any:
        return [data] if isinstance(data, str) else data

    @field_validator("moved_from", "replaces")
    @classmethod
    def _check_folders(cls, folders: tuple[str, ...]) -> tuple[str, ...]:
        checks.distinct(folders, at=[])
        return tuple(checks.source_folder(folder) for folder in folders)

    @model_validator(mode="after")
    def _check_one_reason(self) -> SourceConfig:
        both = next((folder for folder in self.moved_from if folder in self.replaces), None)
        if both is not None:
            raise refuse(both, "each folder in moved_from or in replaces", "remove one of the two", at=["replaces"])
        return self

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, delimiter: str) -> str:
        if len(delimiter) != 1 or delimiter in '\r\n"\\':
            raise refuse(
                delimiter, "one character other than a quote, backslash or line end", 'write ",", ";" or "\\t"'
            )
        return delimiter


class ColumnConfig(ConfigModel):
    """One column: its type, where its value is found in the record (default: under its name), its integer unit."""

    type: str
    field: str | None = None
    unit: Unit | None = None
    nullable: bool = True

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, data: Any) -> Any:
        return {"type": data} if isinstance(data, str) else data

    @field_validator("type")
    @classmethod
    def _check_type(cls, name: str) -> str:
        return checks.type_name(name)

    @field_validator("field")
    @classmethod
    def _check_field(cls, name: str | None) -> str | None:
        return None if name is None else checks.field_name(name)

    @model_validator(mode="after")
    def _check_unit(self) -> ColumnConfig:
        if self.unit is not None and self.type not in ("date", "timestamp"):
            raise refuse(self.unit, f"a unit only with date or timestamp, not {self.type}", "remove it", at=["unit"])
        return self


class OrderConfig(ConfigModel):
    """What orders the records of a key, and across which records.

    `by` in a file: `position` (file and row), `auto` (the format's own: LSN, binlog), a list of fields, or a mapping of
    fields to types. `mode`: `log`, the last batch wins and the order decides within one time; or `sequence`, the
    highest order ever seen for a key wins, deletes included. `types` gives the types of fields that are not columns, in
    `sequence` mode only. `keep_deleted`: how long the order of a deleted key is kept after its time.
    """

    by: Literal["auto", "position", "fields"] = "auto"
    fields: tuple[str, ...] = ()
    types: dict[str, ColumnConfig] = {}  # noqa: RUF012 - pydantic copies defaults
    mode: Literal["log", "sequence"] = "log"
    keep_deleted: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, data: Any) -> Any:
        if isinstance(data, list | tuple):
            data = {"by": data}
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
            remedy = nearest(word, known) or f"for a field write {'by' if at else 'order'}: [{show(word)}]"
            raise refuse(word, "auto, position or a list of fields", remedy, at=at)

    @field_validator("keep_deleted", mode="before")
    @classmethod
    def _check_keep_deleted(cls, text: object) -> str | None:
        return None if text is None else checks.history(text, field="keep_deleted")

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
    def _check_mode(self) -> OrderConfig:
        if self.mode == "log":
            for name, value in (("types", self.types or None), ("keep_deleted", self.keep_deleted)):
                if value is not None:
                    where = "by" if name == "types" else name
                    expected = "fields without types" if name == "types" else "no such field"
                    raise refuse(value, f"{expected} in log order", "remove it, or write mode: sequence", at=[where])
        unknown = next((name for name in self.types if name not in self.fields), None)
        if unknown is not None:
            raise refuse(unknown, "a type for one of the fields", "remove it", at=["types", unknown])
        return self

    @property
    def keep_deleted_ms(self) -> int | None:
        """How long the order of a deleted key is kept, in ms; `None`: for ever. Only for `sequence` mode."""
        return checks.history_ms(self.keep_deleted or DEFAULT_KEEP_DELETED)


class TimeConfig(ConfigModel):
    """Where a record's time comes from. `late`: what happens to a time before the batch's lower."""

    source: Literal["description", "path", "field"] = "description"
    field: str | None = None
    unit: Unit = "ms"
    late: Literal["lift", "error"] = "lift"

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, data: Any) -> Any:
        if isinstance(data, str):
            known = ("description", "path", "field")
            if data not in known:
                remedy = nearest(data, known) or f"for a field write time: {{field: {show(data)}}}"
                raise refuse(data, "description, path or a mapping with a field", remedy)
            return {"source": data}
        if isinstance(data, Mapping) and data.get("field") is not None and "source" not in data:
            return {**data, "source": "field"}
        return data

    @model_validator(mode="after")
    def _check_field(self) -> TimeConfig:
        if self.source == "field" and self.field is None:
            raise refuse(None, "the field that holds the time", "write time: {field: ts_ms, unit: ms}", at=["field"])
        if self.source != "field" and self.field is not None:
            raise refuse(self.field, f"no field with source: {self.source}", "remove one of the two", at=["field"])
        if self.field is not None:
            checks.field_name(self.field, at=["field"])
        return self


class DeleteConfig(ConfigModel):
    """What marks a delete in plain formats: a column equal to one of `values`, or all value columns null.

    `never` (in a file: `delete: none`): the feed has no deletes.
    """

    column: str | None = None
    values: tuple[str, ...] = ()
    null_value: bool = False
    never: bool = False

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, data: Any) -> Any:
        if isinstance(data, str):
            if data != "none":
                raise refuse(data, "a mapping or none", "write delete: {column: op, values: [D]} or delete: none")
            return {"never": True}
        if isinstance(data, Mapping) and isinstance(data.get("values"), str | int | list | tuple):
            given = data["values"]
            items = list(given) if isinstance(given, list | tuple) else [given]
            return {**data, "values": [checks.scalar_text(item) for item in items]}
        return data

    @model_validator(mode="after")
    def _check_marker(self) -> DeleteConfig:
        if self.column is not None and not self.values:
            raise refuse(None, "the values that mark a delete", "for example values: [D]", at=["values"])
        if self.values and self.column is None:
            raise refuse(None, "the column that holds the values", "for example column: op", at=["column"])
        if self.column is not None:
            checks.field_name(self.column, at=["column"])
        if self.never and (self.null_value or self.column is not None):
            raise refuse("none", "either none or a marker", "remove one of the two", at=["never"])
        return self


class LimitsConfig(ConfigModel):
    """Bounds of one run. `None`: no bound."""

    max_errors: Annotated[int, Field(ge=0)] | None = 1000
    max_files: Annotated[int, Field(ge=1)] = 100_000
    max_bytes: Annotated[int, Field(ge=1)] | None = None


class CollectionConfig(ShardConfig):
    """A complete collection file. A relative `source.path` lies below `base_dir`."""

    source: SourceConfig
    key: tuple[str, ...]
    columns: dict[str, ColumnConfig]
    order: OrderConfig = OrderConfig()
    time: TimeConfig = TimeConfig()
    delete: DeleteConfig = DeleteConfig()
    end_of_input: Literal["keep_open", "close"] = "keep_open"
    limits: LimitsConfig = LimitsConfig()

    @field_validator("key", mode="before")
    @classmethod
    def _key_shorthand(cls, data: Any) -> Any:
        return [data] if isinstance(data, str) else data

    @field_validator("columns", mode="after")
    @classmethod
    def _check_columns(cls, columns: dict[str, ColumnConfig]) -> dict[str, ColumnConfig]:
        if not 1 <= len(columns) <= MAX_COLUMNS:
            raise refuse(len(columns), f"1 to {MAX_COLUMNS} columns", "list the key and value columns with their types")
        seen: dict[str, str] = {}
        for name in columns:
            checks.column_name(name, at=[name])
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise refuse(
                    name, f"each name once, ignoring case ({other!r} is a column too)", "rename one", at=[name]
                )
        return columns

    @model_validator(mode="after")
    def _check_together(self) -> CollectionConfig:
        if not self.key:
            raise refuse(None, "the columns that name a row", "for example key: id", at=["key"])
        checks.distinct(self.key, at=["key"])
        for index, name in enumerate(self.key):
            if name not in self.columns:
                remedy = nearest(name, self.columns) or "add it to columns with its type"
                raise refuse(name, "the name of a column", remedy, at=["key", index])
            if self.columns[name].type in NEVER_KEYS:
                type_name = self.columns[name].type
                raise refuse(name, f"a key column of another type: a {type_name} column cannot be a key",
                             "use another column or type", at=["key", index])  # fmt: skip
        if self.time.source == "path" and self.source_pattern().date_format is None:
            raise refuse(self.source.path, "a {date:...} in it, for time: path", "write date={date:%Y-%m-%d}/ in it",
                         at=["source", "path"])  # fmt: skip
        plain = self.source.format in PLAIN_FORMATS
        marked = self.delete.column is not None or self.delete.null_value
        if plain and not marked and not self.delete.never:
            raise refuse(None, f"a marker of deletes for {self.source.format}",
                         "write delete: {column: op, values: [D]}, delete: {null_value: true} or delete: none",
                         at=["delete"])  # fmt: skip
        if marked and not plain:
            raise refuse(self.delete.column, f"no marker: {self.source.format} marks its deletes",
                         "remove it", at=["delete"])  # fmt: skip
        if self.order.mode == "sequence":
            self._check_sequence()
        return self

    def _check_sequence(self) -> None:
        """In `sequence` order what orders a record is of a known type, and no record is too late for its time."""
        if self.time.late == "error":
            raise refuse("error", "lift, with sequence order: the order says what a late record changes",
                         "remove it, or write mode: log", at=["time", "late"])  # fmt: skip
        if self.order.by == "auto" and self.source.format not in AUTO_ORDERS:
            raise refuse("auto", f"fields or position: {self.source.format} has no order of its own",
                         "for example by: [version], or by: {lsn: bigint} for a field that is not a column",
                         at=["order", "by"])  # fmt: skip
        for index, name in enumerate(self.order.fields):
            column, typed = self.columns.get(name), self.order.types.get(name)
            if column is None and typed is None:
                remedy = nearest(name, self.columns) or f"write by: {{{name}: bigint}}, or add it to columns"
                raise refuse(name, "a column, or a field with its type", remedy, at=["order", "by", index])
            if column is not None and typed is not None and typed != column:
                raise refuse(typed.type, f"the type of column {name}, which is {column.type}",
                             "write the column's type, or rename the column", at=["order", "by", name])  # fmt: skip
            found = typed or column
            if found is not None and found.type in NEVER_ORDERS:
                raise refuse(found.type, "a type that has an order: not boolean, float, double or json",
                             "use another field or type", at=["order", "by", name])  # fmt: skip

    def order_fields(self) -> dict[str, ColumnConfig]:
        """In `sequence` order by fields: each field with its type, most significant first; else empty."""
        if self.order.mode == "log":
            return {}
        return {name: self.order.types.get(name) or self.columns[name] for name in self.order.fields}

    def order_columns(self) -> tuple[Column, ...] | None:
        """What orders the records across batches, before their position; `None` in `log` order."""
        if self.order.mode == "log":
            return None
        if self.order.by == "auto":
            return AUTO_ORDERS[self.source.format]
        return tuple(Column(name, column.type) for name, column in self.order_fields().items())

    def collection_schema(self) -> CollectionSchema:
        """Key columns in the order of `key`, never null; then the others in the order of the file."""
        return CollectionSchema(
            key=tuple(Column(name, self.columns[name].type, nullable=False) for name in self.key),
            values=tuple(
                Column(name, column.type, column.nullable)
                for name, column in self.columns.items()
                if name not in self.key
            ),
            order=self.order_columns(),
        )

    def source_pattern(self) -> PathPattern:
        """`source.path`, parsed, below `base_dir`."""
        return parse_pattern(self.source.path, self._base())

    def source_folder(self, path: str) -> str:
        """A folder of `source.moved_from` or `source.replaces`, as `source_pattern().root` would name it."""
        return parse_pattern(f"{path.rstrip('/')}/*", self._base()).root

    def _base(self) -> str:
        return str(Path(self.base_dir).absolute())


def load_collection(path: Path, base_dir: Path | None = None) -> CollectionConfig:
    """Parse and check one file. Its name without the suffix is the collection's, and the shard's.

    A relative `source.path` lies below `base_dir` (default: the file's folder; the file's own `base_dir:` lies below
    that in turn). Raises `ConfigError`: one line per mistake, with file, field, value found and value expected.
    """
    body = read_mapping(path, base_dir, first_fields="source:, key:, columns:")
    if isinstance(body.get("source"), dict):
        body["source"] = {name: _expanded(path, name, value) for name, value in body["source"].items()}
    try:
        return CollectionConfig.model_validate(body)
    except ValidationError as error:
        raise ConfigError(explain(error, CollectionConfig, str(path))) from None


def _expanded(file: Path, name: Any, value: Any) -> Any:
    """A field of `source:` with the environment's variables in it, if it holds paths."""
    if name not in PATH_FIELDS or not isinstance(value, str | list):
        return value
    texts = [value] if isinstance(value, str) else value
    try:
        expanded = [checks.expand_variables(text, os.environ) if isinstance(text, str) else text for text in texts]
    except PydanticCustomError as error:
        raise ConfigError(f"{file}: source.{name}: {error.message()}") from None
    return expanded[0] if isinstance(value, str) else expanded


def load_collections(folder: Path, *, only: str | None = None) -> tuple[list[CollectionConfig], list[ConfigError]]:
    """Every collection file in `folder`, by name, and an error for each invalid file. See `load_folder`."""
    return load_folder(folder, load_collection, what="collection", only=only)
