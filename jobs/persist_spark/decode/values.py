"""Text leaves to typed values, strictly: what does not fit its type exactly is null, and the caller makes it an err.

    raw text --texts--> text without a mark; the bytes of base64 --numbers--> text of a number --value--> typed

Three steps, each to be its own projection, since Spark writes an expression out again wherever it is used: nested, they
would grow to megabytes of generated code. A step that has nothing to do for a field gives no column.

A value is null where its text is missing or null, and where the text is no such value: out of range, to be rounded,
misspelt. So a value is bad where the text is not null and the value is. Nothing here raises at run time, whatever the
session's ANSI mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from persist_core.config.collection import Unit
from persist_core.schema import Column, decimal_of
from persist_spark.compat import try_cast, try_cast_integer, whole_to_bigint
from persist_spark.decode.json import is_number, unmarked, without_mark

_MICROS: dict[Unit, int] = {"s": 1_000_000, "ms": 1_000, "us": 1, "days": 86_400_000_000}
_DAY_MICROS = _MICROS["days"]
# A bare integer in a date column is days where it can't be anything finer: 9,999,999 days lie beyond the year 29,000,
# and as milliseconds they are no midnight (but for 0, which is 1970-01-01 in every unit).
_BARE_DAYS = r"^-?\d{1,7}$"
_FLOAT = r"(?i)^\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf|infinity)\s*$"
_INFINITE = r"(?i)inf"
_INTEGER = r"^\s*[+-]?\d{1,19}\s*$"
_DATE = r"^[+-]?\d{4,7}-\d{2}-\d{2}(?:[T ]00:00(?::00(?:\.0+)?)?Z?)?$"
_ZONE = r"(?: ?(?:Z|UTC|[+-]\d{2}(?::?\d{2})?))?"
_TIMESTAMP = r"^[+-]?\d{4,6}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6}0*)?" + _ZONE + ")?$"
_MINUTES = r"^([+-]?\d{4,6}-\d{2}-\d{2}[T ]\d{2}:\d{2})(" + _ZONE + ")$"  # as Java writes a time without seconds
_EXPONENT = r"^\s*[+-]?(\d*)\.?(\d*)[eE]([+-]?\d{1,4})\s*$"
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_MAX_HEX_DIGITS = 32  # 16 bytes, 127 bits and a sign: more than the 38 digits that a decimal can have

_CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_BITS = "io.debezium.data.Bits"
# Names of Debezium's and Kafka Connect's logical types, and what they count in.
_UNIT_NAMES: dict[Unit, tuple[str, ...]] = {
    "days": ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date"),
    "ms": ("io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp"),
    "us": ("io.debezium.time.MicroTimestamp",),
    "ns": ("io.debezium.time.NanoTimestamp",),
}


@dataclass(frozen=True)
class Hint:
    """What a message says of a field, each null where it says nothing: Connect type, logical name, decimal scale."""

    type: SparkColumn
    name: SparkColumn
    scale: SparkColumn


@dataclass(frozen=True)
class Encoding:
    """How a format writes values.

    `marked`: numbers are marked (`decode_json`). `decimals`: `precise` where quoted numbers may be base64 of the
    unscaled integer, else `text`. `binary`: how bytes are written. `bare_days`: a bare integer may be a date.
    """

    marked: bool = True
    decimals: Literal["precise", "text"] = "text"
    binary: Literal["base64", "hex"] = "base64"
    bare_days: bool = False

    def plain(self, raw: SparkColumn) -> SparkColumn:
        """The field's text as it stood in the record."""
        return unmarked(raw) if self.marked else raw


@dataclass(frozen=True)
class Field:
    """A column of the collection in the raw frame: its text is in `raw`, a hint, if any, in `h<raw>`.

    `is_typed`: `raw` is no text but a value that a plain cast turns into the column's type, or to null, without loss.
    """

    column: Column
    raw: str
    unit: Unit | None = None
    is_hinted: bool = False
    is_typed: bool = False

    @property
    def value(self) -> str:
        """Where the typed value goes."""
        return f"typed_{self.raw}"

    @property
    def hint(self) -> Hint | None:
        """What the message says of it."""
        if not self.is_hinted:
            return None
        found = F.col(f"h{self.raw}")
        return Hint(found.getField("type"), found.getField("name"), found.getField("parameters").getField("scale"))

    @property
    def is_integer(self) -> bool:
        """True for the integer types."""
        return self.column.type in ("int", "bigint")

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a decimal type."""
        return decimal_of(self.column.type)

    def may_be_base64(self, encoding: Encoding) -> bool:
        """True where a quoted text may be the bytes of a number."""
        return encoding.decimals == "precise" and (self.is_integer or self.decimal is not None)


def texts(field: Field, encoding: Encoding) -> dict[str, SparkColumn]:
    """Step 1: `text_<raw>`, and the hex digits of what may be base64 in `hex_<raw>`."""
    raw = F.col(field.raw)
    if not encoding.marked or field.column.type in ("string", "json"):
        return {}
    found = {f"text_{field.raw}": without_mark(raw)}
    if field.may_be_base64(encoding):
        quoted = F.when(~is_number(raw), raw)
        if field.decimal:  # VariableScaleDecimal: {"scale": .., "value": ..}
            quoted = F.when(raw.startswith("{"), F.get_json_object(raw, "$.value")).otherwise(quoted)
        # Spark passes over blanks in base64, and would so find a number in "a lot": only canonical text counts.
        found[f"hex_{field.raw}"] = F.hex(F.try_to_binary(F.when(quoted.rlike(_BASE64), quoted), F.lit("base64")))
    return found


def numbers(field: Field, encoding: Encoding) -> dict[str, SparkColumn]:
    """Step 2: `number_<raw>`, the text of a number where base64 held one; as it is where it was text already."""
    if not field.may_be_base64(encoding):
        return {}
    text, digits, hint = F.col(f"text_{field.raw}"), F.col(f"hex_{field.raw}"), field.hint
    scales = [try_cast(hint.scale, "int")] if hint else []
    is_text = digits.isNull()
    if hint:
        is_text = is_text | F.coalesce(hint.type == "string", F.lit(False))
    number = F.when(is_text, text)
    if hint:
        number = number.when(hint.name == _BITS, _bits_text(digits))
    if field.decimal:
        own = F.get_json_object(F.when(text.startswith("{"), F.col(field.raw)), "$.scale")
        scale = F.coalesce(try_cast(without_mark(own), "int"), *scales, F.lit(field.decimal[1]))
        number = number.otherwise(F.concat(_signed_text(digits), F.lit("E"), (-scale).cast("string")))
        return {f"number_{field.raw}": number}
    # "1234" may be the number, or base64 of another one: where nothing tells, an err asks rather than a guess.
    is_known = ~text.rlike(_INTEGER)
    power = F.coalesce(*[F.concat(F.lit("E"), (-scale).cast("string")) for scale in scales], F.lit(""))
    if hint:
        is_known = is_known | (hint.name == _CONNECT_DECIMAL)
    return {f"number_{field.raw}": number.when(is_known, F.concat(_signed_text(digits), power))}


def value(field: Field, encoding: Encoding) -> SparkColumn:
    """Step 3: the value as its column's type, null where it is not exactly one."""
    column, raw = field.column, F.col(field.raw)
    if field.is_typed:
        found = try_cast(raw, column.type if column.type != "json" else "string")
        return found + F.lit(0.0).cast(column.type) if column.type in ("float", "double") else found
    if column.type in ("string", "json"):
        return encoding.plain(raw)
    text = F.col(f"text_{field.raw}") if encoding.marked else raw
    number = F.col(f"number_{field.raw}") if field.may_be_base64(encoding) else text
    if field.decimal:
        exact = exact_decimal(number, *field.decimal)
        if not field.may_be_base64(encoding):
            return exact
        by_construction = F.col(f"hex_{field.raw}").isNotNull() & number.endswith(f"E{-field.decimal[1]}")
        return F.when(by_construction, try_cast(number, column.type)).otherwise(exact)
    if field.is_integer:
        # 5.0 and 2.0E10 are whole numbers too: whole doubles are written so.
        rare = F.when(number.rlike("[.eE]"), try_cast_integer(exact_decimal(number, 38, 0), column.type))
        return F.coalesce(try_cast_integer(number, column.type), rare)
    if column.type in ("float", "double"):
        return _float(text, column.type)
    if column.type == "binary":
        return F.try_to_binary(raw, F.lit(encoding.binary))  # a bare number keeps its mark, and so is none
    if column.type == "date":
        return _date(text, field.unit, field.hint, bare_days=encoding.bare_days)
    if column.type == "timestamp":
        return _timestamp(text, field.unit, field.hint)
    return try_cast(text, column.type)


def time_ms(text: SparkColumn, unit: Unit) -> SparkColumn:
    """A record's own time in ms: an integer in `unit` (rounded down), or ISO text. Null where it is neither."""
    micros = _unit_micros(text, unit)
    counted = _floor_ns(text, 1_000_000) if unit == "ns" else F.unix_millis(F.timestamp_micros(micros))
    found = F.coalesce(counted, F.unix_millis(_iso_timestamp(text)))
    return F.when(found >= 0, found)


def exact_decimal(text: SparkColumn, precision: int, scale: int) -> SparkColumn:
    """`text` as a decimal, null where that would round it: only zeros at the end may go."""
    found = try_cast(text, f"decimal({precision},{scale})")
    plain = rf"^\s*[+-]?(?:\d+\.?\d{{0,{scale}}}0*|\.\d{{1,{max(scale, 1)}}}0*)\s*$"
    return F.when(text.rlike(plain) | (text.rlike(_EXPONENT) & _fits(text, scale)), found)


def _fits(text: SparkColumn, scale: int) -> SparkColumn:
    """True where a number with an exponent has no more than `scale` digits behind the point."""
    digits = F.concat(F.regexp_extract(text, _EXPONENT, 1), F.regexp_extract(text, _EXPONENT, 2))
    fraction = F.length(F.regexp_extract(text, _EXPONENT, 2))
    power = try_cast(F.regexp_extract(text, _EXPONENT, 3), "int")
    significant = F.length(F.regexp_replace(digits, "0+$", ""))
    return (significant == 0) | (fraction - power - (F.length(digits) - significant) <= scale)


def _signed_text(digits: SparkColumn) -> SparkColumn:
    """Hex digits of a big-endian two's complement integer of 1 to 16 bytes as decimal digits, else null."""
    size = F.length(digits)
    short = F.conv(_sign_extended(digits, 16), 16, -10)
    wide = _wide_text(_sign_extended(digits, _MAX_HEX_DIGITS), digits >= "8")
    return F.when(size.between(1, 16), short).when(size.between(17, _MAX_HEX_DIGITS), wide)


def _wide_text(digits: SparkColumn, is_negative: SparkColumn) -> SparkColumn:
    """32 hex digits, two's complement, as decimal digits; null beyond 38 of them. -n is the complement of n, less 1."""
    flipped = F.when(is_negative, F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")).otherwise(digits)
    one, shift = F.lit("1").cast("decimal(38,0)"), F.lit(str(2**32)).cast("decimal(10,0)")

    def add_word(total: SparkColumn, word: SparkColumn) -> SparkColumn:
        return F.try_add(F.try_multiply(total, shift), F.conv(word, 16, 10).cast("decimal(38,0)")).cast("decimal(38,0)")

    def signed(total: SparkColumn) -> SparkColumn:
        below_zero = F.concat(F.lit("-"), F.try_add(total, one).cast("string"))
        return F.when(is_negative, below_zero).otherwise(total.cast("string"))

    words = F.array(*[F.substring(flipped, 1 + 8 * index, 8) for index in range(4)])
    return F.aggregate(words, F.lit("0").cast("decimal(38,0)"), add_word, signed)


def _sign_extended(digits: SparkColumn, size: int) -> SparkColumn:
    return F.when(digits >= "8", F.lpad(digits, size, "F")).otherwise(F.lpad(digits, size, "0"))


def _bits_text(digits: SparkColumn) -> SparkColumn:
    """`io.debezium.data.Bits`: up to 64 bits, least significant byte first, as decimal digits."""
    swapped = F.concat(*[F.substring(F.rpad(digits, 16, "0"), 15 - 2 * index, 2) for index in range(8)])
    return F.when(F.length(digits).between(1, 16), F.conv(swapped, 16, 10))


def _float(text: SparkColumn, type_name: str) -> SparkColumn:
    """-0.0 becomes 0.0; a finite text that overflows to infinity is refused."""
    found = try_cast(text, type_name) + F.lit(0.0).cast(type_name)
    is_finite = F.abs(found) < F.lit(float("inf")).cast(type_name)
    return F.when(text.rlike(_FLOAT) & (is_finite | F.isnan(found) | text.rlike(_INFINITE)), found)


def _date(text: SparkColumn, unit: Unit | None, hint: Hint | None, *, bare_days: bool) -> SparkColumn:
    iso = F.when(text.rlike(_DATE), try_cast(F.substring_index(F.substring_index(text, "T", 1), " ", 1), "date"))
    found = [iso]
    micros = _hinted_micros(text, unit, hint)
    if micros is not None:
        found.append(F.when(micros % _DAY_MICROS == 0, F.timestamp_micros(micros).cast("date")))
    if unit is None and bare_days:
        days = F.date_add(F.lit("1970-01-01").cast("date"), F.when(text.rlike(_BARE_DAYS), try_cast(text, "int")))
        found.append(days if hint is None else F.when(hint.name.isNull(), days))
    return F.coalesce(*found)


def _timestamp(text: SparkColumn, unit: Unit | None, hint: Hint | None) -> SparkColumn:
    micros = _hinted_micros(text, unit, hint)
    iso = _iso_timestamp(text)
    return iso if micros is None else F.coalesce(iso, F.timestamp_micros(micros))


def _iso_timestamp(text: SparkColumn) -> SparkColumn:
    """ISO text; without a zone it is UTC, which is what the session's zone must be."""
    return F.when(text.rlike(_TIMESTAMP), try_cast(text, "timestamp")).when(
        text.rlike(_MINUTES), try_cast(F.regexp_replace(text, _MINUTES, "$1:00$2"), "timestamp")
    )


def _hinted_micros(text: SparkColumn, unit: Unit | None, hint: Hint | None) -> SparkColumn | None:
    """Microseconds by the configured unit, else by what the message says; `None` where neither can say anything."""
    if unit is not None:
        return _unit_micros(text, unit)
    if hint is None:
        return None
    factor = F.when(hint.name.isin(*_UNIT_NAMES["days"]), F.lit(_MICROS["days"]).cast("bigint"))
    for counted in ("ms", "us"):
        factor = factor.when(hint.name.isin(*_UNIT_NAMES[counted]), F.lit(_MICROS[counted]).cast("bigint"))
    nanos = F.when(hint.name.isin(*_UNIT_NAMES["ns"]), _unit_micros(text, "ns"))
    return F.coalesce(F.try_multiply(try_cast_integer(text, "bigint"), factor), nanos)


def _unit_micros(text: SparkColumn, unit: Unit) -> SparkColumn:
    """A count of `unit` as microseconds; null where it is no number, too great, or finer than a microsecond."""
    count = try_cast_integer(text, "bigint")
    if unit == "ns":
        return F.when(count % 1000 == 0, _floor_ns(text, 1000))
    factor = F.lit(_MICROS[unit])
    whole = F.try_multiply(count, factor.cast("bigint"))
    if unit not in ("s", "ms"):
        return whole
    digits = 6 if unit == "s" else 3
    parts = whole_to_bigint(exact_decimal(text, 19 + digits, digits) * factor.cast("decimal(7,0)"))
    return F.coalesce(whole, F.when(text.rlike(r"^\s*-?\d+\.\d+\s*$"), parts))


def _floor_ns(text: SparkColumn, divisor: int) -> SparkColumn:
    """A count of nanoseconds divided by `divisor`, rounded down: in decimals, since `/` on integers is a double."""
    count = F.when(text.rlike(_INTEGER), try_cast(text, "decimal(19,0)"))
    return whole_to_bigint(F.floor(count / F.lit(divisor).cast("decimal(10,0)")))
