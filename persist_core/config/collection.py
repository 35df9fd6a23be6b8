"""One collection, as its YAML file describes it: frozen, validated, with errors that name file, field and remedy.

    dags/collections/<name>.yaml --yaml_text--> plain data --the models here--> CollectionConfig --> CollectionSchema

A file has a long form (the models below) and shorthands for common settings: `key: id`, `columns: {id: bigint}`,
`order: position`, `order: [lsn, seq]`, `order: {mode: sequence, by: {lsn: bigint}}`, `time: path`,
`time: {field: ts_ms}`, `delete: none`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from persist_core.config import checks
from persist_core.config.column import Binary, ColumnConfig, Decimals, Unit
from persist_core.config.files import Loaded, expanded, load_folder, read_mapping
from persist_core.config.groups import GroupName
from persist_core.config.limits import LimitsConfig
from persist_core.config.model import ConfigModel, FieldName, Flag, Names
from persist_core.config.order import BESIDE, OrderConfig, check_order, check_paths, has_eras, order_columns
from persist_core.config.path_pattern import S3, PathPattern, parse_pattern
from persist_core.config.problems import nearest, refuse, show, validated
from persist_core.config.row_checks import CheckConfig, check_names, parsed_checks
from persist_core.config.shard import ShardConfig
from persist_core.errors import ConfigError
from persist_core.schema import MAX_COLUMNS, CollectionSchema, Column, folded

Format = Literal["debezium-json", "dms-csv", "dms-parquet", "dms-json", "json", "csv", "parquet"]

PLAIN_FORMATS = ("json", "csv", "parquet")  # formats that do not mark deletes
# Fields of `source` that only formats with this end have.
ONLY_IN = {"debezium-json": ("decimals", "unavailable_value"), "csv": ("delimiter", "header", "null_value")}
PATH_FIELDS = ("path", "moved_from", "replaces")  # fields of `source` in which `${VAR}` is expanded
UNAVAILABLE_VALUE = "__debezium_unavailable_value"
UNAVAILABLE_TYPES = ("string", "json", "binary")  # of columns that may hold what Debezium calls unavailable
NEVER_KEYS = ("float", "double", "json")
DEFAULT_LOOK_BACK = "7 days"
FILES = "files"  # the name and the type of a collection's one source
FILE_POSITION = (Column("file", "string"), Column("block", "bigint"), Column("row", "bigint"))


def _folders(names: tuple[str, ...]) -> tuple[str, ...]:
    checks.distinct(names, at=[])
    return tuple(map(checks.source_folder, names))


Folders = Annotated[Names, AfterValidator(_folders)]


class SourceConfig(ConfigModel):
    """The place and the format of the records.

    `path` is a glob. It may contain one `{date:%Y-%m-%d}` (any strftime pattern of year/month/day/hour), which is the
    date of its files in the collection's `timezone`: a file dated at or after the run's upper is not yet due.
    `moved_from` and `replaces` name folders that `path` started at before: `moved_from` if the same files were moved,
    `replaces` if these are other files. On S3, `connection` names the credentials and the endpoint (default: the
    location's), `look_back` is how far before the shard's upper a listing looks for dated files (once a day all are
    listed), and `requester_pays` accepts the costs of a bucket whose owner does not pay. `decimals` defines the quoted
    numbers in Debezium messages without a schema (`precise`: base64 of the unscaled integer, `string`: its digits),
    `binary` how text formats write bytes. If they are not set, a value that can be read in two ways is an err.
    `missing_field` defines a column's field that a JSON record does not have: null, or (`unchanged`) the value that the
    row has; `fail`: null, and a run stops if no record that it looks at, or a file by its header or schema, has it.
    `on_new_field`: a field that the collection file does not name is shown in the run's report (`ignore`), or stops the
    run (`fail`); fields in `ignored` are known. `rest` names a `json` column that keeps all of these fields.
    `unavailable_value` is Debezium's `unavailable.value.placeholder`. `on_bad_file`: a file that
    cannot be read as its format is set aside as an err of kind `file` (`quarantine`), or stops the run (`fail`).
    `null_value` is the text that a CSV file has for null (default: of DMS NULL, else none), beside an empty field.
    """

    path: Annotated[str, AfterValidator(checks.source_path)]
    moved_from: Folders = ()
    replaces: Folders = ()
    connection: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=250)] | None = None
    look_back: Annotated[str, BeforeValidator(partial(checks.history, field="look_back"))] | None = None
    requester_pays: Flag = False
    format: Format
    decimals: Decimals | None = None
    binary: Binary | None = None
    missing_field: Literal["null", "unchanged", "fail"] = "null"
    on_new_field: Literal["ignore", "fail"] = "ignore"
    ignored: Names = ()
    rest: str | None = None
    on_bad_file: Literal["quarantine", "fail"] = "quarantine"
    unavailable_value: Annotated[str, AfterValidator(checks.placeholder)] = UNAVAILABLE_VALUE
    delimiter: str = ","
    header: Flag = True
    null_value: str | None = None

    @model_validator(mode="after")
    def _check_one_reason(self) -> SourceConfig:
        both = next((folder for folder in self.moved_from if folder in self.replaces), None)
        if both is not None:
            raise refuse(both, "each folder in moved_from or in replaces", "remove one of the two", at=["replaces"])
        return self

    @model_validator(mode="after")
    def _check_only_on_s3(self) -> SourceConfig:
        given = {"connection": self.connection, "look_back": self.look_back, "requester_pays": self.requester_pays}
        name = next((name for name, value in given.items() if value), None)
        if name is not None and not self.is_on_s3:
            raise refuse(given[name], "no such field for files in a folder", "remove it, or give an s3:// path",
                         at=[name])  # fmt: skip
        if self.look_back is not None and parse_pattern(self.path, "/").date_format is None:
            raise refuse(self.look_back, "no such field for a path without {date:...}", "remove it", at=["look_back"])
        return self

    @model_validator(mode="after")
    def _check_one_place_for_fields(self) -> SourceConfig:
        if self.rest is not None and (self.on_new_field == "fail" or self.missing_field == "unchanged"):
            name = "on_new_field" if self.on_new_field == "fail" else "missing_field"
            raise refuse(self.rest, f"no rest with {name}: {getattr(self, name)}", "remove one of the two", at=["rest"])
        return self

    @model_validator(mode="after")
    def _check_format(self) -> SourceConfig:
        for end, name in ((end, name) for end, names in ONLY_IN.items() for name in names):
            found = getattr(self, name)
            if found != SourceConfig.model_fields[name].default and not self.format.endswith(end):
                raise refuse(found, f"no such field for {self.format}", "remove it", at=[name])
        return self

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, delimiter: str) -> str:
        if len(delimiter) != 1 or delimiter in '\r\n"\\':
            raise refuse(
                delimiter, "one character other than a quote, backslash or line end", 'write ",", ";" or "\\t"'
            )
        return delimiter

    @property
    def is_on_s3(self) -> bool:
        return self.path.startswith(S3)

    @property
    def look_back_ms(self) -> int | None:
        """The time that a listing looks back for dated files, in ms; `None`: always at all of them."""
        return checks.history_ms(self.look_back or DEFAULT_LOOK_BACK)

    @property
    def type(self) -> str:
        """The source's type, as progress names it."""
        return FILES

    @property
    def position(self) -> tuple[Column, ...]:
        """The fields of a record's position: see `persist_core.sources.files`, 5."""
        return FILE_POSITION


class TimeConfig(ConfigModel):
    """The source of a record's time. `late`: what happens to a time before the batch's lower."""

    source: Literal["description", "path", "field"] = "description"
    field: FieldName | None = None
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

    def __str__(self) -> str:
        return self.source if self.field is None else f"{{field: {self.field}, unit: {self.unit}}}"

    @model_validator(mode="after")
    def _check_field(self) -> TimeConfig:
        if self.source == "field" and self.field is None:
            raise refuse(None, "the field that holds the time", "write time: {field: ts_ms, unit: ms}", at=["field"])
        if self.source != "field" and self.field is not None:
            raise refuse(self.field, f"no field with source: {self.source}", "remove one of the two", at=["field"])
        if self.source != "field" and self.unit != "ms":
            raise refuse(self.unit, f"no unit with source: {self.source}", "remove it", at=["unit"])
        if self.source == "description" and self.late == "error":
            raise refuse("error", "lift: times that a run gives are never late", "remove it", at=["late"])
        return self


class DeleteConfig(ConfigModel):
    """The mark of a delete in plain formats: a column equal to one of `values`, or all value columns null.

    `never` (in a file: `delete: none`): the feed has no deletes.
    """

    column: FieldName | None = None
    values: tuple[str, ...] = ()
    null_value: Flag = False
    never: Flag = False

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
        if self.never and (self.null_value or self.column is not None):
            raise refuse("none", "either none or a marker", "remove one of the two", at=["never"])
        return self


class CollectionConfig(ShardConfig):
    """A complete collection file. A relative `source.path` lies below `base_dir`."""

    input_noun = "files"

    source: SourceConfig
    key: Names
    columns: dict[str, ColumnConfig]
    order: OrderConfig = Field(default=OrderConfig(), validate_default=True)
    time: TimeConfig = TimeConfig()
    delete: DeleteConfig = DeleteConfig()
    checks: Annotated[dict[str, CheckConfig], AfterValidator(check_names)] = {}  # noqa: RUF012 - pydantic copies defaults
    end_of_input: Literal["keep_open", "close"] = "keep_open"
    group: GroupName | None = None
    limits: LimitsConfig = LimitsConfig()

    @field_validator("order")
    @classmethod
    def _settle_order(cls, order: OrderConfig, info: ValidationInfo) -> OrderConfig:
        source = info.data.get("source")  # absent if it is wrong itself
        return order if source is None else order.settled(source.format)

    @field_validator("columns", mode="after")
    @classmethod
    def _check_columns(cls, columns: dict[str, ColumnConfig]) -> dict[str, ColumnConfig]:
        if not 1 <= len(columns) <= MAX_COLUMNS:
            raise refuse(len(columns), f"1 to {MAX_COLUMNS} columns", "list the key and value columns with their types")
        seen: dict[str, str] = {}
        for name in columns:
            checks.column_name(name, at=[name])
            other = seen.setdefault(folded(name), name)
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
        back = next((name for name in self.dropped if name in self.columns), None)
        if back is not None:
            raise refuse(back, "a column that is gone", "remove it: a column of this name is a new one", at=["dropped"])
        rest, plain_json = self.source.rest, ColumnConfig(type="json")
        own = self.columns.get(rest or "", plain_json).model_copy(update={"renamed_from": None})
        if rest is not None and (rest not in self.columns or own != plain_json):
            raise refuse(rest, "the name of a column of type json, without other settings",
                         f"write {rest}: json in columns", at=["source", "rest"])  # fmt: skip
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
        if self.source.missing_field == "unchanged" and not self.source.format.endswith("json"):
            raise refuse(self.source.missing_field, f"null: a record of {self.source.format} has all fields",
                         "remove it", at=["source", "missing_field"])  # fmt: skip
        if self.delete != DeleteConfig() and not plain:
            found = "none" if self.delete.never else self.delete.column or "null_value"
            raise refuse(found, f"no marker: {self.source.format} marks its deletes",
                         "remove it", at=["delete"])  # fmt: skip
        for name, column in self.columns.items():
            if column.on_error == "null" and (name in self.key or not column.nullable):
                raise refuse("null", "err for a column that needs a value", "remove it",
                             at=["columns", name, "on_error"])  # fmt: skip
            if column.decimals is not None and self.source.format != "debezium-json":
                raise refuse(column.decimals, f"no decimals: {self.source.format} writes numbers as digits",
                             "remove it", at=["columns", name, "decimals"])  # fmt: skip
        if self.source.format == "debezium-json":
            check_paths(self.order, self.order_name, self.time.field, self.columns, rest)
        check_order(self.order, self.columns, self.source.format, self.timezone)
        if self.order.mode == "sequence" and self.time.late == "error":
            raise refuse("error", "lift, with sequence order: the order says what a late record changes",
                         "remove it, or write mode: log", at=["time", "late"])  # fmt: skip
        return self

    @property
    def source_type(self) -> str:
        return self.source.type

    @property
    def stays_open(self) -> bool:
        """True unless it says `end_of_input: close`."""
        return self.end_of_input != "close"

    @property
    def input_uris(self) -> tuple[str, ...]:
        return (self.source.path,)

    def default_until(self, now_ms: int) -> int:
        """Now, or the start of the period that paths are dated by: the files of a day are read when it is over."""
        return self.source_pattern().period_start(now_ms) if self.time.source == "path" else now_ms

    def collection_schema(self) -> CollectionSchema:
        """Key columns in the order of `key`, never null; then the others in the order of the file."""
        order = order_columns(self.order, self.columns, self.source.format)
        columns = {
            name: Column(name, each.type, each.nullable, inherits=self._inherits(each), renamed_from=each.renamed_from)
            for name, each in self.columns.items()
        }
        return CollectionSchema(
            key=tuple(replace(columns[name], nullable=False, inherits=False) for name in self.key),
            values=tuple(column for name, column in columns.items() if name not in self.key),
            order=order,
            position=self.source.position,
            beside=BESIDE if order is not None and has_eras(self.order, self.source.format) else (),
            dropped=self.dropped,
            timed_by=str(self.time),
            zone=self.timezone,
        )

    def _inherits(self, column: ColumnConfig) -> bool:
        is_debezium = self.source.format == "debezium-json"
        return self.source.missing_field == "unchanged" or (is_debezium and column.type in UNAVAILABLE_TYPES)

    def order_name(self, name: str) -> str:
        """The place of a field of the order that is not a column: its `field`, else its own name."""
        given = self.order.types.get(name)
        return given.field or name if given and name not in self.columns else name

    def source_pattern(self) -> PathPattern:
        """`source.path`, parsed, below `base_dir`."""
        return parse_pattern(self.source.path, self._base(), zone=self.timezone)

    def source_folder(self, path: str) -> str:
        """A folder of `source.moved_from` or `source.replaces`, as `source_pattern().root` would name it."""
        return parse_pattern(f"{path.rstrip('/')}/*", self._base()).root

    def _base(self) -> str:
        return str(Path(self.base_dir).absolute())


def load_collection(path: str | Path) -> CollectionConfig:
    """Parse and check one file. Its name without the suffix is the collection's, and the shard's.

    A relative `source.path` lies below the file's folder, or below `base_dir:` there. Raises `ConfigError`: one line
    per mistake, with file, field, value found and value expected.
    """
    path = Path(path)
    body = read_mapping(path, first_fields="source:, key:, columns:")
    if "source" not in body and not body.keys().isdisjoint(("query", "function")):
        raise ConfigError(f"{path}: the file: found a view, expected a collection; move it to views/")
    source = body.get("source")
    if isinstance(source, dict):
        source |= {name: expanded(path, f"source.{name}", source[name]) for name in PATH_FIELDS if name in source}
    config = validated(CollectionConfig, body, path)
    inheriting = {column.name for column in config.collection_schema().values if column.inherits}
    return config.model_copy(update={"checks": parsed_checks(path, config.checks, tuple(config.columns), inheriting)})


def load_collections(folder: Path, *, only: str | None = None, group: str | None = None) -> Loaded[CollectionConfig]:
    """Every collection file in `folder`, by name, and an error for each invalid file. See `load_folder`."""
    return load_folder(folder, load_collection, what="collection", only=only, group=group)
