"""Times without an offset in a collection with a time zone: Spark, `parse_time` and a plain replay agree."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import mktime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from persist_core.errors import ConfigError, InvalidTime
from persist_core.schema import ERR_KEY, ERR_KIND, ERR_MESSAGE, TIME
from persist_core.time_text import first_instant, local_of, parse_time
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.decode import times
from persist_spark.decode.times import check_zone, instant_of, midnight_ms
from tests.sampling import sample
from tests.spark.decode_feed import Feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HALF_HOUR = timedelta(minutes=30)
BERLIN = "Europe/Berlin"


def replay(zone: str, first: datetime, last: datetime) -> dict[datetime, list[datetime]]:
    """Each half hour of local time, and the instants at which the clocks show it: one, none, or two."""
    count = int((last - first) / HALF_HOUR)
    found: dict[datetime, list[datetime]] = {first + n * HALF_HOUR: [] for n in range(count)}
    for n in range(-60, count + 60):
        instant = (first + n * HALF_HOUR).replace(tzinfo=UTC)
        local = instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        if local in found:
            found[local].append(instant)
    return found


@pytest.mark.parametrize("zone", sample([BERLIN, "America/New_York", "Australia/Lord_Howe"], 1, "half hours"))
def test_every_half_hour_of_a_year_equals_a_plain_replay(spark: SparkSession, zone: str) -> None:
    expected = replay(zone, datetime(2026, 1, 1), datetime(2027, 1, 1))
    frame = spark.createDataFrame([(local.replace(tzinfo=UTC),) for local in expected], "local timestamp")
    rows = frame.selectExpr("local", "unix_millis(local) AS ms").withColumn("found", instant_of(frame.local, zone))
    found = {row.ms: row.found_ms for row in rows.selectExpr("ms", "unix_millis(found) AS found_ms").collect()}
    for local, instants in expected.items():
        wanted = ms(instants[0]) if len(instants) == 1 else None
        assert found[ms(local.replace(tzinfo=UTC))] == wanted, local
        if wanted is not None:
            assert parse_time(local.isoformat(), zone=zone) == wanted, local
            continue
        with pytest.raises(InvalidTime, match="repeat" if instants else "skip"):
            parse_time(local.isoformat(), zone=zone)
    assert {len(instants) for instants in expected.values()} == {0, 1, 2}


ZONES = [BERLIN, "America/New_York", "America/Sao_Paulo", "Pacific/Apia", "America/St_Johns"]


@pytest.mark.parametrize("zone", sample(ZONES, 2, "dates"))
def test_a_date_begins_at_the_same_instant_in_spark_and_in_paths(spark: SparkSession, zone: str) -> None:
    days = [datetime(2006, 1, 1) + timedelta(days=day) for day in range(21 * 366)]
    frame = spark.createDataFrame([(day.date(),) for day in days], "day date")
    found = frame.withColumn("start", midnight_ms(frame.day, zone)).collect()
    assert {str(row.day): row.start for row in found} == {str(day.date()): first_instant(day, zone) for day in days}


def ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)


TEXTS = [  # text, its instant in Berlin: none if the clocks skip or repeat it
    ("2026-01-03 09:00:00", "2026-01-03T08:00:00"),
    ("2026-07-03T09:00:00.123456", "2026-07-03T07:00:00.123456"),
    ("2026-07-03T09:00", "2026-07-03T07:00:00"),
    ("2026-07-03", "2026-07-02T22:00:00"),
    ("2026-01-03 09:00:00Z", "2026-01-03T09:00:00"),
    ("2026-01-03 09:00:00+05", "2026-01-03T04:00:00"),
    ("2026-03-29 01:59:59", "2026-03-29T00:59:59"),
    ("2026-03-29 02:30:00", None),
    ("2026-03-29 03:00:00", "2026-03-29T01:00:00"),
    ("2026-10-25 02:30:00", None),
    ("2026-10-25 02:30:00+01:00", "2026-10-25T01:30:00"),
    ("2026-10-25 03:00:00", "2026-10-25T02:00:00"),
    ("9999-12-31", "9999-12-30T23:00:00"),
    ("9999-12-31 00:00:00", "9999-12-30T23:00:00"),
    ("9999-12-31T23:59:59", "9999-12-31T22:59:59"),
    ("9999-03-28 02:30:00", None),
]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_text_without_an_offset_is_local_time(feed: Feed, kind: str) -> None:
    columns: dict[str, Any] = {"id": "int", "at": "timestamp"}
    if kind == "csv":
        lines = ["id,at", *(f"{n},{text}" for n, (text, _) in enumerate(TEXTS))]
    else:
        lines = [f'{{"id": {n}, "at": "{text}"}}' for n, (text, _) in enumerate(TEXTS)]
    found = feed.lines(kind, lines, columns, timezone=BERLIN)
    for row, (text, wanted) in zip(found, TEXTS, strict=True):
        if wanted is None:
            assert row[ERR_KIND] == "value"
            assert row[ERR_MESSAGE].endswith(
                "expected an ISO timestamp; for integers set the column's unit; the clocks of Europe/Berlin skip or"
                " repeat this time: write it with an offset"
            )
        else:
            local = row["at"]  # the time of this process's zone; `astimezone` of 3.13 has no last day of 9999
            at = EPOCH + timedelta(seconds=mktime(local.timetuple()), microseconds=local.microsecond)
            assert (row[ERR_KIND], at.isoformat()) == (None, wanted), text


LAST = 2**63 - 1 - 7 * 86_400_000_000  # the last local time, in microseconds, of which an instant is computed
EPOCH = datetime(1970, 1, 1)


@pytest.mark.parametrize("zone", sample([BERLIN, "America/St_Johns", "Pacific/Apia", "Asia/Manila"], 2, "far times"))
def test_far_times_equal_what_the_clocks_show(spark: SparkSession, zone: str) -> None:
    """Each instant near a local time is shown by Spark itself; the rules of the last known year hold in later ones."""
    hour = 3_600_000_000
    known = [(text - EPOCH) // timedelta(microseconds=1) for text in (datetime.min, datetime.max, datetime(1, 1, 2))]
    half_hours = [(12_000 - 1970) * 8766 * hour + step * hour // 2 for step in range(2 * 8766)]
    frame = spark.createDataFrame([(micros,) for micros in (*known, LAST, -LAST, *half_hours)], "local bigint")
    found = frame.withColumn("found", F.unix_micros(instant_of(F.timestamp_micros("local"), zone)))
    shown = F.unix_micros(F.from_utc_timestamp(F.timestamp_micros("at"), zone))
    near = frame.select(
        "local", F.explode(F.expr(f"transform(sequence(-36, 36, 12), h -> local + h * {hour})")).alias("at")
    )
    tries = near.select("local", (F.col("local") - (shown - F.col("at"))).alias("at")).distinct()
    right = tries.where(shown == F.col("local")).groupBy("local").agg(F.collect_list("at").alias("instants"))
    rows = found.join(right, "local", "left").collect()
    assert len(rows) == 5 + len(half_hours)
    for row in rows:
        instants = row.instants or []
        assert row.found == (instants[0] if len(instants) == 1 else None), (zone, row.local)
    assert all(row.found is not None for row in rows if row.local in (*known, LAST, -LAST))
    beyond = [LAST + 1, -LAST - 1, 2**63 - 1, -(2**63)]
    frame = spark.createDataFrame([(micros,) for micros in beyond], "local bigint")
    far = frame.select(instant_of(F.timestamp_micros("local"), zone).isNull().alias("is_null"))
    assert [row.is_null for row in far.collect()] == [True] * len(beyond)


def test_a_text_beyond_the_range_does_not_name_clocks(feed: Feed) -> None:
    texts = ["+294247-01-09 00:00:00", "-290308-01-01 00:00:00", "+300000-01-01 00:00:00"]
    lines = [f'{{"id": {n}, "at": "{text}"}}' for n, text in enumerate(texts)]
    found = feed.lines("json", lines, {"id": "int", "at": "timestamp"}, timezone=BERLIN)
    assert [(row[ERR_KIND], "clocks" in row[ERR_MESSAGE]) for row in found] == [("value", False)] * len(texts)


def test_counts_are_utc_and_bad_texts_do_not_name_clocks(feed: Feed) -> None:
    lines = ['{"id": 1, "at": 1767398400000}', '{"id": 2, "at": "noon"}']
    columns = {"id": "int", "at": {"type": "timestamp", "unit": "ms"}}
    good, bad = feed.lines("json", lines, columns, timezone=BERLIN)
    assert ms(good["at"].astimezone(UTC)) == 1767398400000
    assert bad[ERR_KIND] == "value"
    assert "clocks" not in bad[ERR_MESSAGE]


@pytest.mark.parametrize("type_name", sample(["string", "timestamp", "date"], 1, "local times"))
def test_a_records_own_time_is_local_time(feed: Feed, type_name: str) -> None:
    texts = ["2026-07-03", "2026-03-29 02:30:00"] if type_name != "date" else ["2026-07-03"]
    lines = [f'{{"id": {n}, "at": "{text}"}}' for n, text in enumerate(texts)]
    columns = {"id": "int", "at": type_name}
    good, *bad = feed.lines("json", lines, columns, timezone=BERLIN, time={"field": "at"})
    assert good[TIME] == parse_time("2026-07-02T22:00Z")
    kinds = {"string": "time", "timestamp": "value"}
    assert [row[ERR_KIND] for row in bad] == ([] if type_name == "date" else [kinds[type_name]])
    assert all("Europe/Berlin" in row[ERR_MESSAGE] for row in bad)


@pytest.mark.parametrize("zone", sample(["UTC", "America/New_York"], 1, "zones of far dates"))
def test_a_date_beyond_all_times_is_an_err(feed: Feed, zone: str) -> None:
    """Also as a key, in the bytes of the err."""
    texts = ["2026-07-03", "2026012-01-01", "294247-01-10", "-2026012-01-01"]
    feed.write("a.jsonl", "".join(f'{{"id": {n}, "d": "{text}"}}\n' for n, text in enumerate(texts)))
    frame = feed.frame("json", {"id": "int", "d": "date"}, key=["id", "d"], timezone=zone, time={"field": "d"})
    rows = frame.orderBy("id").select(TIME, ERR_KIND, ERR_KEY, ERR_MESSAGE).collect()
    assert [row[ERR_KIND] for row in rows] == [None, "time", "time", "time"]
    assert rows[0][TIME] == parse_time("2026-07-03", zone=zone)
    assert [bytes(row[ERR_KEY]) for row in rows[1:]] == [
        f'["{n}","{sign}{text}"]'.encode() for n, sign, text in zip((1, 2, 3), ("+", "+", ""), texts[1:], strict=True)
    ]
    assert "time field 'd' is '2026012-01-01'" in rows[1][ERR_MESSAGE]


@pytest.mark.family("decoders")
def test_a_parquet_time_not_adjusted_to_utc_is_local(feed: Feed, tmp_path: Path) -> None:
    noon, skipped = datetime(2026, 7, 3, 12), datetime(2026, 3, 29, 2, 30)
    pq.write_table(
        pa.table(
            {
                "id": pa.array([1, 2], pa.int32()),
                "local": pa.array([noon, skipped], pa.timestamp("us")),
                "nanos": pa.array([noon, noon], pa.timestamp("ns")),
                "utc": pa.array([noon, noon], pa.timestamp("us", tz="UTC")),
                "utc_nanos": pa.array([noon, noon], pa.timestamp("ns", tz="UTC")),
                "day": pa.array([noon.date(), noon.date()], pa.date32()),
            }
        ),
        tmp_path / "in" / "a.parquet",
    )
    columns = {"id": "int", **dict.fromkeys(["local", "nanos", "utc", "utc_nanos", "day"], "timestamp")}
    for time in ("utc", "local"):
        good, bad = feed.records("parquet", columns, timezone=BERLIN, time={"field": time})
        start = noon.replace(tzinfo=UTC)
        hours = {name: (good[name].astimezone(UTC) - start) // timedelta(hours=1) for name in columns if name != "id"}
        assert hours == {"local": -2, "nanos": -2, "utc": 0, "utc_nanos": 0, "day": -14}
        assert good[TIME] == ms(good[time].astimezone(UTC))
        assert (bad[ERR_KIND], "skip or repeat" in bad[ERR_MESSAGE]) == ("value", True)
    untyped = {"id": "int"}
    for time, wanted in (("utc", noon), ("local", noon - timedelta(hours=2))):
        good, _ = feed.records("parquet", untyped, timezone=BERLIN, time={"field": time})
        assert good[TIME] == ms(wanted.replace(tzinfo=UTC))


def test_an_infinite_local_time_does_not_name_clocks(feed: Feed, tmp_path: Path) -> None:
    at = pa.array([2**63 - 1, 1 - 2**63, 0], pa.int64()).cast(pa.timestamp("us"))
    pq.write_table(pa.table({"id": pa.array([1, 2, 3], pa.int32()), "at": at}), tmp_path / "in" / "a.parquet")
    found = feed.records("parquet", {"id": "int", "at": "timestamp"}, timezone=BERLIN)
    assert [row[ERR_KIND] for row in found] == ["value", "value", None]
    assert not any("clocks" in row[ERR_MESSAGE] for row in found[:2])


def test_another_time_zone_database_in_java_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    check_zone(spark, "UTC")
    check_zone(spark, BERLIN)
    check_zone(spark, "Asia/Tehran")  # Java and Python differ in 1978
    with pytest.raises(ConfigError, match="timezone Mars/Olympus: Java cannot compute with it"):
        check_zone(spark, "Mars/Olympus")
    broken = spark.newSession()
    broken.conf.set("spark.sql.catalog.spark_catalog", "no.such.Catalog")
    with pytest.raises(ENGINE_ERRORS, match=r"no\.such\.Catalog"):  # and not a matter of the zone
        check_zone(broken, "Asia/Tokyo")
    monkeypatch.setattr(times, "local_of", None)
    check_zone(spark.newSession(), BERLIN)  # once for a server and a zone
    monkeypatch.setattr(times, "_CHECKED", set())
    monkeypatch.setattr(times, "local_of", lambda time, z: local_of(time, z if z == "UTC" else "Europe/London"))
    with pytest.raises(ConfigError, match=r"timezone Europe/Berlin: at 200\d.* in Java and .* update Java"):
        check_zone(spark, BERLIN)
