"""One view, as its YAML file describes it: a query over shards, kept as a shard.

    dags/views/<name>.yaml --yaml_text--> plain data --> query parsed (persist_core.config.view_query) --> ViewConfig

    query: SELECT city, count(*) AS customers FROM customers GROUP BY city
    schedule: on_input                 the default: whenever an input was appended to; or a cron expression

`load_view` parses the query and fills in `inputs`; a `ViewConfig` that travels to a job or a task carries them, and is
not parsed again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from persist_core.config import checks
from persist_core.config.collection import load_collection
from persist_core.config.files import SUFFIXES, beside, config_files, load_folder, read_mapping
from persist_core.config.model import ConfigModel, Flag, Names, Whole
from persist_core.config.problems import nearest, refuse, show, validated
from persist_core.config.shard import ShardConfig
from persist_core.errors import ConfigError, InvalidName
from persist_core.keys import check_shard_name
from persist_core.schema import CollectionSchema

if TYPE_CHECKING:
    from persist_core.config.view_query import ParsedQuery

ON_INPUT = "on_input"
SHARDS = "shards"  # the name and the type of a view's one source
MAX_INPUTS = 100  # a query over more inputs is not supported
COLLECTIONS_FOLDER = "collections"  # beside the folder of views
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class ViewLimits(ConfigModel):
    """Bounds of one refresh: updates that it may write, rows that the view may hold. `None`: no bound."""

    max_updates: Annotated[Whole, Field(ge=0)] | None = None
    max_rows: Annotated[Whole, Field(ge=0)] | None = None


class ViewConfig(ShardConfig):
    """A complete view file. Exactly one of `query` (Spark SQL) and `function` (`module:name`) defines the rows.

    `function` is called with the Spark session and a dict of the inputs' DataFrames by name, and returns a DataFrame.
    `renamed` has the name that a column has had in the view's shard, by the name that it has now.
    """

    query: str | None = None
    function: str | None = None
    inputs: Names = ()
    schedule: str | None = ON_INPUT
    read_only: Flag = False
    renamed: dict[str, str] = {}  # noqa: RUF012 - pydantic copies defaults
    limits: ViewLimits = ViewLimits()

    def declared(self, schema: CollectionSchema) -> CollectionSchema:
        """The schema of its rows, with what its file says of columns that are renamed or gone."""
        values = tuple(replace(column, renamed_from=self.renamed.get(column.name)) for column in schema.values)
        return replace(schema, values=values, dropped=self.dropped)

    @property
    def source_type(self) -> str:
        return SHARDS

    @property
    def read_shards(self) -> tuple[str, ...]:
        return self.inputs

    @property
    def writes_nothing(self) -> bool:
        return self.read_only

    @property
    def follows_inputs(self) -> bool:
        return self.schedule in (None, ON_INPUT)

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, schedule: str | None) -> str | None:
        if schedule in (None, ON_INPUT):
            return schedule
        try:
            return checks.schedule(schedule)
        except PydanticCustomError as error:
            context = error.context or {}
            remedy = nearest(schedule, [ON_INPUT]) or str(context["remedy"])
            raise refuse(schedule, f"{ON_INPUT} or {context['expected']}", remedy) from None

    @field_validator("function")
    @classmethod
    def _check_function(cls, function: str | None) -> str | None:
        if function is not None and not _FUNCTION.fullmatch(function):
            raise refuse(function, "module:name of a Python function", "for example my_package.views:orders_by_city")
        return function

    @field_validator("inputs")
    @classmethod
    def _check_inputs(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        checks.distinct([name.lower() for name in names], at=[])  # SQL ignores case
        for index, name in enumerate(names):
            try:
                check_shard_name(name)
            except InvalidName as error:
                raise refuse(name, checks.rule_of(error), "name a shard", at=[index]) from None
        return names

    @model_validator(mode="after")
    def _check_together(self) -> ViewConfig:
        if (self.query is None) == (self.function is None):
            found = "query and function" if self.query is not None else None
            raise refuse(found, "exactly one of query and function", "write query: SELECT ...", at=["query"])
        if not 1 <= len(self.inputs) <= MAX_INPUTS:
            raise refuse(len(self.inputs), f"1 to {MAX_INPUTS} inputs", "name them: inputs: [orders]", at=["inputs"])
        if self.name in self.inputs:
            raise refuse(self.name, "inputs other than the view itself", "read its inputs instead", at=["inputs"])
        return self

    @property
    def definition(self) -> str:
        """The definition of the rows: the query's text, or the function's name."""
        return self.query if self.query is not None else f"function {self.function}"


class _Known:
    def __init__(self, views: Path, collections: Path | None) -> None:
        self.views, self.collections = views, collections or beside(views, COLLECTIONS_FOLDER)
        self._columns: dict[str, Sequence[str] | None] = {}
        self._view_inputs: dict[str, tuple[str, ...]] = {}

    def is_collection(self, name: str) -> bool:
        return _file(self.collections, name) is not None

    def is_input(self, name: str) -> bool:
        return self.is_collection(name) or _file(self.views, name) is not None

    def names(self) -> list[str]:
        """The names of all possible inputs."""
        return [
            path.stem for folder in (self.collections, self.views) if folder.is_dir() for path in config_files(folder)
        ]

    def columns(self, name: str) -> Sequence[str] | None:
        """The columns of a collection, or of a view whose query names them all; `None` if only Spark knows them."""
        if name not in self._columns:
            self._columns[name] = self._read_columns(name)
        return self._columns[name]

    def _read_columns(self, name: str) -> Sequence[str] | None:
        from persist_core.config import query_rules, view_query

        collection, view = _file(self.collections, name), _file(self.views, name)
        try:
            if collection is not None:
                return list(load_collection(collection).columns)
            query = None if view is None else _fields(view).get("query")
            return view_query.parse(query).outputs if isinstance(query, str) else None
        except (ConfigError, query_rules.BadQuery):
            return None  # loading that file reports its error

    def view_inputs(self, name: str) -> tuple[str, ...]:
        """The inputs of another view's file; empty if it is not a view or can't be read."""
        from persist_core.config import query_rules

        if name not in self._view_inputs:
            path = _file(self.views, name)
            try:
                self._view_inputs[name] = () if path is None else _inputs_of(_fields(path))
            except (ConfigError, query_rules.BadQuery):
                self._view_inputs[name] = ()  # loading that file reports its error
        return self._view_inputs[name]


def load_view(path: str | Path, *, collections: Path | None = None) -> ViewConfig:
    """Parse and check one view file. Its name without the suffix is the view's, and its shard's.

    `collections` is the folder whose files may be inputs (default: `collections` beside the file's folder); other view
    files beside it may be inputs too. Raises `ConfigError`: one line per mistake, naming file, field, what was found
    (in a query with line and column) and what was expected.
    """
    path = Path(path)
    return _load_view(path, _Known(path.parent, collections))


def load_views(
    folder: Path, *, collections: Path | None = None, only: str | None = None
) -> tuple[list[ViewConfig], list[ConfigError]]:
    """Every view file in `folder`, inputs before the views that read them, and an error for each invalid file.

    `only`: see `load_folder`.
    """
    known = _Known(folder, collections)
    views, errors = load_folder(folder, lambda path: _load_view(path, known), what="view", only=only)
    by_name = {view.name: view for view in views}
    order = TopologicalSorter({view.name: view.inputs for view in views}).static_order()
    return [by_name[name] for name in order if name in by_name], errors


def _load_view(path: Path, known: _Known) -> ViewConfig:
    body = _fields(path)
    config = validated(ViewConfig, _with_inputs(path, body, known), path)
    if known.is_collection(config.name):
        problem = refuse(config.name, "a name that no collection has", "rename one of the two: each is a shard")
        raise ConfigError(f"{path}: name: {problem.message()}")
    _check_no_cycle(path, config, known)
    return config


def _fields(path: Path) -> dict[str, Any]:
    body = read_mapping(path, first_fields="query:")
    if "source" in body and body.keys().isdisjoint(("query", "function")):
        raise ConfigError(f"{path}: the file: found a collection, expected a view; move it to collections/")
    return body


def _inputs_of(body: dict[str, Any]) -> tuple[str, ...]:
    from persist_core.config import view_query

    given, query = body.get("inputs"), body.get("query")
    if given is None and isinstance(query, str):
        return view_query.parse(query).inputs
    return _names(given)


def _names(given: Any) -> tuple[str, ...]:
    """The names in `inputs:`; empty if it has another value, which the model refuses."""
    given = checks.listed(given)
    return tuple(str(name) for name in given) if isinstance(given, list | tuple) else ()


def _with_inputs(path: Path, body: dict[str, Any], known: _Known) -> dict[str, Any]:
    """The fields, with `inputs` taken from the query if the file does not name them."""
    query = body.get("query")
    if not isinstance(query, str):
        return body
    try:
        from persist_core.config import query_rules, view_query
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{path}: query: found no {error.name}, expected it installed; install airflow-persist[views]"
        ) from error
    try:
        parsed = view_query.parse(query)
        _check_tables(parsed, body.get("inputs"), known)
        if body.get("inputs") is None:
            body = {**body, "inputs": list(parsed.inputs)}
        parsed.check_columns(known.columns)
    except query_rules.BadQuery as problem:
        raise ConfigError(f"{path}: query: {problem}") from None
    return body


def _check_tables(parsed: ParsedQuery, given: Any, known: _Known) -> None:
    """Refuse a table that is neither a collection nor a view, or that is not in `inputs` if the file has them."""
    from persist_core.config.query_rules import BadQuery

    names = _names(given)
    if given is None and not parsed.inputs:
        raise BadQuery("no table", "a query over at least one shard", "name a collection or view in it")
    for name in parsed.inputs:
        found = f"table {name}{parsed.place_of(name)}"
        if given is None and not known.is_input(name):
            remedy = nearest(name, known.names()) or "correct the name, or list the query's shards in inputs:"
            raise BadQuery(found, "the name of a collection or view", remedy)
        if names and name.lower() not in map(str.lower, names):
            listed = ", ".join(names)
            remedy = f"correct the name, or add it: inputs: [{listed}, {name}]"
            raise BadQuery(found, f"one of inputs ({listed})", remedy)


def _check_no_cycle(path: Path, config: ViewConfig, known: _Known) -> None:
    """Refuse a view that reads itself through other views, naming the cycle."""
    readers: dict[str, str] = {}
    pending = [(name, config.name) for name in config.inputs]
    while pending and config.name not in readers:  # bounded: each file once
        name, reader = pending.pop()
        if name not in readers:
            readers[name] = reader
            pending += [(each, name) for each in known.view_inputs(name)]
    if config.name not in readers:
        return
    way = [config.name, readers[config.name]]
    while way[-1] != config.name:
        way.append(readers[way[-1]])
    problem = refuse(" -> ".join(way), "inputs that do not read this view", "remove one of them from a query")
    field = "query" if config.function is None else "inputs"
    raise ConfigError(f"{path}: {field}: {problem.message()}")


def _file(folder: Path, name: str) -> Path | None:
    if show(name)[1:-1] != name or "/" in name:
        return None
    return next((path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").is_file()), None)
