"""The path that `persist init --from` proposes for files that it has found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.config.path_pattern import parse_pattern
from persist_core.sample.detect import escaped, is_glob, path_of


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["/f/a.jsonl"], "/f/*.jsonl"),
        (["/f/a.jsonl", "/f/b.jsonl.gz"], "/f/*.jsonl*"),
        (["/f/a.csv", "/g/a.csv"], "/*/*.csv"),
        (["/f/2026-01-01/a.csv"], "/f/{date:%Y-%m-%d}/*.csv"),
        (["/f/date=2026-01-01/a.csv", "/f/date=2026-01-02/b.csv"], "/f/date={date:%Y-%m-%d}/*.csv"),
        (["/f/2026/01/31/a.csv"], "/f/{date:%Y/%m/%d}/*.csv"),
        (["/f/2026/01/31/07/a.csv", "/f/2026/01/31/08/a.csv"], "/f/{date:%Y/%m/%d/%H}/*.csv"),
        (["/f/year=2026/month=01/day=31/a.parquet"], "/f/{date:year=%Y/month=%m/day=%d}/*.parquet"),
        (["/f/orders-2026-01-01.csv", "/f/orders-2026-01-02.csv"], "/f/orders-{date:%Y-%m-%d}.csv"),
        (["/f/a-20260101-1.csv", "/f/b-20260102-22.csv"], "/f/*{date:%Y%m%d}*.csv"),
        (["/b-2026-01-01/x/2026-02-01.csv", "/b-2026-01-01/x/2026-02-02.csv"], "/b-2026-01-01/x/{date:%Y-%m-%d}.csv"),
        (["/f/a/1.csv", "/f/a/b/2.csv"], "/f/a/**/*.csv"),
        (["/f/2026-01-01/1.csv", "/f/2026-01-02/b/2.csv"], "/f/{date:%Y-%m-%d}/**/*.csv"),
        (["/f/a/2026-01-01/1.csv", "/f/a/b/2026-01-02/2.csv"], "/f/a/**/*.csv"),
        (["/f/LOAD00000001.csv", "/f/20260102-060000000.csv"], "/f/*.csv"),
        (["/f[1]/a"], "/f[[]1]/*"),
        (["/f{1}/a"], "/f[{]1[}]/*"),
    ],
)
def test_the_path_of_files(paths: list[str], expected: str) -> None:
    assert path_of(paths) == expected


@pytest.mark.parametrize(
    ("paths", "glob", "expected"),
    [
        (["/f/2026-01-01/hour=05/a.csv"], "/f/*/*/*.csv", "/f/{date:%Y-%m-%d}/*/*.csv"),
        (["/f/2026-01-01T05/a.csv"], "/f/*/*", "/f/{date:%Y-%m-%d}*/*.csv"),
        (["/f/2026-01-01/eu/a.csv", "/f/2026-01-02/eu/a.csv"], "f/*/eu/*.csv", "/f/{date:%Y-%m-%d}/eu/*.csv"),
        (["/f/a/b.csv"], "/f/**/*.csv", "/f/**/*.csv"),
        (["/f/LOAD00000001.csv"], "/f/**/*.csv", "/f/**/*.csv"),
        (["/f/a/1.csv", "/f/a/b/2.csv"], "/f/**/*.csv", "/f/**/*.csv"),
        (["/f/2026/01/02/eu/a.csv"], "/f/**/*", "/f/{date:%Y/%m/%d}/**/*.csv"),
        (["/f/2026/01/02.csv"], "/f/**/*.csv", "/f/**/{date:%Y/%m/%d}.csv"),
        (["s3://b/f/2026/01/02.csv"], "s3://b/f/**/*.csv", "s3://b/f/**/{date:%Y/%m/%d}.csv"),
        (["/f/public/orders/a.csv"], "/f/**/orders/*.csv", "/f/**/orders/*.csv"),
        (["/f/2026-01-01/orders/a.csv"], "/f/**/orders/*.csv", "/f/{date:%Y-%m-%d}/**/orders/*.csv"),
        (["/f/x/a/b.csv"], "/f/*/**/*.csv", "/f/*/**/*.csv"),
        (["/f/region=eu/2026-01-01/a.csv"], "/f/**/*.csv", "/f/**/*.csv"),
        (["/f/2026/01/02/eu/a.csv"], "/f/2026/01/02/**/*", "/f/{date:%Y/%m/%d}/**/*.csv"),
        (["/f/2026/01/02/eu/a.csv"], "/f/2026/*/*/*/*", "/f/{date:%Y/%m/%d}/*/*.csv"),
        (["/f/g/2026/01/02.csv"], "/f/g/*/*/*", "/f/g/{date:%Y/%m/%d}.csv"),
        (["/f/20260102-060000000.csv"], "/f/*", "/f/{date:%Y%m%d}*.csv"),
        (["/f/v2-2026-01-02.csv.bz2"], "/f/*", "/f/*{date:%Y-%m-%d}.csv.bz2"),
        (["/f[1]/a.csv"], "/f[[]1]/a.csv", "/f[[]1]/*.csv"),
        (["/f/orders-1.csv", "/f/orders-2.csv"], "/f/orders-*.csv", "/f/orders-*.csv"),
        (["/f/orders[1].csv"], "/f/orders[[]1].csv", "/f/*.csv"),
        (["/f/2026-01-01/orders-1.csv"], "/f/*/orders-?.*", "/f/{date:%Y-%m-%d}/orders-?.*"),
        (["/f/v2-2026-01-02.csv"], "/f/v2-*", "/f/v2-*{date:%Y-%m-%d}.csv"),
        (["/f/o-eu-2026-01-02.csv", "/f/o-us-2026-01-02.csv"], "/f/o-*", "/f/o-*{date:%Y-%m-%d}.csv"),
        (["/f/o-2026-01-02.csv"], "/f/o-2026-*.csv", "/f/o-{date:%Y-%m-%d}.csv"),
        (["/f/eu/orders.csv", "/f/us/orders.csv"], "/f/*/orders.csv", "/f/*/orders.csv"),
        (["/f/2026-01-01/o.csv"], "/f/{date:%Y-%m-%d}/o.csv", "/f/{date:%Y-%m-%d}/o.csv"),
        (["/f/x/y-a.csv"], "/f/{date:%Y/%m}-*.csv", "/f/x/*.csv"),
    ],
)
def test_what_may_differ_tomorrow_stays_open(paths: list[str], glob: str, expected: str) -> None:
    assert path_of(paths, [glob]) == expected


_NAMES = st.text("ab*?[]{}!-^", max_size=5).map("a".__add__)


@given(_NAMES, _NAMES)
def test_an_escaped_name_is_a_glob_of_it_alone(name: str, other: str) -> None:
    found = parse_pattern(f"/{escaped(name)}", "/")
    assert not is_glob(escaped(name))
    assert [found.loose.fullmatch(each) is not None for each in (name, other)] == [True, other == name]


_PARTS = st.sampled_from(["a", "orders", "region=eu", "2026-01-01", "2026-01-02", "2026", "01", "02"])


_LASTS = st.sampled_from(["*.csv", "a*", "[!b].csv", "a.c*", "a.csv*"])


@given(
    st.lists(_PARTS, max_size=5),
    st.integers(0, 5),
    st.integers(0, 5),
    st.lists(st.lists(_PARTS, max_size=2)),
    st.sets(_LASTS, min_size=1),
)
def test_a_proposed_path_has_each_file_and_its_date(
    folders: list[str], begin: int, end: int, middles: list[list[str]], lasts: set[str]
) -> None:
    """Wherever dates lie below a glob with `**`."""
    first, last = sorted((begin, end))
    globs = ["/".join(["/f", *folders[:first], "**", *folders[last:], each]) for each in lasts]
    between = [folders[first:last], *middles]
    paths = sorted({"/".join(["/f", *folders[:first], *each, *folders[last:], "a.csv"]) for each in between})
    found = parse_pattern(path_of(paths, globs), "/")
    for path in paths:
        below = path.removeprefix(found.root.rstrip("/") + "/")
        assert found.loose.fullmatch(below)
        assert found.date_format is None or found.date_ms(below) is not None
