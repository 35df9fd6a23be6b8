"""JSON lines to text leaves, exactly: every number keeps its digits, and stays distinct from quoted text.

    line --exact_numbers--> line with each number as a marked string --from_json--> one struct of text leaves

`from_json` alone would write 1.10 as 1.1 and round 19 digits to 17, and its text leaves do not distinguish 5 from "5".
So numbers are first turned into strings that start with `MARK`, by one regular expression that walks the line token by
token (possessive, so that it neither backtracks nor recurses). A valid line stays valid, a broken line stays broken.
`unmarked` takes the mark off again.

What `parsed` makes of a line:

1. `row` is null unless the line is exactly one JSON object and nothing else: truncated lines, garbage, arrays, two
   objects on one line and text behind the object are all rejected.
2. `is_odd` marks a row in which a value is not of the kind expected (a number in place of an object).
3. Of a field that occurs twice the last one counts, as in most JSON readers. A nested value, taken as a leaf, is
   compact JSON: blanks outside of strings are gone; order, digits and duplicates are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_spark.compat import HAS_TRIM_CHARACTERS
from persist_spark.frame import ANY_LENGTH, struct_of

Path = tuple[str, ...]

MARK = "\ufdd0"  # a noncharacter, as U+FDD1 is: a line that has one of them is not read
_NUMBER = r"(?:-?(?:(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][+-]?\d++)?+|NaN)|[+-]?Infinity|[+-]INF)"
_WHOLE_NUMBER = rf"^{_NUMBER}$"
# What stands between two numbers: anything but the start of a number, strings whole.
_BETWEEN = r'\G((?:[^"\d+\-NI]++|"(?:[^"\\]++|\\.)*+")*+)'
# Only for a value, never for a name, so that {1:2} stays broken.
_EXACT = _BETWEEN + "(" + _NUMBER + r")(?=\s*+[,\]}])"
# An escaped half of a surrogate pair without its other half: Spark would silently write "?" for it.
_HEX = "[0-9a-fA-F]"
_HIGH, _LOW = rf"\\u[dD][89abAB]{_HEX}{{2}}", rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_ESCAPE = r"(?=\\)(?<!\\)(?:\\\\)*+"  # what stands before a backslash that is not escaped itself
_HALF = rf"{_ESCAPE}(?:{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW})"
_ESCAPED = rf"{_ESCAPE}\\u[fF][dD][dD][01]"
_ODD = "\ufdd1odd"  # not the name of a field
_OPTIONS = {
    **ANY_LENGTH,
    "maxNestingDepth": "1002",  # of a record 1,000, as Jackson's default is, and two of `envelope`
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _ODD,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "true",
}
_SENTINEL = "\ufdd1end"
_END = struct_of({_SENTINEL: T.StringType()})


@dataclass
class Shape:
    """The fields needed of a JSON object: a tree whose leaves are text. Build it with `need`, then read with `get`.

    Field names are compared exactly, case included.
    """

    fields: dict[str, Shape | T.DataType | None] = field(default_factory=dict)

    def need(self, path: Path) -> None:
        """Need the value at `path`. If a prefix of it is needed as a leaf too, `get` parses that leaf again."""
        name, rest = path[0], path[1:]
        if not rest:
            self.fields[name] = None
            return
        child = self.fields.setdefault(name, Shape())
        if isinstance(child, Shape):
            child.need(rest)

    def need_all(self, paths: Iterable[Path]) -> None:
        """Need all of `paths`, leaves first, so that the order of `paths` does not matter."""
        for path in sorted(paths, key=len):
            self.need(path)

    def put(self, name: str, child: Shape | T.DataType) -> None:
        """Need an object of this shape, or a value of exactly this type, under `name`."""
        self.fields[name] = child

    def get(self, row: SparkColumn, path: Path) -> SparkColumn:
        """The text at `path` of a row of this shape: null if it, or anything on the way, is missing or null.

        Or the value that `put` needs there: for a shape a struct, which that shape's `get` reads.
        """
        name, rest = path[0], path[1:]
        child = self.fields[name]
        found = row.getField(self._inner_name(name))
        if not rest:
            return found
        if isinstance(child, Shape):
            return child.get(found, rest)
        again = Shape()
        again.need(rest)
        return again.get(parse_text(found, again), rest)

    def json_type(self) -> T.StructType:
        """The type for `from_json`: the names as in the record."""
        return struct_of({name: _type(child, Shape.json_type) for name, child in self.fields.items()})

    def inner_type(self) -> T.StructType:
        """The struct under the names that `get` uses."""
        return struct_of({self._inner_name(name): _type(c, Shape.inner_type) for name, c in self.fields.items()})

    def has_clashes(self) -> bool:
        """True if names differ only in case, which Spark ignores: then rows must be cast to `inner_type`."""
        here = len({name.lower() for name in self.fields}) < len(self.fields)
        return here or any(isinstance(child, Shape) and child.has_clashes() for child in self.fields.values())

    def _inner_name(self, name: str) -> str:
        if len({other.lower() for other in self.fields}) == len(self.fields):
            return name
        return f"f{list(self.fields).index(name)}"


def _type(child: Shape | T.DataType | None, of_shape: Callable[[Shape], T.StructType]) -> T.DataType:
    if child is None:
        return T.StringType()
    return of_shape(child) if isinstance(child, Shape) else child


def exact_numbers(line: SparkColumn) -> SparkColumn:
    """The line with each number, NaN and Infinity as a string that starts with `MARK`. Idempotent."""
    return F.regexp_replace(line, _EXACT, f'$1"{MARK}$2"')


def without_mark(text: SparkColumn) -> SparkColumn:
    """The text of a leaf that is a number or a quoted text, as it stood in the record."""
    return F.ltrim(text, F.lit(MARK)) if HAS_TRIM_CHARACTERS else F.regexp_replace(text, f"^{MARK}", "")


def unmarked(text: SparkColumn) -> SparkColumn:
    """The text of any leaf as it stood in the record, numbers nested in it as well."""
    nested = F.regexp_replace(text, f'"{MARK}([^"]*)"', "$1")
    return F.when(text.contains(MARK), without_mark(nested)).otherwise(text)


def is_number(text: SparkColumn) -> SparkColumn:
    """True if a leaf was a bare JSON number (NaN and Infinity count), false if it was quoted."""
    return text.startswith(MARK)


def document_text(text: SparkColumn) -> SparkColumn:
    """The leaf that a text holds as a JSON document of its own: a number if it is one, else the text itself."""
    return F.when(text.rlike(_WHOLE_NUMBER), F.concat(F.lit(MARK), text)).otherwise(text)


def has_half_surrogates(line: SparkColumn) -> SparkColumn:
    """True if a text in the line is not Unicode: half a surrogate pair, escaped, which JSON allows."""
    return line.contains("\\u") & (line.contains("\\ud") | line.contains("\\uD")) & line.rlike(_HALF)


def has_noncharacters(line: SparkColumn) -> SparkColumn:
    """True if the line holds U+FDD0 or U+FDD1, which are marks here, as they are or escaped."""
    return line.contains("\ufdd0") | line.contains("\ufdd1") | has_escaped_noncharacters(line)


def has_escaped_noncharacters(text: SparkColumn) -> SparkColumn:
    """True if a text, which may be marked already, has one of them as an escape."""
    return text.contains("\\u") & (text.contains("\\uf") | text.contains("\\uF")) & text.rlike(_ESCAPED)


def envelope(line: SparkColumn, shape: Shape) -> SparkColumn:
    """Parse `line` in an array with a sentinel after it; the sentinel is found only if the line is one value.

    A struct of `rows`, the array, and of what `from_json` found odd.
    """
    element = T.StructType([*shape.json_type(), *_END])
    kind = struct_of({"rows": T.ArrayType(element), _ODD: T.StringType()})
    wrapped = F.concat(F.lit('{"rows":['), exact_numbers(line), F.lit(f',{{"{_SENTINEL}":"1"}}]}}'))
    return F.from_json(wrapped, kind, _OPTIONS)


def parsed(envelope: SparkColumn, shape: Shape) -> tuple[SparkColumn, SparkColumn]:
    """`row` and `is_odd` of the line. Materialize `envelope` first: it is used several times."""
    rows = envelope.getField("rows")
    is_whole = (F.size(rows) == 2) & F.get(rows, F.lit(1)).getField(_SENTINEL).isNotNull()
    row = F.when(is_whole, F.get(rows, F.lit(0)))
    if shape.has_clashes():
        row = row.cast(T.StructType([*shape.inner_type(), *_END]))
    return row, envelope.getField(_ODD).isNotNull()


def parse_text(text: SparkColumn, shape: Shape) -> SparkColumn:
    """Parse the text of a leaf that holds a JSON object, marked already or not; null if it does not hold one."""
    row = F.from_json(exact_numbers(text), shape.json_type(), _OPTIONS)
    return row.cast(shape.inner_type()) if shape.has_clashes() else row
