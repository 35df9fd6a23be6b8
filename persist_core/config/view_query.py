"""Parse a view's query without Spark: find its inputs, and the mistakes that are certain.

    text --sqlglot--> one query? -> deterministic? -> inputs (tables that are not CTEs) -> columns that can't exist

Spark checks everything else, so no valid query is refused here. A query is refused if it would give a different result
each time (`rand()`, `LIMIT` without `ORDER BY`), or if it is certain to fail.

This is the only module that imports sqlglot (extra `views`). Code that loads view files imports it; tasks of a running
DAG do not need it.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, ParseError, SqlglotError
from sqlglot.optimizer.scope import Scope, ScopeType, traverse_scope

from persist_core.config.problems import nearest

DIALECT = "spark"
MAX_QUERY_CHARS = 100_000  # the parser is recursive

# Names as users write them. The result of each depends on the time, run, user, machine or partitioning of the work.
_VARYING = frozenset({
    "rand", "random", "randn", "randstr", "uniform", "uuid", "now", "current_timestamp", "localtimestamp", "getdate",
    "current_date", "curdate", "current_time", "localtime", "current_timezone", "current_user", "user",
    "session_user", "current_catalog", "current_database", "current_schema", "version", "monotonically_increasing_id",
    "spark_partition_id", "input_file_name", "input_file_block_start", "input_file_block_length", "shuffle",
    "reflect", "try_reflect", "java_method",
})  # fmt: skip
_FROM_CLOCK_WITHOUT_ARGUMENTS = frozenset({"unix_timestamp"})
_ANY_ROW = frozenset({"first", "first_value", "last", "last_value", "any_value"})
_ANY_ORDER = frozenset({"collect_list", "collect_set", "array_agg", "listagg", "string_agg", "group_concat"})
_ORDER_DOES_NOT_MATTER = frozenset(
    {"sort_array", "array_sort", "size", "cardinality", "array_size", "array_contains", "array_max", "array_min"}
)
# Texts that Spark replaces with the current time when it casts them to a date or a timestamp.
_CLOCK_WORDS = frozenset({"now", "today", "tomorrow", "yesterday"})
_TO_TIME = (exp.TsOrDsToDate, exp.TsOrDsToTimestamp, exp.StrToDate, exp.StrToTime, exp.Date, exp.Timestamp)
_QUERIES = (exp.Query, exp.Values)


class BadQuery(Exception):
    """An invalid query: `found`, `expected` and `remedy` for the config's error; the place is part of `found`."""

    def __init__(self, found: str, expected: str, remedy: str) -> None:
        super().__init__(f"found {found}, expected {expected}; {remedy}")
        self.found, self.expected, self.remedy = found, expected, remedy


class UnknownSyntax(BadQuery):
    """The parser does not understand the query; Spark might."""


@dataclass(frozen=True)
class ParsedQuery:
    """A query that passed. `inputs` in order of first mention; `outputs` are `None` if only Spark knows them."""

    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] | None
    _tree: exp.Expr

    def place_of(self, name: str) -> str:
        """`(line 1, column 15)` of the first mention of an input."""
        tables = (table for table in self._tree.find_all(exp.Table) if table.name == name)
        return next((_place(self.text, table.this) for table in tables), "")

    def check_columns(self, columns_of: Callable[[str], Sequence[str] | None]) -> None:
        """Raise `BadQuery` for a column that certainly does not exist. `columns_of` an input: `None` if not known."""
        with contextlib.suppress(OptimizeError):
            for scope in traverse_scope(self._tree):
                _check_scope(self.text, scope, columns_of)


def parse(text: str) -> ParsedQuery:
    """Parse `text`. Raises `UnknownSyntax` if the parser fails, `BadQuery` for a query that can't define a view."""
    if not 1 <= len(text.strip()) <= MAX_QUERY_CHARS:
        raise BadQuery(f"{len(text)} characters", f"a query of 1 to {MAX_QUERY_CHARS} characters", "write SELECT ...")
    statements = _statements(text)
    if len(statements) != 1:
        raise BadQuery(f"{len(statements)} statements", "one query", "make a view of each, or join them by UNION ALL")
    tree = statements[0]
    if isinstance(tree, exp.Condition | exp.Alias):
        raise _unknown_syntax("no statement")
    if not isinstance(tree, _QUERIES) or tree.find(exp.Into) is not None:
        kind = type(tree).__name__.upper() if not isinstance(tree, exp.Command) else str(tree.this).upper()
        raise BadQuery(
            f"a statement ({kind})", "a query: SELECT, WITH ... SELECT, VALUES", "a view's query returns its rows"
        )
    for problem in _varying(text, tree):
        raise problem
    inputs = tuple(dict.fromkeys(_inputs(text, tree)))
    return ParsedQuery(text, inputs, _outputs(tree), tree)


def _statements(text: str) -> list[exp.Expr]:
    quiet = logging.getLogger("sqlglot")
    level, quiet.level = quiet.level, logging.ERROR  # sqlglot warns if it falls back to "some command"
    try:
        return [tree for tree in sqlglot.parse(text, dialect=DIALECT) if tree is not None]
    except ParseError as error:
        detail = error.errors[0] if error.errors else {}
        place = f" (line {detail['line']}, column {detail['col']})" if "line" in detail else ""
        what = str(detail.get("description") or str(error).splitlines()[0])
        near = f" near {detail['highlight']!r}" if detail.get("highlight") else ""
        raise _unknown_syntax(f"{what}{near}{place}") from None
    except (SqlglotError, RecursionError) as error:
        raise _unknown_syntax(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
    finally:
        quiet.level = level


def _unknown_syntax(found: str) -> UnknownSyntax:
    remedy = "correct it; if Spark does understand it, name its inputs beside it: inputs: [orders, customers]"
    return UnknownSyntax(found, "a query that parses", remedy)


def _place(text: str, node: exp.Expr | None) -> str:
    """Where a node starts, counted from 1, if the parser knows."""
    start = node.meta.get("start") if node is not None else None
    if start is None and isinstance(node, exp.Func):  # CURRENT_DATE and similar functions, written without parentheses
        bare = re.search(rf"\b{re.escape(node.sql_name())}\b", text, re.IGNORECASE)
        start = bare.start() if bare else None
    if start is None:
        return ""
    before = text[:start]
    return f" (line {before.count(chr(10)) + 1}, column {start - (before.rfind(chr(10)) + 1) + 1})"


def _written(text: str, call: exp.Expr) -> str:
    """A function's name as it was written, in lower case."""
    start, end = call.meta.get("start"), call.meta.get("end")
    if start is not None and end is not None:
        return text[start : end + 1].lower()
    if isinstance(call, exp.Anonymous):
        return str(call.this).lower()
    return call.sql_name().lower() if isinstance(call, exp.Func) else ""


def _varying(text: str, tree: exp.Expr) -> Iterator[BadQuery]:
    """What makes the same inputs give different results, in the order of the text's tree."""
    for node in tree.walk():
        problem = _clock_word(text, node)
        if problem is None and isinstance(node, exp.Func):
            problem = _varying_call(text, node)
        if problem is not None:
            yield problem
        elif isinstance(node, exp.Window) and _is_cut_anywhere(node):
            place = _place(text, next((n for n in node.walk() if "start" in n.meta), None))
            yield BadQuery(f"ROWS without ORDER BY{place}", "the same rows each time", "add ORDER BY a unique key")
        elif isinstance(node, exp.TableSample):
            table = node.parent if isinstance(node.parent, exp.Table) else node.find(exp.Table)
            found = f"TABLESAMPLE{_place(text, table.this if table else None)}"
            yield BadQuery(found, "the same rows each time", "filter by a hash: WHERE xxhash64(id) % 10 = 0")
        elif isinstance(node, exp.Query) and not node.args.get("order"):
            cut = next((node.args[part] for part in ("limit", "offset") if node.args.get(part)), None)
            is_all = cut is not None and isinstance(cut.expression, exp.Var) and cut.expression.name.upper() == "ALL"
            if cut is not None and not is_all and not isinstance(node.parent, exp.Exists):
                place = _place(text, next((n for n in cut.walk() if "start" in n.meta), None))
                yield BadQuery(
                    f"{cut.key.upper()} without ORDER BY{place}", "the same rows each time", "add ORDER BY a unique key"
                )


def _clock_word(text: str, node: exp.Expr) -> BadQuery | None:
    """`DATE'today'`, `CAST('now' AS TIMESTAMP)`, `to_date('tomorrow')` and similar."""
    makes_time = (isinstance(node, exp.Cast) and node.to.is_type(*exp.DataType.TEMPORAL_TYPES)) or isinstance(
        node, _TO_TIME
    )
    word = node.this
    if not makes_time or not isinstance(word, exp.Literal) or word.name.strip().lower() not in _CLOCK_WORDS:
        return None
    remedy = "take it from a column, or write the date: each refresh evaluates it again"
    return BadQuery(f"{word.name!r} as a time{_place(text, word)}", "a fixed time", remedy)


def _is_cut_anywhere(window: exp.Window) -> bool:
    """Whether a frame of a number of rows is taken from rows without an order."""
    frame = window.args.get("spec")
    if frame is None or frame.args.get("kind") != "ROWS" or window.args.get("order"):
        return False
    return (frame.args.get("start"), frame.args.get("end")) != ("UNBOUNDED", "UNBOUNDED")


def _varying_call(text: str, call: exp.Func) -> BadQuery | None:
    name = _written(text, call)
    found = f"{name}{'' if name.startswith('current_') else '()'}{_place(text, call)}"
    if name in _VARYING or (name in _FROM_CLOCK_WITHOUT_ARGUMENTS and _has_no_arguments(text, call)):
        return BadQuery(
            found,
            "a function of the inputs only",
            "take it from a column, or write a literal: each refresh evaluates it again",
        )
    if name in _ANY_ROW and not _is_ordered(call):
        return BadQuery(found, "one certain value", f"write max_by({_argument(call)}, <column>), min or max")
    if name == "mode" and not _is_ordered(call) and call.args.get("deterministic") is None:
        return BadQuery(found, "one certain value if several are as frequent", f"write mode({_argument(call)}, true)")
    if name in _ANY_ORDER and not _is_ordered(call) and not _is_sorted(text, call):
        remedy = f"write sort_array({name}(...))" if name.startswith(("collect", "array")) else "add WITHIN GROUP"
        return BadQuery(found, "one certain order", remedy)
    return None


def _has_no_arguments(text: str, call: exp.Func) -> bool:
    rest = text[call.meta["end"] + 1 :].lstrip() if "end" in call.meta else ""
    return rest.startswith("(") and rest[1:].lstrip().startswith(")")


def _argument(call: exp.Func) -> str:
    argument = call.this if isinstance(call.this, exp.Expression) else None
    return argument.sql(dialect=DIALECT) if argument is not None else "..."


def _is_ordered(call: exp.Func) -> bool:
    """True within `OVER (... ORDER BY ...)` or `WITHIN GROUP (ORDER BY ...)`."""
    if isinstance(call, exp.GroupConcat) and call.find(exp.Order) is not None:
        return True
    around = call.parent
    while isinstance(around, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):  # bounded: a path up the tree
        around = around.parent
    if isinstance(around, exp.WithinGroup):
        return True
    return isinstance(around, exp.Window) and bool(around.args.get("order"))


def _is_sorted(text: str, call: exp.Func) -> bool:
    """True if the list is the argument of a function that ignores its order."""
    around = call.parent
    while isinstance(around, exp.Filter | exp.Distinct | exp.Paren):  # bounded: a path up the tree
        around = around.parent
    return isinstance(around, exp.Func) and _written(text, around) in _ORDER_DOES_NOT_MATTER


def _inputs(text: str, tree: exp.Expr) -> Iterator[str]:
    """Names of the tables that are not CTEs, in the order of the text."""
    found = [table for table in tree.find_all(exp.Table) if isinstance(table.this, exp.Identifier)]
    for table in sorted(found, key=lambda table: table.this.meta.get("start", 0)):
        if _is_cte(table):
            continue
        if table.db:
            place = _place(text, table.this)
            raise BadQuery(
                f"{table.db}.{table.name}{place}",
                "the name of a shard only",
                f"name an input by its shard; one with a dot in its name goes in backticks: `{table.db}.{table.name}`",
            )
        yield table.name


def _is_cte(table: exp.Table) -> bool:
    """True if a WITH around the table defines its name. A CTE can use earlier ones, and itself if it is recursive."""
    if table.db:
        return False
    expected = table.name.lower()
    child: exp.Expr = table
    around = table.parent
    own: exp.CTE | None = None
    while around is not None:  # bounded: the path to the root
        if isinstance(around, exp.CTE):
            own = around
        if isinstance(around, exp.With):
            before = [cte for cte in around.expressions if _precedes(cte, own, around)]
            if any(cte.alias.lower() == expected for cte in before):
                return True
        clause = around.args.get("with_") or around.args.get("with")
        if (
            isinstance(clause, exp.With)
            and child is not clause
            and any(cte.alias.lower() == expected for cte in clause.expressions)
        ):
            return True
        child, around = around, around.parent
    return False


def _precedes(cte: exp.CTE, own: exp.CTE | None, clause: exp.With) -> bool:
    if own is None:
        return True
    position = {id(each): index for index, each in enumerate(clause.expressions)}
    limit = position.get(id(own), len(position)) + (1 if clause.args.get("recursive") else 0)
    return position[id(cte)] < limit


def _outputs(tree: exp.Expr) -> tuple[str, ...] | None:
    """The names of the result's columns, if the text names all of them."""
    if not isinstance(tree, exp.Query):
        return None
    selects = tree.selects
    sure = selects and all(isinstance(select, exp.Alias | exp.Column) and not select.is_star for select in selects)
    return tuple(select.alias_or_name for select in selects) if sure else None


def _check_scope(text: str, scope: Scope, columns_of: Callable[[str], Sequence[str] | None]) -> None:
    """Columns of one SELECT: with a qualifier that is an input, or without one if only inputs are in scope."""
    inputs: dict[str, Sequence[str]] = {}
    for alias, source in scope.sources.items():
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier) and not source.args.get("pivots"):
            known = columns_of(source.name)
            if known is not None and not (source.args.get("alias") and source.args["alias"].columns):
                inputs[alias.lower()] = known
    is_closed = (
        isinstance(scope.expression, exp.Select)
        and len(inputs) == len(scope.sources)
        and not scope.is_correlated_subquery
        and scope.scope_type in (ScopeType.ROOT, ScopeType.CTE, ScopeType.DERIVED_TABLE, ScopeType.SET_OPERATION)
        and not any(scope.expression.args.get(part) for part in ("laterals", "pivots", "operation_modifiers"))
    )
    aliases = {select.alias.lower() for select in getattr(scope.expression, "selects", ()) if select.alias}
    every = {name.lower() for known in inputs.values() for name in known}
    for column in scope.columns:
        own = column.find_ancestor(exp.Select) is scope.expression  # a subquery's columns may be its outer query's too
        if not own or column.find_ancestor(exp.Lambda) or not isinstance(column.this, exp.Identifier):
            continue
        name, table = column.name, column.table.lower()
        if table in inputs and name.lower() not in {known.lower() for known in inputs[table]}:
            raise _no_column(text, column, inputs[table])
        if not table and is_closed and inputs and name.lower() not in every | aliases:
            raise _no_column(text, column, [known for columns in inputs.values() for known in columns])


def _no_column(text: str, column: exp.Column, known: Sequence[str]) -> BadQuery:
    listed = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
    written = f"{column.table}.{column.name}" if column.table else column.name
    found = f"column {written}{_place(text, column.this)}"
    return BadQuery(found, f"one of {listed}", nearest(column.name, known) or "correct the name")


def column_sources(text: str, columns_of: Mapping[str, Sequence[str]]) -> dict[str, tuple[tuple[str, str], ...]]:
    """For each output column of a query: the columns of its inputs that its values are made of, as (input, column).

    `columns_of` has every input. Columns that only filter or join are not counted. Empty if the parser cannot follow
    the query; a column that it cannot follow is left out.
    """
    from sqlglot.lineage import lineage  # takes longer to import than a view file to parse
    from sqlglot.optimizer.qualify import qualify

    # an input or output may be written in another case than its column
    names = {table.lower(): {column.lower(): column for column in columns} for table, columns in columns_of.items()}
    tables = {table.lower(): table for table in columns_of}
    schema: dict[str, object] = {table: dict.fromkeys(columns, "string") for table, columns in columns_of.items()}
    try:
        tree = qualify(sqlglot.parse_one(text, dialect=DIALECT), dialect=DIALECT, schema=schema)
        outputs = tree.named_selects if isinstance(tree, exp.Query) else []
    except (SqlglotError, RecursionError):
        return {}
    found = {}
    for output in outputs:
        try:
            leaves = [node for node in lineage(output, tree, schema, dialect=DIALECT).walk() if not node.downstream]
        except (SqlglotError, RecursionError, ValueError):
            continue
        sources = [
            (tables[table], names[table][column])
            for leaf in leaves
            if isinstance(leaf.expression, exp.Table)
            for table, column in [(leaf.expression.name.lower(), exp.to_column(leaf.name).name.lower())]
            if column in names.get(table, ())
        ]
        found[output] = tuple(dict.fromkeys(sources))
    return found
