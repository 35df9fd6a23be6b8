"""Rules for a query, by the plans that Spark makes of it.

    query + empty inputs --EXPLAIN EXTENDED--> parsed plan: the functions that the text calls
                                               analyzed plan: operators, relations, and what will be evaluated

The parser's gate (`persist_core.config.view_query`) comes first, but it is not Spark's parser: this one stands alone.

1. Nothing is read: the inputs are empty relations of their schemas. What the query may read is a leaf of the plan.
2. Operators and functions are on lists. What is on none is refused, so what a new Spark adds is too.
3. Plans are texts, in which literals and names stand bare. They can add lines and words to a plan, so that a harmless
   query is refused; they cannot hide any. Nothing is cut or redacted, and the headings stand there once.
4. A word before a parenthesis is a call, unless the parsed plan has it without the mark of a call (`'name(`): then it
   is part of a literal or a name. Words that are refused for a reason are refused there too, because some functions
   (`current_user`) are written without parentheses.
5. Spark takes a constant text such as `now` for the time of its optimizer where it casts it, and only there: of a row's
   text it does not. So what becomes a time is a literal of another text, or depends on the inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession

from persist_core.config.sql_functions import ALLOWED, REFUSED, remedy_for
from persist_core.errors import ConfigError
from persist_spark.frame import quoted
from persist_spark.session import use

# Plans are printed whole, as they are. Nothing is computed for them: with these rules the optimizer would call the
# functions over literals and the rows of a `VALUES`, even functions that are about to be refused.
_COMPUTING = ("ConstantFolding", "ConvertToLocalRelation")
_WHOLE = {
    "spark.sql.optimizer.excludedRules": ",".join(f"org.apache.spark.sql.catalyst.optimizer.{x}" for x in _COMPUTING),
    "spark.sql.debug.maxToStringFields": str((1 << 31) - 1),
    "spark.sql.maxMetadataStringLength": str((1 << 31) - 1),
    "spark.sql.maxPlanStringLength": str((1 << 31) - 16),  # the most that Spark accepts
    "spark.sql.redaction.string.regex": "(?!)",  # matches nothing
}
_HEADINGS = re.compile(r"^== (\w+) (?:Logical )?Plan ==$", re.MULTILINE)
_OPERATOR = re.compile(r"[: ]*[+:]- (\w*)(?: \((`[^`]*`), )?")
_OPERATOR_NAMES = """
    Aggregate CTERelationDef CTERelationRef Distinct Except Expand Filter Generate GlobalLimit Intersect Join
    LateralJoin LocalLimit LocalRelation Offset OneRowRelation PipeOperator Project Range RebalancePartitions
    Repartition RepartitionByExpression ResolvedHint Sort SubqueryAlias Union UnionLoop UnionLoopRef View Window
    WithCTE
"""
OPERATORS = frozenset(_OPERATOR_NAMES.split())
_CALL = re.compile(r"([A-Za-z_][\w.$]*)\(")
_WRITTEN_CALL = re.compile(r"'([^\s'()\[\],]+)\(")  # in a parsed plan
_TABLE_FUNCTION = re.compile(r"UnresolvedTableValuedFunction \[([^\]]*)\]")
_BY_EXPRESSION = ("expressionwithunresolvedidentifier", "planwithunresolvedidentifier")
_CLOCK_WORD = re.compile(r"(?i)\s*(now|today|tomorrow|yesterday)\s*")
# Spark's parser itself replaces these.
_CLOCK_LITERAL = re.compile(
    r"(?is)\b(?:date|timestamp\w*)(?:\s|/\*.*?\*/|--[^\n]*\n)*r?['\"]\s*(now|today|tomorrow|yesterday|\\)"
)
_TO_TIME = re.compile(r"(.*?) as (?:date|timestamp\w*)")  # in the parentheses of a cast
# Plans show these without the casts in them: of a text that is compared with a time, or made one.
_HIDING_CASTS = """
    between date_part datepart decode equal_null extract ifnull nullif nvl nvl2 to_date to_timestamp to_timestamp_ltz
    to_timestamp_ntz try_add try_subtract try_to_date try_to_timestamp
"""
_MAY_CAST = frozenset(_HIDING_CASTS.split())
# How an expression begins that may stand for a time without being a text. In parentheses: an operator.
_NO_TEXT = re.compile(
    r"\(|(?:(?:add_months|date|date_add|date_from_unix_date|date_sub|date_trunc|from_utc_timestamp|last_day|make_date"
    r"|make_timestamp\w*|next_day|timestamp_\w+|timestampadd|to_date|to_timestamp\w*|to_utc_timestamp|trunc|try_to_\w+)"
    r"\(|(?:try_)?cast\(.* as (?!string)\w+(?:\([\d,]+\))?\)$)",
    re.DOTALL,
)
_REFERENCE = re.compile(r"#\d+")
# What analyzed plans print beside functions: parts of expressions, and types.
_PRINTED_WORDS = """
    arraytype char chartype currentrow$ decimal decimaltype exists extractansiintervaldays in interval knownnotnull
    knownnullable
    lambdafunction list listquery maptype namedlambdavariable outer pivotfirst precisetimestampconversion some
    specifiedwindowframe stringtype structfield structtype timetype unboundedfollowing$ unboundedpreceding$
    unspecifiedframe$ varchar varchartype vector windowspecdefinition
"""
_PRINTED = frozenset(_PRINTED_WORDS.split())
_PIVOTED = "__pivot_"  # before an aggregate's name


def as_rows(text: str) -> str:
    """The statement whose rows are the query's: in parentheses, so that only a query is accepted."""
    return f"SELECT * FROM ({text}\n)"


def register(inputs: Mapping[str, DataFrame]) -> None:
    """The inputs under their names, for the analysis of a query: in a session of our own, which ends with its job."""
    for name, frame in inputs.items():
        frame.createOrReplaceTempView(quoted(name))


def check_query(
    spark: SparkSession, what: str, text: str, inputs: Mapping[str, DataFrame], operators: frozenset[str] = OPERATORS
) -> None:
    """Raise `ConfigError` unless the query only computes with its inputs. Errors of Spark's own analysis pass.

    `what` says in messages where the text is. `operators`: of the plans that it may have.
    `spark` is a session of our own: names of the inputs stand for empty relations after this.
    """
    empty = {
        name: spark.range(0).selectExpr(
            *(f"CAST(NULL AS {field.dataType.simpleString()}) AS {quoted(field.name)}" for field in frame.schema)
        )
        for name, frame in inputs.items()
    }
    typed = _CLOCK_LITERAL.search(text)
    if typed is not None:
        raise ConfigError(f"{what}: found {typed[1]!r} as a time, expected a fixed time; {remedy_for('now')}")
    register(empty)
    use(spark, _WHOLE)
    explained, *error = (row[0] for row in spark.sql(f"EXPLAIN EXTENDED {as_rows(text)}").collect())
    for name in _WHOLE:  # what runs has all rules, and Spark keeps the plans of what runs
        spark.conf.unset(name)
    if error:  # a line in each row
        raise ConfigError(f"{what}: Spark cannot plan it: {error[0]}")
    names = [*inputs, *(name for frame in inputs.values() for name in frame.columns)]
    problem = next(_problems(explained, inputs, names, operators), None)
    if problem is None:
        return
    spark.sql(as_rows(text)).schema  # noqa: B018 - asked for its error: Spark's own says more
    found, expected, remedy = problem
    raise ConfigError(f"{what}: found {found}{_place(text, found)}, expected {expected}; {remedy}")


def _problems(
    explained: str, inputs: Iterable[str], names: Iterable[str], operators: frozenset[str]
) -> Iterator[tuple[str, str, str]]:
    """Found, expected and remedy for what the plans hold that no list has."""
    _, *sections = _HEADINGS.split(explained)
    if sections[::2] != ["Parsed", "Analyzed", "Optimized", "Physical"]:
        yield "a heading of Spark's plans in a text", "other words", "write the text in two parts, by concat"
        return
    parsed, analyzed = sections[1], sections[3]
    yield from _wrong_operators(analyzed, inputs, operators)
    called = [*_WRITTEN_CALL.findall(parsed), *(name.strip() for name in _TABLE_FUNCTION.findall(parsed))]
    beside = {word.lower() for word in _CALL.findall(_WRITTEN_CALL.sub(" ", parsed))}
    if not beside.isdisjoint(_BY_EXPRESSION):
        yield "IDENTIFIER()", "names as they are", "write the name itself"
    beside |= {word.lower() for name in names for word in _CALL.findall(name)}
    for name in called:
        if (remedy := remedy_for(name)) is not None:
            yield f"{name}()", "a function of the inputs only", remedy
    for word in _clock_texts(parsed, analyzed):
        yield f"{word!r} as a time", "a fixed time", remedy_for("now") or ""
    for word in _CALL.findall(analyzed):
        name = word.lower().removeprefix(_PIVOTED)
        if name in REFUSED or not (name in ALLOWED or name in _PRINTED or name in beside):
            remedy = f"{remedy_for(name)} (in a text, separate the word and its parenthesis by concat)"
            yield f"{word}()", "a function of the inputs only", remedy


def _clock_texts(parsed: str, analyzed: str) -> Iterator[str]:
    """Texts that become a time, are the same for all rows, and may be a text that Spark takes as the current time."""
    written = set(_REFERENCE.findall(parsed))  # in literals and names: references to columns get their numbers later
    for call in _CALL.finditer(analyzed):
        name, arguments = call[1].lower(), _arguments(analyzed, call.end())
        if name in ("cast", "try_cast"):
            found = _TO_TIME.fullmatch(arguments[0]) or _TO_TIME.match(arguments[0])
            arguments = [] if found is None else [found[1]]
        elif name not in _MAY_CAST:
            continue
        elif "to_" in name:
            del arguments[1:]  # how the text is read
        for each in map(str.strip, arguments):
            if "(" in each or each.startswith("CASE "):
                may_be_one = not _NO_TEXT.match(each) and written.issuperset(_REFERENCE.findall(each))
            else:
                may_be_one = _CLOCK_WORD.fullmatch(each) is not None
            if may_be_one:
                yield each


def _arguments(plan: str, start: int) -> list[str]:
    depth, found = 0, [""]
    for char in plan[start:].partition("\n")[0]:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth < 0:
            break
        if char == "," and depth == 0:
            found.append("")
        else:
            found[-1] += char
    return found


def _wrong_operators(analyzed: str, inputs: Iterable[str], operators: frozenset[str]) -> Iterator[tuple[str, str, str]]:
    """The analyzed plan's lines that are neither an operator of a query nor one of the inputs."""
    for line in analyzed.split("\n"):
        found = _OPERATOR.match(line)
        if found is None:  # the schema, our own SELECT, or more lines of a literal
            continue
        operator, relation = found[1], found[2]
        if operator == "View" and relation not in {f"`{name}`" for name in inputs}:
            yield f"the view {relation}", "a query over its inputs only", "read shards only, by their names"
        elif operator not in operators:
            what = f"{operator or line.strip(': +-')[:40]} in the plan"
            yield what, "a query over its inputs only", "write it with SELECT, joins and functions that a view may use"


def _place(text: str, found: str) -> str:
    """The line and column of the name that was found, counted from 1; empty if it does not have it."""
    there = re.search(rf"(?i)\b{re.escape(found.removesuffix('()'))}\b", text)
    if there is None:
        return ""
    before = text[: there.start()]
    return f" (line {before.count(chr(10)) + 1}, column {there.start() - before.rfind(chr(10))})"
