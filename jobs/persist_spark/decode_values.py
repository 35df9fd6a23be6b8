"""Text leaves to typed values, strictly: what does not fit its type exactly is null, and the caller makes it an err.

Every function takes the text of one field (null where the field is missing or null) and returns the typed value, or
null where the text is no such value: out of range, rounded, misspelt. So a value is bad where the text is not null and
the value is. Nothing here raises at run time, whatever the session's ANSI mode.

Where a function takes `Hint`, the source may say what the field is (a Debezium message with its schema).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from persist_core.config import Unit
from persist_core.schema import Column, decimal_of
from persist_spark.compat import try_cast
from persist_spark.decode_json import is_number, unmarked
from persist_spark.frame import null_of, spark_type

_UNITS: tuple[Unit, ...] = ("days", "ms", "us", "ns")  # what Debezium counts times in
_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1, "days": 86_400_000_000}
_DAY_MICROS = _MICROS["days"]
# A bare integer in a date column is days where it can't be anything finer: 9,999,999 days lie beyond the year 29,000,
# and as milliseconds they are no midnight (but for 0, which is 1970-01-01 in every unit).
_BARE_DAYS = r"^-?\d{1,7}$"
_FLOAT = r"(?i)^\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf|infinity)\s*$"
_INFINITE = r"(?i)inf"
_INTEGER = r"^\s*[+-]?\d{1,19}\s*$"
_DATE = r"^[+-]?\d{4,7}-\d{2}-\d{2}(?:[T ]00:00(?::00(?:\.0+)?)?Z?)?$"
_TIMESTAMP = (
    r"^[+-]?\d{4,6}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6}0*)?(?: ?(?:Z|UTC|[+-]\d{2}(?::?\d{2})?))?)?$"
)
_MINUTES = r"^([+-]?\d{4,6}-\d{2}-\d{2}[T ]\d{2}:\d{2})((?:Z|[+-]\d{2}(?::?\d{2})?)?)$"
_MAX_BASE64_BYTES = 16  # 127 bits and a sign: more than the 38 digits that a decimal can have

# Names of Debezium's and Kafka Connect's logical types, and what they count in.
_UNITS_BY_NAME: dict[str, Unit] = {
    "io.debezium.time.Date": "days",
    "org.apache.kafka.connect.data.Date": "days",
    "io.debezium.time.Timestamp": "ms",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
}
_CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_BITS = "io.debezium.data.Bits"


@dataclass(frozen=True)
class Hint:
    """What a message says of a field, each null where it says nothing: Connect type, logical name, decimal scale."""

    type: SparkColumn
    name: SparkColumn
    scale: SparkColumn


@dataclass(frozen=True)
class Encoding:
    """How a format writes values.

    `marked`: numbers are marked (`decode_json`). `decimals`: `precise` where quoted decimals are base64 of the unscaled
    integer, else `text`. `binary`: how bytes are written. `bare_days`: a bare integer in a date column may be days.
    """

    marked: bool = True
    decimals: Literal["precise", "text"] = "text"
    binary: Literal["base64", "hex"] = "base64"
    bare_days: bool = False

    def plain(self, raw: SparkColumn) -> SparkColumn:
        """The field's text without a mark."""
        return unmarked(raw) if self.marked else raw


def typed(raw: SparkColumn, column: Column, encoding: Encoding, unit: Unit | None, hint: Hint | None) -> SparkColumn:
    """The value of one field as its column's type, null where it is not exactly one."""
    if decimal_of(column.type):
        return _decimal(raw, column.type, encoding, hint)
    if column.type in ("int", "bigint"):
        return _integer(raw, column.type, encoding, hint)
    text = encoding.plain(raw)
    if column.type in ("string", "json"):
        return text
    if column.type in ("float", "double"):
        return _float(text, column.type)
    if column.type == "binary":
        return F.try_to_binary(text, F.lit(encoding.binary))
    if column.type == "date":
        return _date(text, unit, hint, bare_days=encoding.bare_days)
    if column.type == "timestamp":
        return _timestamp(text, unit, hint)
    return try_cast(text, column.type)


def time_ms(text: SparkColumn, unit: Unit) -> SparkColumn:
    """A record's own time in ms: an integer in `unit` (rounded down), or ISO text. Null where it is neither."""
    counted = (
        _floor_ns(text, 1_000_000) if unit == "ns" else F.unix_millis(F.timestamp_micros(_unit_micros(text, unit)))
    )
    value = F.coalesce(counted, F.unix_millis(_iso_timestamp(text)))
    return F.when(value >= 0, value)


def _integer(raw: SparkColumn, type_name: str, encoding: Encoding, hint: Hint | None) -> SparkColumn:
    text = encoding.plain(raw)
    direct = F.when(text.rlike(_INTEGER), try_cast(text, type_name))
    # 5.0 and 2.0E10 are whole numbers too; doubles are written so.
    number = F.when(text.rlike(r"[.eE]"), try_cast(exact_decimal(text, 38, 0), type_name)).otherwise(direct)
    if encoding.decimals != "precise":
        return number
    from_base64 = try_cast(exact_decimal(_unscaled_text(text), 38, 0), type_name)
    # "1234" may be the number or base64 of it: an err asks the user, rather than a guess.
    guessed = F.when(text.rlike(_INTEGER), F.when(F.try_to_binary(text, F.lit("base64")).isNull(), direct)).otherwise(
        from_base64
    )
    if hint is None:
        return F.when(is_number(raw), number).otherwise(guessed)
    return (
        F.when(is_number(raw) | (hint.type == "string"), number)
        .when(hint.name == _CONNECT_DECIMAL, try_cast(exact_decimal(_scaled_text(text, hint.scale), 38, 0), type_name))
        .when(hint.name == _BITS, try_cast(_little_endian(text), type_name))
        .otherwise(guessed)
    )


def _decimal(raw: SparkColumn, type_name: str, encoding: Encoding, hint: Hint | None) -> SparkColumn:
    precision, scale = decimal_of(type_name) or (38, 0)
    text = encoding.plain(raw)
    number = exact_decimal(text, precision, scale)
    if encoding.decimals != "precise":
        return number
    is_base64 = F.try_to_binary(text, F.lit("base64")).isNotNull()
    guessed = F.when(is_base64, try_cast(_scaled_text(text, F.lit(scale)), type_name)).otherwise(number)
    if hint is None:
        return F.when(is_number(raw), number).when(_is_variable(text), _variable(text, type_name)).otherwise(guessed)
    given = F.coalesce(hint.scale, F.lit(scale))
    return (
        F.when(is_number(raw) | (hint.type == "string"), number)
        .when(_is_variable(text), _variable(text, type_name))
        .when(
            (hint.name == _CONNECT_DECIMAL) & (given != scale),
            exact_decimal(_scaled_text(text, given), precision, scale),
        )
        .otherwise(guessed)
    )


def exact_decimal(text: SparkColumn, precision: int, scale: int) -> SparkColumn:
    """`text` as a decimal, null where that would round it: only zeros at the end may go."""
    value = try_cast(text, f"decimal({precision},{scale})")
    plain = rf"^\s*[+-]?(?:\d+\.?\d{{0,{scale}}}0*|\.\d{{1,{max(scale, 1)}}}0*)\s*$"
    exponent = r"^\s*[+-]?(\d*)\.?(\d*)[eE]([+-]?\d{1,4})\s*$"
    digits = F.concat(F.regexp_extract(text, exponent, 1), F.regexp_extract(text, exponent, 2))
    fraction = F.length(F.regexp_extract(text, exponent, 2))
    power = try_cast(F.regexp_extract(text, exponent, 3), "int")
    needed = fraction - power - (F.length(digits) - F.length(F.regexp_replace(digits, "0+$", "")))
    fits = (needed <= scale) | digits.rlike("^0*$")
    return F.when(text.rlike(plain), value).when(text.rlike(exponent) & fits, value)


def _unscaled_text(text: SparkColumn) -> SparkColumn:
    """Base64 of a big-endian two's complement integer of 1 to 16 bytes as decimal digits, else null."""
    raw = F.try_to_binary(text, F.lit("base64"))
    size = F.octet_length(raw)
    digits = F.hex(raw)
    is_negative = digits.rlike("^[89A-F]")
    short = F.conv(_sign_extended(digits, 16, is_negative), 16, -10)
    wide = _wide_text(_sign_extended(digits, 32, is_negative), is_negative)
    return F.when(size.between(1, 8), short).when(size.between(9, _MAX_BASE64_BYTES), wide)


def _wide_text(digits: SparkColumn, is_negative: SparkColumn) -> SparkColumn:
    """32 hex digits, two's complement, as decimal digits; null beyond 38 of them. -n is the complement of n, less 1."""
    flipped = F.when(is_negative, F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")).otherwise(digits)
    total: SparkColumn | None = None
    for index in range(4):
        word = try_cast(F.conv(F.substring(flipped, 1 + 8 * index, 8), 16, 10), "decimal(10,0)")
        weight = F.lit(str(2 ** (32 * (3 - index)))).cast("decimal(29,0)")
        value = F.try_multiply(word, weight)
        total = value if total is None else F.try_add(total, value)
    assert total is not None
    one = F.lit("1").cast("decimal(1,0)")
    return F.when(is_negative, F.concat(F.lit("-"), F.try_add(total, one).cast("string"))).otherwise(
        total.cast("string")
    )


def _scaled_text(text: SparkColumn, scale: SparkColumn) -> SparkColumn:
    """Base64 of an unscaled integer as a number with an exponent, such as `12345E-2`."""
    return F.concat(_unscaled_text(text), F.lit("E"), (-scale.cast("int")).cast("string"))


def _is_variable(text: SparkColumn) -> SparkColumn:
    return text.startswith("{")


def _variable(text: SparkColumn, type_name: str) -> SparkColumn:
    """`io.debezium.data.VariableScaleDecimal`: `{"scale": 2, "value": "<base64>"}`."""
    precision, scale = decimal_of(type_name) or (38, 0)
    row = F.from_json(text, "scale int, value string")
    return exact_decimal(_scaled_text(row.getField("value"), row.getField("scale")), precision, scale)


def _little_endian(text: SparkColumn) -> SparkColumn:
    """`io.debezium.data.Bits`: up to 64 bits, least significant byte first, as decimal digits."""
    raw = F.try_to_binary(text, F.lit("base64"))
    digits = F.hex(raw)
    size = F.octet_length(raw)
    swapped = F.concat(*[F.substring(F.rpad(digits, 16, "0"), 15 - 2 * index, 2) for index in range(8)])
    return F.when(size.between(1, 8), F.conv(swapped, 16, 10))


def _sign_extended(digits: SparkColumn, size: int, is_negative: SparkColumn) -> SparkColumn:
    return F.when(is_negative, F.lpad(digits, size, "F")).otherwise(F.lpad(digits, size, "0"))


def _float(text: SparkColumn, type_name: str) -> SparkColumn:
    """-0.0 becomes 0.0; a finite text that overflows to infinity is refused."""
    value = try_cast(text, type_name) + F.lit(0.0).cast(type_name)
    infinite = F.abs(value) == F.lit(float("inf")).cast(type_name)
    return F.when(text.rlike(_FLOAT) & (~infinite | text.rlike(_INFINITE)), value)


def _date(text: SparkColumn, unit: Unit | None, hint: Hint | None, *, bare_days: bool) -> SparkColumn:
    iso = F.when(text.rlike(_DATE), try_cast(F.regexp_extract(text, r"^[^T ]+", 0), "date"))
    micros = _hinted_micros(text, unit, hint)
    counted = None
    if micros is not None:
        counted = F.when(micros % _DAY_MICROS == 0, F.timestamp_micros(micros).cast("date"))
    if unit is None and bare_days:
        days = F.when(text.rlike(_BARE_DAYS), try_cast(text, "int"))
        bare = F.date_add(F.lit("1970-01-01").cast("date"), days)
        counted = bare if counted is None else F.coalesce(counted, F.when(hint_is_silent(hint), bare))
    return iso if counted is None else F.coalesce(counted, iso)


def _timestamp(text: SparkColumn, unit: Unit | None, hint: Hint | None) -> SparkColumn:
    micros = _hinted_micros(text, unit, hint)
    iso = _iso_timestamp(text)
    if micros is None:
        return iso
    return F.coalesce(F.timestamp_micros(micros), iso)


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
    found = null_of("bigint")
    for counted in _UNITS:
        names = [name for name, unit_of_name in _UNITS_BY_NAME.items() if unit_of_name == counted]
        found = F.when(hint.name.isin(names), _unit_micros(text, counted)).otherwise(found)
    return found


def _unit_micros(text: SparkColumn, unit: Unit) -> SparkColumn:
    """A count of `unit` as microseconds; null where it is no number, too great, or finer than a microsecond."""
    count = F.when(text.rlike(_INTEGER), try_cast(text, "bigint"))
    if unit == "ns":
        return F.when(count % 1000 == 0, _floor_ns(text, 1000))
    whole = F.try_multiply(count, F.lit(_MICROS[unit]).cast("bigint"))
    if unit not in ("s", "ms"):
        return whole
    digits = 6 if unit == "s" else 3
    parts = exact_decimal(text, 19 + digits, digits) * F.lit(_MICROS[unit]).cast("decimal(7,0)")
    return F.when(text.rlike(r"\."), try_cast(parts, "bigint")).otherwise(whole)


def _floor_ns(text: SparkColumn, divisor: int) -> SparkColumn:
    """A count of nanoseconds divided by `divisor`, rounded down: in decimals, since `/` on integers is a double."""
    count = F.when(text.rlike(_INTEGER), try_cast(text, "decimal(19,0)"))
    return try_cast(F.floor(count / F.lit(divisor).cast("decimal(10,0)")), "bigint")


def hint_is_silent(hint: Hint | None) -> SparkColumn:
    """True where the message does not say what the field is."""
    return F.lit(True) if hint is None else hint.name.isNull()


def null_value(column: Column) -> SparkColumn:
    """A typed null for `column`."""
    return null_of(column.type)


def same_type(value: SparkColumn, column: Column) -> SparkColumn:
    """`value` under exactly the column's Spark type, so that frames of several formats can be united."""
    return value.cast(spark_type(column.type))
