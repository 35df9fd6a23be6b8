"""Exact numbers: decimal text without rounding, and integers of up to 16 bytes given as hex digits.

The time for a text grows with its length and no faster: quantifiers are possessive, so that no expression goes back,
and what takes the square of the length (a cast to decimal) sees only what `bounded` lets through.
"""

from __future__ import annotations

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from persist_spark.compat import try_cast

MAX_CHARS = 2_000  # of a number, a time or a boolean; the longest double written in full has 1,077
_EXPONENT = r"^\s*+[+-]?(\d*+)\.?(\d*+)[eE]([+-]?\d{1,4})\s*+$"
_NUMBER = r"^\s*+([+-]?)(?=\.?\d)(\d*+)(?:\.(\d*+))?(?:[eE]([+-]?\d{1,9}))?\s*+$"
_MIDDLE = 5_000_000_000  # more than the power of ten of any number, and any sum with it has ten digits
_MAX_HEX_DIGITS = 32  # 16 bytes, 127 bits and a sign: more than the 38 digits that a decimal can have


def bounded(text: SparkColumn) -> SparkColumn:
    """`text`, null if it is longer than any number or time that is accepted."""
    return F.when(F.octet_length(text) <= MAX_CHARS, text)


def exact_decimal(text: SparkColumn, precision: int, scale: int) -> SparkColumn:
    """`text` as a decimal, null if it would need rounding: only zeros at the end may be dropped."""
    found = try_cast(text, f"decimal({precision},{scale})")
    fraction = rf"\d{{0,{scale}}}+0*+" if scale else "0*+"
    plain = rf"^\s*+[+-]?(?:\d++(?:\.{fraction})?+|\.(?=\d){fraction})\s*+$"
    return F.when(text.rlike(plain) | (text.rlike(_EXPONENT) & _fits(text, scale)), found)


def _fits(text: SparkColumn, scale: int) -> SparkColumn:
    """True if a number with an exponent has at most `scale` digits after the point."""
    digits = F.concat(F.regexp_extract(text, _EXPONENT, 1), F.regexp_extract(text, _EXPONENT, 2))
    fraction = F.length(F.regexp_extract(text, _EXPONENT, 2))
    power = try_cast(F.regexp_extract(text, _EXPONENT, 3), "int")
    significant = F.length(F.regexp_replace(digits, "(?<!0)0++$", ""))
    return (significant == 0) | (fraction - power - (F.length(digits) - significant) <= scale)


def is_number(text: SparkColumn) -> SparkColumn:
    """True for the text of any number that is not too long, an exponent included."""
    return F.octet_length(text).between(1, MAX_CHARS) & text.rlike(_NUMBER)


def number_order(text: SparkColumn) -> SparkColumn:
    """A text that compares with others as its number does, exactly; null for the text of no number.

    A sign, the power of ten of the first significant digit, and the significant digits; in a negative number each
    digit is its complement to 9, and the end is above all digits.
    """
    sign, whole, fraction, power = (F.regexp_extract(bounded(text), _NUMBER, group) for group in range(1, 5))
    digits = F.concat(whole, fraction)
    significant = F.regexp_replace(digits, "^0++", "")
    place = F.coalesce(try_cast(power, "bigint"), F.lit(0)) + F.length(whole) - F.length(digits) + F.length(significant)
    size = F.concat((place + F.lit(_MIDDLE)).cast("string"), F.regexp_replace(significant, "(?<!0)0++$", ""))
    negative = F.concat(F.lit("0"), F.translate(size, "0123456789", "9876543210"), F.lit(":"))
    found = F.when(significant == "", F.lit("1")).when(sign == "-", negative).otherwise(F.concat(F.lit("2"), size))
    return F.when(is_number(text), found)


def signed_text(digits: SparkColumn) -> SparkColumn:
    """Hex digits of a big-endian two's complement integer of 1 to 16 bytes as decimal digits, else null."""
    size = F.length(digits)
    extended = F.when(digits >= "8", F.lpad(digits, 16, "F")).otherwise(F.lpad(digits, 16, "0"))
    short = F.conv(extended, 16, -10)
    return F.when(size.between(1, 16), short).when(size.between(17, _MAX_HEX_DIGITS), _wide_text(digits))


def _wide_text(digits: SparkColumn) -> SparkColumn:
    """17 to 32 hex digits, two's complement, as decimal digits; null beyond 38. -n is the complement of n, less 1."""
    is_negative = digits >= "8"
    flipped = F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")
    magnitude = F.lpad(F.when(is_negative, flipped).otherwise(digits), _MAX_HEX_DIGITS, "0")
    first, second = (F.conv(F.substring(magnitude, at, 16), 16, 10).cast("decimal(20,0)") for at in (1, 17))
    more = second + F.when(is_negative, F.lit("1").cast("decimal(1,0)")).otherwise(F.lit("0").cast("decimal(1,0)"))
    size = F.try_add(F.try_multiply(first, F.lit(str(2**64)).cast("decimal(20,0)")), more).cast("decimal(38,0)")
    return F.concat(F.when(is_negative, F.lit("-")).otherwise(F.lit("")), size.cast("string"))


def bits_text(digits: SparkColumn) -> SparkColumn:
    """`io.debezium.data.Bits`: up to 64 bits, least significant byte first, as decimal digits."""
    swapped = F.regexp_replace(F.rpad(digits, 16, "0"), "(..)" * 8, "$8$7$6$5$4$3$2$1")
    return F.when(F.length(digits).between(1, 16), F.conv(swapped, 16, 10))
