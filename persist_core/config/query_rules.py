"""Rules for a view's query, by its parsed tree: the first of two gates (the second: `persist_spark.view.gate`).

1. Every node is of a kind that queries are made of, and every function is on the list (`sql_functions`), written with
   or without backticks. What is on no list is refused: scripts, files, variables, what a new parser brings.
2. The same inputs give the same rows: no clock, no chance, no rows cut anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import exp

from persist_core.config.sql_functions import ALLOWED, remedy_for

DIALECT = "spark"
# Names as users write them, of functions that may be called in one way and not in another.
_FROM_CLOCK_WITHOUT_ARGUMENTS = frozenset({"unix_timestamp"})
_ANY_ROW = frozenset({"first", "first_value", "last", "last_value", "any_value"})
_ANY_ORDER = frozenset(
    {"collect_list", "collect_set", "collect_union", "array_agg", "listagg", "string_agg", "group_concat"}
)
_ORDER_DOES_NOT_MATTER = frozenset(
    {"sort_array", "array_sort", "size", "cardinality", "array_size", "array_contains", "array_max", "array_min"}
)
_FORMATS = frozenset({"format_string", "printf"})
_CONVERSION = re.compile(r"%[^A-Za-z%]*([A-Za-z%])")  # in a text of Java's `Formatter`
# Texts that Spark replaces with the current time when it casts them to a date or a timestamp.
_CLOCK_WORDS = frozenset({"now", "today", "tomorrow", "yesterday"})
_TO_TIME = (exp.TsOrDsToDate, exp.TsOrDsToTimestamp, exp.StrToDate, exp.StrToTime, exp.Date, exp.Timestamp)
# Kinds of nodes that are not functions.
_NODE_NAMES = """
    Add Alias Aliases All Any AtTimeZone Between BitwiseAnd BitwiseLeftShift BitwiseNot BitwiseOr
    BitwiseRightShift BitwiseXor Boolean Bracket CTE Cluster Column ColumnDef Cube DPipe DataType DataTypeParam
    Distinct Distribute Div Dot EQ Escape Except Filter From FromTimeZone GT GTE Group GroupingSets Having
    HexString Hint ILike Identifier IgnoreNulls In IntDiv Intersect Interval IntervalSpan Is JSONPath JSONPathKey
    JSONPathRoot JSONPathSubscript JSONPathWildcard Join JoinHint Kwarg LT LTE Lambda Lateral Like Limit Literal
    Mod Mul NEQ National Neg Not Null NullSafeEQ NullSafeNEQ Offset Order Ordered Paren Pivot PivotAlias PropertyEQ
    Qualify RawString RespectNulls Rollup Select Slice Sort Star Sub Subquery Table TableAlias TableSample Tuple Union
    UnpivotColumns Values Var Where Window WindowSpec With WithinGroup
"""
_NODES = frozenset(_NODE_NAMES.split())
# Functions that only the parser has: it makes them of syntax, and puts some of them around arguments.
_OF_SYNTAX = (
    exp.ApproxQuantile,
    exp.DecodeCase,
    exp.GroupConcat,
    exp.Quantile,
    exp.StrPosition,
    exp.TimeStrToTime,
    exp.TsOrDsToDate,
)


class BadQuery(Exception):
    """An invalid query: `found`, `expected` and `remedy` for the config's error; the place is part of `found`."""

    def __init__(self, found: str, expected: str, remedy: str) -> None:
        super().__init__(f"found {found}, expected {expected}; {remedy}")
        self.found, self.expected, self.remedy = found, expected, remedy


def place(text: str, node: exp.Expr | None) -> str:
    """The line and column at which a node starts, counted from 1, if the parser knows."""
    start = node.meta.get("start") if node is not None else None
    if start is None and isinstance(node, exp.Func):  # CURRENT_DATE and similar functions, written without parentheses
        bare = re.search(rf"\b{re.escape(node.sql_name())}\b", text, re.IGNORECASE)
        start = bare.start() if bare else None
    if start is None:
        return ""
    before = text[:start]
    return f" (line {before.count(chr(10)) + 1}, column {start - (before.rfind(chr(10)) + 1) + 1})"


def written(text: str, call: exp.Expr) -> str:
    """A function's name as it was written, in lower case."""
    start, end = call.meta.get("start"), call.meta.get("end")
    if start is not None and end is not None:
        return text[start : end + 1].strip("`").lower()
    if isinstance(call, exp.Anonymous):
        return str(call.this).lower()
    return call.sql_name().lower() if isinstance(call, exp.Func) else ""


def problems(text: str, tree: exp.Expr) -> Iterator[BadQuery]:
    """The violations of the query, in the order of the text's tree."""
    for node in tree.walk():
        found = (_clock_word(text, node), _varying_call(text, node), _foreign(text, node), _cut_anywhere(text, node))
        yield from (problem for problem in found if problem is not None)


def _foreign(text: str, node: exp.Expr) -> BadQuery | None:
    """A node that queries are not made of, or a function that is not on the list."""
    kind = type(node).__name__
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
        found = f"{node.sql(DIALECT)[:80]}{place(text, node.expression)}"
        return BadQuery(found, "a function by its name alone", "leave out the catalog and the schema")
    if not isinstance(node, exp.Func):
        if kind in _NODES:
            return None
        return BadQuery(f"{kind}{_near(text, node)}", "what a query may be made of", "see docs/reference/views.md")
    if isinstance(node.parent, exp.Hint):
        return None
    name = written(text, node)
    names = {name} if "start" in node.meta else {name, *(each.lower() for each in node.sql_names())}
    if isinstance(node, _OF_SYNTAX) or not ALLOWED.isdisjoint(names):
        return None
    return BadQuery(_called(text, node), "a function of the inputs only", remedy_for(name) or "")


def _called(text: str, call: exp.Func) -> str:
    name = written(text, call)
    return f"{name}{'' if name.startswith('current_') else '()'}{place(text, call)}"


def _near(text: str, node: exp.Expr) -> str:
    """The place of the first part of a node whose place is known."""
    return next((found for part in node.walk() if (found := place(text, part))), "")


def _cut_anywhere(text: str, node: exp.Expr) -> BadQuery | None:
    """Rows that are taken from an order that is not certain."""
    if isinstance(node, exp.Window) and _is_cut_anywhere(node):
        there = place(text, next((n for n in node.walk() if "start" in n.meta), None))
        return BadQuery(f"ROWS without ORDER BY{there}", "the same rows each time", "add ORDER BY a unique key")
    if isinstance(node, exp.TableSample):
        table = node.parent if isinstance(node.parent, exp.Table) else node.find(exp.Table)
        found = f"TABLESAMPLE{place(text, table.this if table else None)}"
        return BadQuery(found, "the same rows each time", "filter by a hash: WHERE xxhash64(id) % 10 = 0")
    if not isinstance(node, exp.Query) or node.args.get("order") or isinstance(node.parent, exp.Exists):
        return None
    cut = next((node.args[part] for part in ("limit", "offset") if node.args.get(part)), None)
    if cut is None or (isinstance(cut.expression, exp.Var) and cut.expression.name.upper() == "ALL"):
        return None
    there = place(text, next((n for n in cut.walk() if "start" in n.meta), None))
    return BadQuery(
        f"{cut.key.upper()} without ORDER BY{there}", "the same rows each time", "add ORDER BY a unique key"
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
    return BadQuery(f"{word.name!r} as a time{place(text, word)}", "a fixed time", remedy)


def _is_cut_anywhere(window: exp.Window) -> bool:
    """True if a frame of a number of rows is taken from rows without an order."""
    frame = window.args.get("spec")
    if frame is None or frame.args.get("kind") != "ROWS" or window.args.get("order"):
        return False
    return (frame.args.get("start"), frame.args.get("end")) != ("UNBOUNDED", "UNBOUNDED")


def _varying_call(text: str, call: exp.Expr) -> BadQuery | None:
    """A call whose result is certain only if it is written in another way."""
    if not isinstance(call, exp.Func):
        return None
    name, found = written(text, call), _called(text, call)
    if name in _FROM_CLOCK_WITHOUT_ARGUMENTS and _has_no_arguments(text, call):
        return BadQuery(found, "a function of the inputs only", remedy_for("now") or "")
    if name in _ANY_ROW and not _is_ordered(call):
        return BadQuery(found, "one certain value", f"write max_by({_argument(call)}, <column>), min or max")
    if name == "mode" and not _is_ordered(call) and call.args.get("deterministic") is None:
        return BadQuery(found, "one certain value if several are as frequent", f"write mode({_argument(call)}, true)")
    if name in _FORMATS and not _is_same_in_all_zones(call):
        remedy = "write a time by date_format: in a format it is in the time zone of the process"
        return BadQuery(found, "a format that is one literal without %t", remedy)
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


def _is_same_in_all_zones(call: exp.Func) -> bool:
    """True if the format is a literal without `%t`, which prints in the default time zone of the JVM."""
    template = call.this if isinstance(call, exp.Format) else next(iter(call.expressions), None)
    if not isinstance(template, exp.RawString) and not (isinstance(template, exp.Literal) and template.is_string):
        return False
    return {"t", "T"}.isdisjoint(_CONVERSION.findall(template.name))


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
    """True if the list is the first argument of a function that ignores its order."""
    child: exp.Expr = call
    while isinstance(child.parent, exp.Filter | exp.Distinct | exp.Paren):  # bounded: a path up the tree
        child = child.parent
    around = child.parent
    if not isinstance(around, exp.Func) or next(around.iter_expressions(), None) is not child:
        return False
    compares = isinstance(around, exp.ArraySort) and around.expression is not None  # array_sort(list, (l, r) -> ...)
    return written(text, around) in _ORDER_DOES_NOT_MATTER and not compares
