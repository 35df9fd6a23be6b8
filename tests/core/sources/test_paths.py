"""`source.path` as a pattern, and the natural order of paths."""

from __future__ import annotations

import fnmatch
import itertools
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.config.path_pattern import BadPattern, parse_pattern
from persist_core.sources.natural_order import natural_key, path_of
from persist_core.time_text import parse_time


@pytest.mark.parametrize(
    ("path", "root", "segments"),
    [
        ("in/*.jsonl", "/base/in", 1),
        ("*.jsonl", "/base", 1),
        ("in/a.jsonl", "/base/in", 1),
        ("/abs/in/x-*/y.csv", "/abs/in", 2),
        ("./in//x/./*.csv", "/base/in/x", 1),
        ("../feed/*.csv", "/feed", 1),
        ("../../../*.csv", "/", 1),
        ("in/**/*.csv", "/base/in", 2),
        ("in/_private/.hidden/*.csv", "/base/in/_private/.hidden", 1),
        ("in/{date:year=%Y/month=%m}/*.csv", "/base/in", 3),
        ("in/date={date:%Y-%m-%d}/*.csv", "/base/in", 2),
    ],
)
def test_root_and_segments(path: str, root: str, segments: int) -> None:
    pattern = parse_pattern(path, "/base")
    assert (pattern.root, len(pattern.segments)) == (root, segments)


def test_a_base_folder_is_taken_literally() -> None:
    pattern = parse_pattern("*.csv", "/data/[x]/{y}*")
    assert pattern.root == "/data/[x]/{y}*"


@pytest.mark.parametrize(
    ("path", "file", "date"),
    [
        ("{date:%Y-%m-%d}.csv", "2026-01-31.csv", "2026-01-31"),
        ("date={date:%Y%m%d}/*.csv", "date=20260131/a.csv", "2026-01-31"),
        ("{date:%Y/%m/%d/%H}/*.csv", "2026/01/31/23/a.csv", "2026-01-31T23:00:00"),
        ("{date:year=%Y/month=%m}/*.csv", "year=2026/month=02/a.csv", "2026-02-01"),
        ("{date:%Y/%Y-%m}.csv", "2026/2026-03.csv", "2026-03-01"),
        ("**/{date:%d.%m.%Y}-*.csv", "a/b/31.01.2026-x.csv", "2026-01-31"),
        ("**/{date:%Y}.csv", "2026.csv", "2026-01-01"),
        ("a[0-9]?{date:%Y}.csv", "a7x2026.csv", "2026-01-01"),
        ("[!a]{date:%Y}.csv", "b2026.csv", "2026-01-01"),
        ("[{]{date:%Y}[}].csv", "{2026}.csv", "2026-01-01"),
    ],
)
def test_dates_in_paths_are_utc(path: str, file: str, date: str) -> None:
    assert parse_pattern(path, "/base").date_ms(file) == parse_time(date)


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("{date:%Y-%m-%d}.csv", "2026-02-30.csv"),
        ("{date:%Y-%m-%d}.csv", "2026-1-3.csv"),
        ("{date:%Y-%m-%d}.csv", "٢٠٢٦-01-31.csv"),
        ("{date:%Y-%m-%d}.csv", "1969-12-31.csv"),
        ("{date:%Y/%Y-%m}.csv", "2025/2026-03.csv"),
        ("{date:%Y-%m-%d %H}.csv", "2026-01-31 24.csv"),
        ("{date:%Y}.csv", "2026xcsv"),
        ("[!a]{date:%Y}.csv", "/2026.csv"),
        ("[+-9]{date:%Y}.csv", "/2026.csv"),
    ],
)
def test_what_is_no_date(path: str, file: str) -> None:
    assert parse_pattern(path, "/base").date_ms(file) is None


@pytest.mark.parametrize("path", ["a.b", "a+b(c)$^|", "ä ö", "a'b\"c;--"])
def test_plain_text_is_matched_literally(path: str) -> None:
    pattern = parse_pattern(f"{path}*", "/base")
    assert pattern.segments[-1].loose.fullmatch(f"{path}x")
    assert not pattern.segments[-1].loose.fullmatch(f"x{path}")


@given(st.sampled_from(["", "!", "^"]), st.sampled_from("]ab[{}&"), st.text("ab[{}&!^", max_size=3))
def test_a_set_of_characters_is_that_of_the_shell(negation: str, first: str, others: str) -> None:
    pattern = parse_pattern(f"[{negation}{first}{others}]", "/base")
    for char in "]ab[{}&!^x":
        found = pattern.segments[0].loose.fullmatch(char) is not None
        assert found == fnmatch.fnmatchcase(char, f"[{'!' if negation else ''}{first}{others}]")


@pytest.mark.parametrize("path", ["[{date:%Y}].csv", "[{date:%Y][}].csv"])
def test_a_date_in_a_set_of_characters_is_refused(path: str) -> None:
    with pytest.raises(BadPattern, match=r"write \[\[\] for a plain"):
        parse_pattern(path, "/base")


@given(st.text("ab*?[]{}!-^/.%Y0dateé \\", max_size=24))
def test_any_text_is_a_pattern_or_a_bad_one(path: str) -> None:
    try:
        pattern = parse_pattern(path, "/base")
    except BadPattern:
        return
    assert pattern.root.startswith("/")
    assert ".." not in pattern.root.split("/")
    pattern.date_ms("a/b")


_paths = st.lists(st.text("ab019-_. é𐍈", min_size=1, max_size=6), min_size=1, max_size=3).map("/".join)


@given(_paths, _paths)
def test_keys_tell_paths_apart(left: str, right: str) -> None:
    assert (natural_key(left) == natural_key(right)) == (left == right)


@given(st.lists(_paths, max_size=20))
def test_text_order_is_byte_order(paths: list[str]) -> None:
    keys = [natural_key(path) for path in paths]
    assert [path_of(key) for key in keys] == list(paths)
    assert sorted(keys) == sorted(keys, key=str.encode)


@given(st.integers(0, 10**40), st.integers(0, 10**40), st.integers(0, 30))
def test_numbers_compare_as_numbers(left: int, right: int, zeros: int) -> None:
    first, second = natural_key(f"part-{'0' * zeros}{left}.csv"), natural_key(f"part-{right}.csv")
    if left != right:
        assert (first < second) == (left < right)


@given(st.lists(_paths, min_size=2, max_size=20))
def test_the_order_is_that_of_the_list_of_texts_and_numbers(paths: list[str]) -> None:
    """Compare with the usual definition: compare lists of (text, number) pieces. Leading zeros only break ties."""

    def pieces(path: str) -> list[tuple[int, int, str]]:
        found = re.findall(r"[0-9]+|[^0-9]", path)
        return [(0x30, int(p), "") if p.isascii() and p.isdigit() else (ord(p), 0, p) for p in found]

    ordered = sorted(paths, key=natural_key)
    for before, after in itertools.pairwise(ordered):
        if not re.search(r"(?<![0-9])0[0-9]", before + "/" + after):
            assert pieces(before) <= pieces(after)


def test_part_2_comes_before_part_10() -> None:
    names = ["b", "part-10", "part-9", "part-010", "part-2", "a", "part-1/z", "part-1"]
    wanted = ["a", "b", "part-1", "part-1/z", "part-2", "part-9", "part-10", "part-010"]
    assert sorted(names, key=natural_key) == wanted


TOKENS = ["*", "*", "*", "-", "a", "1", "?", "[ab]", "[!b]", "{date:%Y}", "{date:%Y-%m}"]


def _naive(pattern: str) -> re.Pattern[str]:
    """The pattern with each star as it is: right, and too slow for hostile names."""
    shown = re.escape(pattern).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    shown = shown.replace(r"\[ab\]", "[ab]").replace(r"\[!b\]", "[^b]")
    shown = shown.replace(r"\{date:%Y\}", "(?P<Y>[0-9]{4})")
    return re.compile(shown.replace(r"\{date:%Y\-%m\}", "(?P<Y>[0-9]{4})-(?P<m>[0-9]{2})"))


@given(
    st.lists(st.sampled_from(TOKENS), min_size=1, max_size=9),
    st.lists(st.sampled_from(["-", "a", "b", "1", "2026", "2025-07", "1999"]), max_size=9),
)
def test_stars_match_what_they_match_one_by_one(tokens: list[str], name: list[str]) -> None:
    if sum(token.startswith("{") for token in tokens) > 1 or "**" in "".join(tokens):
        tokens = [token for token in tokens if token != "*" and not token.startswith("{")]
    text = "".join(tokens)
    try:
        pattern = parse_pattern(f"{text}.csv", "/base")
    except BadPattern:
        return
    if not text or len(pattern.segments) != 1 or pattern.segments[0].loose.pattern == re.escape(f"{text}.csv"):
        return
    file = "".join(name) + ".csv"
    expected = _naive(f"{text}.csv").fullmatch(file)
    if "{" not in text:
        assert (pattern.segments[0].loose.fullmatch(file) is None) == (expected is None)
        return
    assert pattern.strict is not None
    found = pattern.strict.fullmatch(file)
    assert (found and found.groupdict()) == (expected and expected.groupdict())
    assert found is None or pattern.segments[0].loose.fullmatch(file)


@pytest.mark.parametrize(
    "path", ["*-*-*-*-*-*.csv", "*-*-*-{date:%Y}-*-*.csv", "**/*-*-*-*-*.csv", "*[-a]*?-*-*x*-.csv"]
)
def test_a_hostile_name_takes_time_linear_in_its_length(path: str) -> None:
    pattern, name = parse_pattern(path, "/base"), "-" * 250 + "x"
    start = time.process_time()
    for _ in range(20):  # each star for itself took minutes for one name
        for segment in pattern.segments:
            segment.loose.fullmatch(name)
        pattern.date_ms(name)
        pattern.date_ms("-" * 200 + "-2026-" + "-" * 40 + "y.csv")
    assert time.process_time() - start < 5
