"""Texts to dates and times, strictly: ISO text, or a count since 1970 in a unit that is known. Null for anything else.

A bare count has no unit: the message's schema names it, else the collection does, else it is not a time.
"""

from __future__ import annotations

from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from persist_core.config.column import Unit
from persist_core.errors import ConfigError
from persist_core.time_text import UTC_ZONE, format_time, local_of
from persist_spark.compat import ENGINE_ERRORS, server_of, try_cast, try_cast_integer, whole_to_bigint
from persist_spark.decode.encoding import Hint
from persist_spark.decode.exact import bounded, exact_decimal

_MICROS: dict[Unit, int] = {"s": 1_000_000, "ms": 1_000, "us": 1, "days": 86_400_000_000}
_WEEK, _FIRST_CHECKED, _LAST_CHECKED = 7 * 86_400, 946_684_800, 2_145_916_800  # in seconds
_CHECKED: set[tuple[str, str]] = set()  # servers, each with a zone that `check_zone` has accepted there
_DAY_MICROS = _MICROS["days"]
_LAST_COMPUTABLE = 2**63 - 1 - 7 * _DAY_MICROS
_INTEGER = r"^\s*[+-]?\d{1,19}\s*$"
# Above 9999 Java and JavaScript (+010000) write a sign, PostgreSQL none; 02026 is what no writer means.
_YEAR = r"(?:\d{4}|[1-9]\d{4,6}|[+-]\d{4,7})"
_DATE = rf"^({_YEAR}-\d{{2}}-\d{{2}})(?:[T ]00:00(?::00(?:\.0++)?+)?)?Z?$"
_ZONE = r"(?: ?(?:Z|UTC|[+-]\d{2}(?::?\d{2})?))?"
_TIMESTAMP = rf"^{_YEAR}-\d{{2}}-\d{{2}}(?:[T ]\d{{2}}:\d{{2}}:\d{{2}}(?:\.\d{{1,6}}+0*+)?+{_ZONE})?$"
_HAS_OFFSET = r":.*(?:Z|UTC|[+-]\d{2}(?::?\d{2})?)$"
_MINUTES = rf"^({_YEAR}-\d{{2}}-\d{{2}}[T ]\d{{2}}:\d{{2}})({_ZONE})$"  # Java's form of a time without seconds
# Names of Debezium's and Kafka Connect's logical types, and what they count in.
_UNIT_NAMES: dict[Unit, tuple[str, ...]] = {
    "days": ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date"),
    "ms": ("io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp"),
    "us": ("io.debezium.time.MicroTimestamp",),
    "ns": ("io.debezium.time.NanoTimestamp",),
}
_LOGICAL = r"^(?:io\.debezium\.time\.|org\.apache\.kafka\.connect\.data\.(?:Date|Time|Timestamp)$)"


def time_ms(text: SparkColumn, unit: Unit, zone: str) -> SparkColumn:
    """A record's own time in ms: an integer in `unit` (rounded down), or ISO text. Null if it is neither."""
    text = bounded(text)
    micros = _unit_micros(text, unit)
    counted = floor_ns(text, 1_000_000) if unit == "ns" else F.unix_millis(F.timestamp_micros(micros))
    found = F.coalesce(counted, F.unix_millis(_in_zone(text, iso_timestamp(text), zone)))
    return F.when(found >= 0, found)


def date_of(text: SparkColumn, unit: Unit | None, hint: Hint | None) -> SparkColumn:
    iso = try_cast(F.nullif(F.regexp_extract(text, _DATE, 1), F.lit("")), "date")
    micros = _counted_micros(text, unit, hint)
    if micros is None:
        return iso
    return F.coalesce(iso, F.when(micros % _DAY_MICROS == 0, F.timestamp_micros(micros).cast("date")))


def timestamp_of(text: SparkColumn, iso: SparkColumn, unit: Unit | None, hint: Hint | None, zone: str) -> SparkColumn:
    """`iso`: `iso_timestamp` of the text."""
    micros = _counted_micros(text, unit, hint)
    iso = _in_zone(text, iso, zone)
    return iso if micros is None else F.coalesce(iso, F.timestamp_micros(micros))


def _in_zone(text: SparkColumn, iso: SparkColumn, zone: str) -> SparkColumn:
    return iso if zone == UTC_ZONE else F.when(text.rlike(_HAS_OFFSET), iso).otherwise(instant_of(iso, zone))


def instant_of(local: SparkColumn, zone: str) -> SparkColumn:
    """The instant at which the clocks of `zone` show what `local` shows in UTC.

    Null if they skip or repeat that time, and unless `is_computable`. Of the two readings of a repeated time Spark
    takes the earlier one. The later one has the offset that holds a day after: clocks do not change twice a day.
    """
    first = F.unix_micros(F.to_utc_timestamp(local, zone))
    next_day = first + F.lit(_DAY_MICROS)
    offset = F.unix_micros(F.from_utc_timestamp(F.timestamp_micros(next_day), zone)) - next_day
    second = F.unix_micros(local) - offset  # a sum of two times may overflow
    is_skipped = F.from_utc_timestamp(F.timestamp_micros(first), zone) != local
    is_repeated = (second != first) & (F.from_utc_timestamp(F.timestamp_micros(second), zone) == local)
    return F.when(is_computable(local), F.when(~is_skipped & ~is_repeated, F.timestamp_micros(first)))


def is_computable(local: SparkColumn) -> SparkColumn:
    """True if it is a week away from the first and the last time that Spark can hold: offsets are of hours."""
    return F.unix_micros(local).between(F.lit(-_LAST_COMPUTABLE), F.lit(_LAST_COMPUTABLE))


def finite(found: SparkColumn, type_name: str) -> SparkColumn:
    """A stored date or timestamp, null for the first and last ones that can be stored: writers mean infinity."""
    count, last = (F.unix_date(found), 2**31 - 1) if type_name == "date" else (F.unix_micros(found), 2**63 - 1)
    return F.when(count.between(1 - last, last - 1), found)


def midnight_ms(date: SparkColumn, zone: str) -> SparkColumn:
    """The first instant of a date in ms, if the clocks skip or repeat its midnight too. Null unless `is_computable`."""
    last = F.lit(_LAST_COMPUTABLE // _DAY_MICROS)
    found = F.unix_millis(F.to_utc_timestamp(date.cast("timestamp_ltz"), zone))
    return F.when(F.unix_date(date).between(-last, last), found)


def check_zone(spark: SparkSession, zone: str) -> None:
    """Refuse a zone of which Java and Python have other rules: paths and values would be read in two ways.

    Compares one instant a week from 2000 to 2037: of older times the two databases keep different corrections. A
    process does it once for each server, without a Spark job: the optimizer computes it. Raises `ConfigError`.
    """
    if zone == UTC_ZONE or (asked := (server_of(spark), zone)) in _CHECKED:
        return
    instants = range(_FIRST_CHECKED, _LAST_CHECKED, _WEEK)
    shown = f"unix_millis(from_utc_timestamp(timestamp_seconds(each), '{zone}'))"
    weeks = f"sequence({instants[0]}L, {instants[-1]}L, {_WEEK}L)"
    try:
        (row,) = spark.sql(f"SELECT transform({weeks}, each -> {shown}) AS shown FROM VALUES (1)").collect()
    except ENGINE_ERRORS as error:
        if zone not in str(error):  # it is not about the zone: Spark itself has failed, maybe not for long
            raise
        raise ConfigError(
            f"timezone {zone}: Java cannot compute with it: {str(error)[:200]}. Update Java, or name another zone of"
            " its rules"
        ) from error
    for second, local in zip(instants, row.shown, strict=True):
        known = local_of(second * 1000, zone)
        if known != local_of(local, UTC_ZONE):
            raise ConfigError(
                f"timezone {zone}: at {format_time(second * 1000)} its clocks show {format_time(max(0, local))} in"
                f" Java and {known.isoformat()} in Python. One of them has an older time zone database: update Java, or"
                " the Python package tzdata and the system's zoneinfo"
            )
    _CHECKED.add(asked)


def iso_timestamp(text: SparkColumn) -> SparkColumn:
    """ISO text; without a zone it is UTC, which is what the session's zone must be."""
    return F.when(text.rlike(_TIMESTAMP), try_cast(text, "timestamp_ltz")).when(
        text.rlike(_MINUTES), try_cast(F.regexp_replace(text, _MINUTES, "$1:00$2"), "timestamp_ltz")
    )


def _counted_micros(text: SparkColumn, unit: Unit | None, hint: Hint | None) -> SparkColumn | None:
    """Microseconds by the unit that the message's schema names, else by the configured one; `None` without either.

    Null for another type of Debezium or Kafka Connect (a year, a time of day, a duration), whatever the unit.
    """
    by_unit = None if unit is None else _unit_micros(text, unit)
    if hint is None:
        return by_unit
    factor = F.when(hint.name.isin(*_UNIT_NAMES["days"]), F.lit(_MICROS["days"]).cast("bigint"))
    for counted in ("ms", "us"):
        factor = factor.when(hint.name.isin(*_UNIT_NAMES[counted]), F.lit(_MICROS[counted]).cast("bigint"))
    nanos = F.when(hint.name.isin(*_UNIT_NAMES["ns"]), _unit_micros(text, "ns"))
    by_schema = F.coalesce(F.try_multiply(try_cast_integer(text, "bigint"), factor), nanos)
    if by_unit is None:
        return by_schema
    return F.when(hint.name.rlike(_LOGICAL), by_schema).otherwise(by_unit)


def _unit_micros(text: SparkColumn, unit: Unit) -> SparkColumn:
    """A count of `unit` as microseconds; null if it is not a number, too large, or finer than a microsecond."""
    count = try_cast_integer(text, "bigint")
    if unit == "ns":
        return F.when(count % 1000 == 0, floor_ns(text, 1000))
    factor = F.lit(_MICROS[unit])
    whole = F.try_multiply(count, factor.cast("bigint"))
    if unit not in ("s", "ms"):
        return whole
    digits = 6 if unit == "s" else 3
    parts = whole_to_bigint(exact_decimal(text, 19 + digits, digits) * factor.cast("decimal(7,0)"))
    return F.coalesce(whole, F.when(text.rlike(r"^\s*-?\d+\.\d+\s*$"), parts))


def floor_ns(text: SparkColumn, divisor: int) -> SparkColumn:
    """A count of nanoseconds divided by `divisor`, rounded down: in decimals, since `/` on integers is a double."""
    count = F.when(text.rlike(_INTEGER), try_cast(text, "decimal(19,0)"))
    return whole_to_bigint(F.floor(count / F.lit(divisor).cast("decimal(10,0)")))
