"""Parse a view's query without Spark: find its inputs, and the mistakes that are certain.

    text --sqlglot--> one query? -> made of what queries are made of, deterministic? (query_rules)
                                 -> inputs (tables that are not CTEs) -> columns that can't exist

Spark checks the types and, again, what the query is made of (`persist_spark.view.gate`).

Only this module and `query_rules` import sqlglot (extra `views`). Code that loads view files imports them; tasks of a
running DAG do not need them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, ParseError, SqlglotError
from sqlglot.optimizer.scope import Scope, ScopeType, traverse_scope

from persist_core.config.problems import nearest
from persist_core.config.query_rules import DIALECT, BadQuery, place, problems
from persist_core.schema import folded

MAX_QUERY_CHARS = 100_000  # the parser is recursive

_QUERIES = (exp.Query, exp.Values)
_NOT_OF_A_ROW = (exp.Query, exp.AggFunc, exp.Window, exp.UDTF, exp.Star, exp.Alias)  # in a condition on one row


@contextlib.contextmanager
def _understood(expected: str) -> Iterator[None]:
    """Refuse a text on which the parser or a rule fails: for some texts sqlglot raises `AttributeError` and others."""
    try:
        yield
    except BadQuery:
        raise
    except Exception as error:
        said = next(iter(str(error).splitlines()), "")
        what = said if isinstance(error, SqlglotError) else f"a text on which the parser fails ({said or type(error)})"
        raise _bad_syntax(what, expected) from error


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
        return next((place(self.text, table.this) for table in tables), "")

    @_understood("a query")
    def check_columns(self, columns_of: Callable[[str], Sequence[str] | None]) -> None:
        """Raise `BadQuery` for a column that certainly does not exist. `columns_of` an input: `None` if not known."""
        with contextlib.suppress(OptimizeError):
            for scope in traverse_scope(self._tree):
                _check_scope(self.text, scope, columns_of)


@_understood("a query")
def parse(text: str) -> ParsedQuery:
    """Parse `text`. Raises `BadQuery` if the parser fails, and for a query that can't define a view."""
    if not 1 <= len(text.strip()) <= MAX_QUERY_CHARS:
        raise BadQuery(f"{len(text)} characters", f"a query of 1 to {MAX_QUERY_CHARS} characters", "write SELECT ...")
    statements = _statements(text)
    if len(statements) != 1:
        raise BadQuery(f"{len(statements)} statements", "one query", "make a view of each, or join them by UNION ALL")
    tree = statements[0]
    if isinstance(tree, exp.Condition | exp.Alias):
        raise _bad_syntax("no statement")
    if not isinstance(tree, _QUERIES) or tree.find(exp.Into) is not None:
        kind = type(tree).__name__.upper() if not isinstance(tree, exp.Command) else str(tree.this).upper()
        raise BadQuery(
            f"a statement ({kind})", "a query: SELECT, WITH ... SELECT, VALUES", "a view's query returns its rows"
        )
    _check_made_of(text, tree)
    inputs = tuple(dict.fromkeys(_inputs(text, tree)))
    return ParsedQuery(text, inputs, _outputs(tree), tree)


@_understood("a condition")
def parse_condition(text: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that a condition on one row uses, in the order of `columns`, which are all that it may use.

    Raises `BadQuery` if it is not one expression, or is not made of what a view's query may be made of.
    """
    statements = _statements(text, "a condition")
    if len(statements) != 1:
        raise BadQuery(f"{len(statements)} statements", "one condition", "join several by AND")
    tree = statements[0]
    whole = next((node for node in tree.walk() if isinstance(node, _NOT_OF_A_ROW)), None)
    if not isinstance(tree, exp.Condition) or whole is not None:
        kind = type(whole or tree).__name__
        raise BadQuery(f"{kind.upper()}{place(text, whole)}", "a condition on one row", "for example balance >= 0")
    _check_made_of(text, tree)
    used = set()
    for column in tree.find_all(exp.Column):
        found = next((name for name in columns if folded(name) == folded(column.name)), None)
        if found is not None and not column.table:
            used.add(found)
        elif column.find_ancestor(exp.Lambda) is None:
            raise _no_column(text, column, columns)
    return tuple(name for name in columns if name in used)


def _statements(text: str, expected: str = "a query") -> list[exp.Expr]:
    quiet = logging.getLogger("sqlglot")
    level, quiet.level = quiet.level, logging.ERROR  # sqlglot warns if it falls back to "some command"
    try:
        return [tree for tree in sqlglot.parse(text, dialect=DIALECT) if tree is not None]
    except ParseError as error:
        detail = error.errors[0] if error.errors else {}
        there = f" (line {detail['line']}, column {detail['col']})" if "line" in detail else ""
        what = _without_classes(str(detail.get("description") or str(error).splitlines()[0]))
        near = f" near {detail['highlight']!r}" if detail.get("highlight") else ""
        raise _bad_syntax(f"{what}{near}{there}", expected) from None
    finally:
        quiet.level = level


def _check_made_of(text: str, tree: exp.Expr) -> None:
    """Raise `BadQuery` for what `query_rules` finds, and for a comment that Spark's parser ends at another place.

    The rest of such a comment could be a query that no gate has seen.
    Spark counts no `/*+` within a comment, and a line that ends in a backslash goes on. `{#` it does not know.
    """
    for comment in (comment for token in sqlglot.tokenize(text, read=DIALECT) for comment in token.comments):
        if "/*+" in comment or "\\\n" in f"{comment}\n":
            raise BadQuery(f"the comment {comment[:40]!r}", "comments that end at one place only", "leave it out")
    for problem in problems(text, tree):
        raise problem


def _without_classes(description: str) -> str:
    if description.startswith("Required keyword: "):
        return "an expression that is not finished"
    return description.partition(" but got <Token")[0]


def _bad_syntax(found: str, expected: str = "a query") -> BadQuery:
    remedy = f"correct it; docs/reference/views.md says what {expected} may be"
    return BadQuery(found, f"{expected} that parses", remedy)


def _inputs(text: str, tree: exp.Expr) -> Iterator[str]:
    found = [table for table in tree.find_all(exp.Table) if isinstance(table.this, exp.Identifier)]
    for table in sorted(found, key=lambda table: table.this.meta.get("start", 0)):
        if _is_cte(table) or table.find_ancestor(exp.Hint) is not None:  # a hint names a table of the query
            continue
        if table.db:
            raise BadQuery(
                f"{table.db}.{table.name}{place(text, table.this)}",
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
    found = f"column {written}{place(text, column.this)}"
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
        with _understood("a query"):
            tree = qualify(sqlglot.parse_one(text, dialect=DIALECT), dialect=DIALECT, schema=schema)
            outputs = tree.named_selects if isinstance(tree, exp.Query) else []
    except BadQuery:
        return {}
    found = {}
    for output in outputs:
        try:
            with _understood("a query"):
                leaves = [node for node in lineage(output, tree, schema, dialect=DIALECT).walk() if not node.downstream]
        except BadQuery:
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
