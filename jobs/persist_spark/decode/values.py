"""Text leaves to typed values, strictly: a text that is not exactly one value of its type is null, and becomes an err.

    raw text --texts--> text without a mark; the bytes of base64 --numbers--> text of a number --value--> typed

Three steps, each to be its own projection, since Spark writes an expression out again wherever it is used: nested, they
would grow to megabytes of generated code. A step without work for a field gives no column.

A value is null if its text is missing or null, and if the text is not such a value: out of range, to be rounded,
misspelled. So a value is bad if it is null and its text is not. Nothing here raises at run time, whatever the session's
ANSI mode, and the time for a text grows with its length and no faster (`persist_spark.decode.exact`).
`docs/reference/types.md` lists what each type accepts.
"""

from __future__ import annotations

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from persist_core.time_text import UTC_ZONE
from persist_spark.compat import try_cast, try_cast_integer
from persist_spark.decode.encoding import Encoding, Field
from persist_spark.decode.exact import MAX_CHARS, bits_text, bounded, exact_decimal, signed_text
from persist_spark.decode.json import is_number, without_mark
from persist_spark.decode.times import date_of, finite, instant_of, is_computable, iso_timestamp, timestamp_of

_FLOAT = r"(?i)^\s*+[+-]?(?:(?:\d++\.?\d*+|\.\d++)(?:e[+-]?\d++)?+|nan|inf|infinity)\s*+$"
_INFINITE = r"(?i)inf"
_WORD = r"^\s*+\w++\s*+$"  # of a boolean: a cast takes control characters for blanks
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_HEX = r"^(?:0[xX]|\\x)?((?:[0-9a-fA-F]{2})*)$"  # DMS and Postgres write a prefix
_TRUE = "true"  # a boolean as a text leaf, and base64 of three bytes

_CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_BITS = "io.debezium.data.Bits"
TWO_NUMBERS = (
    "it may be digits or base64, and no schema says which: set source.decimals, or decimals of the column, to string or"
    " precise"
)
NO_SUCH_TIME = "the clocks of {zone} skip or repeat this time: write it with an offset"
TWO_BYTES = "it may be hex or base64: set source.binary, or binary of the column, to hex or base64"


def texts(field: Field, encoding: Encoding) -> dict[str, SparkColumn]:
    """Step 1: `text_<raw>`, and the hex digits of what may be base64 in `hex_<raw>`."""
    if not encoding.marked or field.column.type in ("string", "json"):
        return {}
    raw, text = F.col(field.raw), without_mark(F.col(field.raw))
    found = {f"text_{field.raw}": text if field.column.type == "binary" else bounded(text)}
    if field.may_be_base64(encoding):
        raw = bounded(raw)
        quoted = F.when(~is_number(raw), raw)
        if field.decimal:  # VariableScaleDecimal: {"scale": .., "value": ..}
            quoted = F.when(raw.startswith("{"), F.get_json_object(raw, "$.value")).otherwise(quoted)
        # Spark ignores blanks in base64, and would find a number in "a lot": only canonical text counts.
        found[f"hex_{field.raw}"] = F.hex(F.try_to_binary(F.when(quoted.rlike(_BASE64), quoted), F.lit("base64")))
    return found


def numbers(field: Field, encoding: Encoding) -> dict[str, SparkColumn]:
    """Step 2: `number_<raw>`, the text of a number in any encoding; null if that is ambiguous. And `Field.iso`.

    A bare number is one. Of a quoted text the message's schema says what it is; without a schema, `encoding.decimals`.
    If that says nothing, a text that may be base64 is not a number: "1234" may also be the bytes of another one.
    """
    if field.column.type == "timestamp" and not field.is_typed:
        return {field.iso: iso_timestamp(_text(field, encoding))}
    if not field.may_be_base64(encoding):
        return {}
    raw, text, digits = F.col(field.raw), F.col(f"text_{field.raw}"), F.col(f"hex_{field.raw}")
    number = F.when(is_number(raw), text)
    if field.decimal:  # VariableScaleDecimal
        own_scale = F.get_json_object(F.when(raw.startswith("{"), bounded(raw)), "$.scale")
        number = number.when(raw.startswith("{"), _unscaled(digits, try_cast(without_mark(own_scale), "int")))
    if field.hint:
        hint = field.hint
        number = (
            number.when(hint.name == _CONNECT_DECIMAL, _unscaled(digits, try_cast(hint.scale, "int")))
            .when(hint.name == _BITS, bits_text(digits))
            .when(hint.type != "bytes", text)
            .when(hint.type.isNotNull(), F.lit(None).cast("string"))
        )
    if encoding.decimals == "precise":
        scale = F.lit(field.decimal[1] if field.decimal else 0)
        number = number.when(text != _TRUE, _unscaled(digits, scale))
    elif encoding.decimals == "string":
        number = number.otherwise(text)
    else:
        number = number.when(digits.isNull(), text)
    return {f"number_{field.raw}": number}


def _unscaled(digits: SparkColumn, scale: SparkColumn) -> SparkColumn:
    """The text of a decimal from the hex digits of its unscaled integer; null without either."""
    return F.concat(signed_text(digits), F.lit("E"), F.try_subtract(F.lit(0), scale).cast("string"))


def value(field: Field, encoding: Encoding) -> SparkColumn:
    """Step 3: the value as its column's type, null if the text is not exactly one."""
    column, raw = field.column, F.col(field.raw)
    if field.is_typed:
        found = try_cast(raw, column.type if column.type != "json" else "string")
        if column.type in ("date", "timestamp"):
            found = finite(found, column.type)
        if field.is_local and encoding.zone != UTC_ZONE:
            return instant_of(found, encoding.zone)
        return found + F.lit(0.0).cast(column.type) if column.type in ("float", "double") else found
    if column.type in ("string", "json"):
        return encoding.plain(raw)
    if column.type == "binary":  # a bare number keeps its mark, and so is not bytes
        return _bytes(raw, field, encoding)
    text = _text(field, encoding)
    number = F.col(f"number_{field.raw}") if field.may_be_base64(encoding) else text
    if field.decimal:
        exact = exact_decimal(number, *field.decimal)
        if not field.may_be_base64(encoding):
            return exact
        by_construction = F.col(f"hex_{field.raw}").isNotNull() & number.endswith(f"E{-field.decimal[1]}")
        return F.when(by_construction, try_cast(number, column.type)).otherwise(exact)
    if field.is_integer:
        # 5.0 and 2.0E10 are whole numbers too: doubles are written so. A cast from a decimal wraps around on 3.5.
        rare = exact_decimal(number, 38, 0).cast("string")
        return F.coalesce(try_cast_integer(number, column.type), try_cast(rare, column.type))
    if column.type in ("float", "double"):
        return _float(text, column.type)
    if column.type == "date":
        return date_of(text, field.unit, field.hint)
    if column.type == "timestamp":
        found = timestamp_of(text, F.col(field.iso), field.unit, field.hint, encoding.zone)
        return instant_of(found, encoding.zone) if field.is_local and encoding.zone != UTC_ZONE else found
    return try_cast(F.when(text.rlike(_WORD), text), column.type)


def _text(field: Field, encoding: Encoding) -> SparkColumn:
    return F.col(f"text_{field.raw}") if encoding.marked else bounded(F.col(field.raw))


def remedy(field: Field, encoding: Encoding) -> SparkColumn:
    """The remedy for a bad value, for its err's message; empty if the value and the type are enough."""
    raw, found = F.col(field.raw), F.lit("")
    if not field.is_typed and field.column.type not in ("string", "json", "binary"):
        size = F.octet_length(without_mark(raw) if encoding.marked else raw)
        shown = F.concat(F.lit("; it has "), size.cast("string"), F.lit(f" bytes, expected at most {MAX_CHARS}"))
        found = F.when(size > MAX_CHARS, shown).otherwise(found)
    if field.column.type == "binary" and encoding.binary is None:
        found = F.when(raw.rlike(_HEX), F.lit(f"; {TWO_BYTES}")).otherwise(found)
    if field.may_be_base64(encoding) and encoding.decimals is None:
        is_open = F.col(f"hex_{field.raw}").isNotNull() & ~raw.startswith("{")  # not a VariableScaleDecimal
        found = F.when(is_open, F.lit(f"; {TWO_NUMBERS}")).otherwise(found)
    if field.hint and field.column.type in ("date", "timestamp"):
        said = F.concat(F.lit("; the message's schema says "), field.hint.name)
        found = F.concat(found, F.coalesce(said, F.lit("")))
    if field.column.type == "timestamp" and encoding.zone != UTC_ZONE:
        if field.is_local and not field.is_typed:
            is_time = raw.isNotNull()
        else:  # the first and the last time that can be stored mean infinity
            is_time = is_computable(try_cast(raw, "timestamp") if field.is_typed else F.col(field.iso))
        found = F.when(is_time, F.lit(f"; {NO_SUCH_TIME.format(zone=encoding.zone)}")).otherwise(found)
    return found


def _bytes(text: SparkColumn, field: Field, encoding: Encoding) -> SparkColumn:
    """Base64 or hex, exactly: Spark's own decoders ignore blanks and accept an odd number of hex digits."""
    from_base64 = F.try_to_binary(F.when(text.rlike(_BASE64), text), F.lit("base64"))
    from_hex = F.unhex(F.when(text.rlike(_HEX), F.regexp_extract(text, _HEX, 1)))
    found = from_hex if encoding.binary == "hex" else F.when(text != _TRUE, from_base64)
    if encoding.binary is None:
        found = F.when((text == "") | ~text.rlike(_HEX), found)
    if field.hint:  # of Connect's type `bytes` Kafka's JSON converter writes base64
        found = F.when(field.hint.type == "bytes", from_base64).otherwise(found)
    return found


def _float(text: SparkColumn, type_name: str) -> SparkColumn:
    """-0.0 becomes 0.0; a finite text that overflows to infinity is null."""
    found = try_cast(text, type_name) + F.lit(0.0).cast(type_name)
    is_finite = F.abs(found) < F.lit(float("inf")).cast(type_name)
    return F.when(text.rlike(_FLOAT) & (is_finite | F.isnan(found) | text.rlike(_INFINITE)), found)
