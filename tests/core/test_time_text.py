"""Times and durations as users write them, and local times of zones against a plain replay."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.config.path_pattern import parse_pattern
from persist_core.errors import InvalidTime
from persist_core.time_text import (
    DAY_MS,
    FIRST_ISO_MS,
    MAX_TIME,
    first_instant,
    format_time,
    local_of,
    parse_duration,
    parse_time,
    show_ago,
    show_duration,
    show_local,
    show_time,
    zones,
)

NOW = parse_time("2026-03-29T12:34:56.789Z")  # the clocks of Berlin have gone forward today
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
HOUR = timedelta(hours=1)
NEW_YEAR = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "zone", "wanted"),
    [
        ("now", "UTC", "2026-03-29T12:34:56.789Z"),
        ("today", "UTC", "2026-03-29"),
        ("Yesterday", "UTC", "2026-03-28"),
        ("today", BERLIN, "2026-03-28T23:00Z"),
        ("yesterday", BERLIN, "2026-03-27T23:00Z"),
        ("yesterday", NEW_YORK, "2026-03-28T04:00Z"),
        ("2 hours ago", BERLIN, "2026-03-29T10:34:56.789Z"),
        ("2h ago", "UTC", "2026-03-29T10:34:56.789Z"),
        ("1 week ago", "UTC", "2026-03-22T12:34:56.789Z"),
        ("999999999 weeks ago", "UTC", "1970-01-01"),
        ("2026-W43-7", "UTC", "2026-10-25"),
        ("2026-01-03", BERLIN, "2026-01-02T23:00Z"),
        ("2026-01-03 09:00", BERLIN, "2026-01-03T08:00Z"),
        ("2026-01-03 09:00 Europe/Berlin", NEW_YORK, "2026-01-03T08:00Z"),
        ("2026-01-03  09:00   America/New_York", "UTC", "2026-01-03T14:00Z"),
        ("2026-01-03 America/New_York", "UTC", "2026-01-03T05:00Z"),
        ("2026-01-03 09:00 UTC", BERLIN, "2026-01-03T09:00Z"),
        ("2026-01-03 09:00 +02:00", BERLIN, "2026-01-03T07:00Z"),
        ("2026-01-03T09:00:00+02:00", BERLIN, "2026-01-03T07:00Z"),
        ("2026-01-03 09:00 Z", BERLIN, "2026-01-03T09:00Z"),
        ("1767427200000", BERLIN, "2026-01-03T08:00Z"),
        ("2018-11-04 America/Sao_Paulo", "UTC", "2018-11-04T03:00Z"),  # midnight is skipped
        ("2011-12-30 Pacific/Apia", "UTC", "2011-12-30T10:00Z"),  # the whole day is
        ("2026-10-25 02:30 +01:00", BERLIN, "2026-10-25T01:30Z"),
    ],
)
def test_times_as_users_write_them(text: str, zone: str, wanted: str) -> None:
    assert format_time(parse_time(text, zone=zone, now_ms=NOW)) == format_time(parse_time(wanted))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026-03-29 02:30 Europe/Berlin", "'2026-03-29 02:30', which the clocks of Europe/Berlin skip"),
        ("2026-10-25T02:00 Europe/Berlin", "'2026-10-25T02:00', which the clocks of Europe/Berlin repeat"),
        ("2026-10-25T02 Europe/Berlin", "'2026-10-25T02', which the clocks of Europe/Berlin repeat"),
        ("20261025T023000 Europe/Berlin", "which the clocks of Europe/Berlin repeat"),
        ("2026-03-29T0230 Europe/Berlin", "which the clocks of Europe/Berlin skip"),
        ("2026-10-25-02 Europe/Berlin", "expected an ISO date"),
        ("2026-01-03 Europa/Berlin", "the time zone 'Europa/Berlin'; .*did you mean Europe/Berlin"),
        ("2026-01-03 09:00 CET", "the time zone 'CET'"),
        ("2026-01-03 09:00 Etc/GMT+1", "the time zone 'Etc/GMT.1'"),
        ("2026-01-03 09:00 +01:00 Europe/Berlin", "expected an ISO date"),
        ("2026-01-03 +01:00", "expected an ISO date"),
        ("3 fortnights ago", "now, today, yesterday, `2 hours ago`"),
        ("ago", "expected an ISO date"),
        ("tomorrow", "expected an ISO date"),
        ("x" * 1000, "expected an ISO date"),
        ("1970-01-01 Europe/Berlin", "at or after 1970"),
    ],
)
def test_texts_that_are_not_one_time(text: str, said: str) -> None:
    with pytest.raises(InvalidTime, match=said):
        parse_time(text, now_ms=NOW)


@pytest.mark.parametrize("text", ["20260103", "19991231", " 20000229 "])
def test_digits_that_could_be_a_date_are_refused(text: str) -> None:
    digits = text.strip()
    with pytest.raises(InvalidTime, match=f"expected {digits[:4]}-{digits[4:6]}-{digits[6:]}"):
        parse_time(text, counters=False)
    assert parse_time("20261303", counters=False) == 20261303, "no date: a number"


def test_words_are_times_only_where_there_is_a_clock() -> None:
    with pytest.raises(InvalidTime, match="expected an ISO date"):
        parse_time("yesterday")


@given(st.integers(0, 4_000_000_000_000), st.sampled_from(sorted(zones())))
def test_a_shown_local_time_is_read_back(time: int, zone: str) -> None:
    assert parse_time(show_local(time, zone).removesuffix(f" in {zone}"), zone=zone) == time


@given(st.text(max_size=80), st.sampled_from(["UTC", BERLIN]))
def test_any_text_is_a_time_or_an_invalid_time(text: str, zone: str) -> None:
    with contextlib.suppress(InvalidTime):
        assert 0 <= parse_time(text, zone=zone, now_ms=NOW) <= MAX_TIME


def test_abbreviations_are_no_zones() -> None:
    assert not {"CET", "EST", "CST", "IST", "GMT", "Etc/GMT+1"} & zones()
    assert {"UTC", BERLIN, "America/Argentina/Buenos_Aires"} <= zones()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("30 days", ("30 days", 2_592_000_000)), (" 2H ", ("2 hours", 7_200_000)), ("90 min", ("90 minutes", 5_400_000)),
     ("1 week", ("1 weeks", 604_800_000)),
     ("999999999 weeks", ("999999999 weeks", 604_799_999_395_200_000)),
     ("1.5 days", None), ("-1 days", None), ("", None), ("3 months", None)],
)  # fmt: skip
def test_durations(text: str, wanted: tuple[str, int] | None) -> None:
    assert parse_duration(text) == wanted


def test_more_units_show_more() -> None:
    assert show_duration(90_061_000) == "1 day 1 hour"
    assert (show_ago(1_000, 90_062_000), show_ago(61_000, 1_000)) == ("1 day ago", "1 minute ahead")
    assert show_duration(90_061_000, units=4) == "1 day 1 hour 1 minute 1 second"


def hours_of_2026(zone: str) -> dict[datetime, datetime]:
    """Each local hour of the year, and the first instant at which the clocks show it or a later time, by replay."""
    first: dict[datetime, datetime] = {}
    for n in range(-60, 24 * 366 + 60):
        instant = datetime(2026, 1, 1, tzinfo=UTC) + n * HOUR
        first.setdefault(instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None), instant)
    wanted = (datetime(2026, 1, 1) + n * HOUR for n in range(24 * 365))
    return {local: first[local] if local in first else first[local + HOUR] for local in wanted}


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
def test_every_day_and_hour_of_a_year_in_a_path(zone: str) -> None:
    hourly = parse_pattern("{date:%Y-%m-%d/%H}.csv", "/base", zone=zone)
    daily = parse_pattern("{date:%Y-%m-%d}.csv", "/base", zone=zone)
    hours = hours_of_2026(zone)
    for local, instant in hours.items():
        assert hourly.date_ms(f"{local:%Y-%m-%d/%H}.csv") == instant.timestamp() * 1000, local
    starts = {local: instant for local, instant in hours.items() if local.hour == 0}
    for local, instant in starts.items():
        assert daily.date_ms(f"{local:%Y-%m-%d}.csv") == instant.timestamp() * 1000, local
    lengths = [b - a for a, b in zip(starts.values(), [*starts.values()][1:], strict=False)]
    assert sorted({length // HOUR for length in lengths}) == [23, 24, 25]
    repeated = [local for local in hours if local + HOUR in hours and hours[local + HOUR] - hours[local] == 2 * HOUR]
    skipped = [local for local in hours if local + HOUR in hours and hours[local + HOUR] == hours[local]]
    assert [len(repeated), len(skipped)] == [1, 1]


@given(
    st.sampled_from(sorted(zones())),
    st.integers(0, 24 * 24_800).map(lambda hours: datetime(1970, 1, 3) + hours * HOUR),
)
def test_the_first_instant_is_the_first_one(zone: str, local: datetime) -> None:
    found = first_instant(local, zone)
    assert local_of(found, zone) >= local
    assert all(local_of(found - step, zone) < local for step in (1, 900_000, 3_600_000, 86_400_000))


@given(
    st.sampled_from([BERLIN, NEW_YORK, "Pacific/Apia", "America/Sao_Paulo", "UTC"]),
    st.integers(parse_time("2005-01-01"), parse_time("2026-01-01")),
    st.integers(1, 40 * 86_400_000),
    st.sampled_from(["%Y-%m-%d/%H", "%Y/%m/%d", "%Y-%m"]),
)
def test_a_listing_by_date_finds_every_date_of_its_range(zone: str, start: int, length: int, dates: str) -> None:
    pattern = parse_pattern(f"s3://bucket/in/{{date:{dates}}}.csv", "/", zone=zone)
    prefixes = pattern.prefixes(start, start + length)
    assert prefixes is not None
    first = local_of(start, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    for hour in range(-48, length // 3_600_000 + 48):
        name = f"{first + hour * HOUR:{dates}}.csv"
        if start <= (pattern.date_ms(name) or 0) < start + length:
            assert any(name.startswith(prefix) for prefix in prefixes), name


@pytest.mark.parametrize(
    ("text", "time"),
    [("0", 0), ("20260131", 20260131), ("1970-01-02", 86_400_000), ("2026-01-01T01:00:00+01:00", NEW_YEAR),
     ("2026-01-01T00:00:00.250Z", NEW_YEAR + 250), (" 2026-01-01 ", NEW_YEAR), (str(2**63 - 1), 2**63 - 1)],
)  # fmt: skip
def test_times_as_text(text: str, time: int) -> None:
    assert parse_time(text) == time
    assert parse_time(format_time(time)) == time


def test_a_time_before_1970_is_shown_as_a_date() -> None:
    assert show_time(-DAY_MS) == f"1969-12-31T00:00:00Z ({-DAY_MS})"
    assert format_time(FIRST_ISO_MS) == "0001-01-01T00:00:00Z"
    assert show_time(FIRST_ISO_MS - 1) == f"{FIRST_ISO_MS - 1}"


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "2026-13-01", "2026-01-01T00:00:00.0001Z", str(2**63), "١٢", "x" * 999]
)
def test_texts_that_are_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="time is "):
        parse_time(text)
