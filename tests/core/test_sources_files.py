"""The file source: what is found, frozen, consumed, reported. On a real file system and a real `Blob`."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from persist_core.batch import SourceFrontier
from persist_core.config import CollectionConfig
from persist_core.errors import (
    CorruptArtifact,
    Determinate,
    InvalidInput,
    InvariantViolation,
    SourceChanged,
    UnknownVersion,
)
from persist_core.location.mem import MemBlob
from persist_core.sources.files import FileSource, Freeze, FrozenInput, check_unchanged
from persist_core.sources.ledger import Ledger, segment_keys, segments_of
from persist_core.time_text import parse_time

DAY_MS = 86_400_000


def collection(root: Path, path: str = "*.jsonl", **fields: Any) -> CollectionConfig:
    return CollectionConfig.model_validate(
        {
            "name": "orders",
            "source": {"path": path, "format": "debezium-json"},
            "key": "id",
            "columns": {"id": "bigint"},
            "base_dir": str(root),
            **fields,
        }
    )


def drop(root: Path, name: str, data: bytes = b"{}\n", *, mtime_ms: int | None = None) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if mtime_ms is not None:
        os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))
    return path


def names(freeze: Freeze) -> list[str]:
    return [file.relative for file in freeze.frozen.files]


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may list any folder; drop to another user's rights for a moment."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_files_come_in_natural_order_with_their_facts(tmp_path: Path) -> None:
    for name in ("part-10.jsonl", "part-9.jsonl", "b/x.jsonl"):
        drop(tmp_path, name)
    path = drop(tmp_path, "part-1.jsonl", b"123", mtime_ms=1_700_000_000_123)
    freeze = FileSource(collection(tmp_path), MemBlob()).freeze(None, until=None)
    assert names(freeze) == ["part-1.jsonl", "part-9.jsonl", "part-10.jsonl"]
    first = freeze.frozen.files[0]
    assert (first.path, first.size_bytes, first.mtime_ms, first.date_ms) == (str(path), 3, 1_700_000_000_123, None)
    assert freeze.notices() == ()


def test_nothing_is_consumed_twice_and_late_files_are_found(tmp_path: Path) -> None:
    source = FileSource(collection(tmp_path, "date={date:%Y-%m-%d}/*.jsonl"), MemBlob())
    drop(tmp_path, "date=2026-01-02/a.jsonl")
    first = source.freeze(None, until=None)
    frontier = source.advance(None, first.frozen)
    assert names(source.freeze(frontier, until=None)) == []
    drop(tmp_path, "date=2026-01-01/late.jsonl")
    drop(tmp_path, "date=2026-01-02/0.jsonl")
    second = source.freeze(frontier, until=None)
    assert names(second) == ["date=2026-01-01/late.jsonl", "date=2026-01-02/0.jsonl"]
    after = source.advance(frontier, second.frozen)
    assert names(source.freeze(after, until=None)) == []
    assert after.offsets["files"] == 3


def test_a_file_dated_at_the_upper_is_not_due(tmp_path: Path) -> None:
    source = FileSource(collection(tmp_path, "{date:%Y-%m-%d}.jsonl"), MemBlob())
    for day in (1, 2, 3):
        drop(tmp_path, f"2026-01-0{day}.jsonl")
    freeze = source.freeze(None, until=parse_time("2026-01-03"))
    assert names(freeze) == ["2026-01-01.jsonl", "2026-01-02.jsonl"]
    assert freeze.not_due == 1
    assert "1 files are dated at or after this run's end" in freeze.notices()[0]
    assert source.freeze(None, until=parse_time("2026-01-03") + 1).not_due == 0


def test_dates_that_do_not_parse_are_reported_not_dropped(tmp_path: Path) -> None:
    for name in ("date=2026-01-01/a.jsonl", "date=2026-02-30/b.jsonl", "date=monday/c.jsonl", "date=2026-1-1/d.jsonl"):
        drop(tmp_path, name)
    freeze = FileSource(collection(tmp_path, "date={date:%Y-%m-%d}/*.jsonl"), MemBlob()).freeze(None, until=None)
    assert names(freeze) == ["date=2026-01-01/a.jsonl"]
    assert sorted(file.path for file in freeze.unmatched) == [
        "date=2026-02-30/b.jsonl", "date=2026-1-1/d.jsonl", "date=monday/c.jsonl",
    ]  # fmt: skip
    assert all("its date can't be read as %Y-%m-%d; it was left unread" in line for line in freeze.notices())


def test_unfinished_files_are_left_alone_and_counted(tmp_path: Path) -> None:
    for name in (
        "a.csv",
        "a.csv.tmp",
        "b.csv.part",
        ".c.csv",
        "_d.csv",
        "e.csv~",
        "_tmp/f.csv",
        ".g/h.csv",
        "i.csv.crc",
    ):
        drop(tmp_path, name)
    freeze = FileSource(collection(tmp_path, "**/*csv*"), MemBlob()).freeze(None, until=None)
    assert names(freeze) == ["a.csv"]
    assert freeze.unfinished == 6
    assert "6 files have names of unfinished files" in freeze.notices()[-1]


def test_a_private_folder_is_entered_where_the_path_spells_it_out(tmp_path: Path) -> None:
    drop(tmp_path, "_export/.v1/a.jsonl")
    freeze = FileSource(collection(tmp_path, "_export/.v1/*.jsonl"), MemBlob()).freeze(None, until=None)
    assert names(freeze) == ["a.jsonl"]


def test_any_depth(tmp_path: Path) -> None:
    for name in ("a.jsonl", "x/b.jsonl", "x/y/z/c.jsonl", "x/in/d.jsonl", "in/in/e.jsonl"):
        drop(tmp_path, name)
    blob = MemBlob()
    every = FileSource(collection(tmp_path, "**/*.jsonl"), blob).freeze(None, until=None)
    assert names(every) == ["a.jsonl", "in/in/e.jsonl", "x/b.jsonl", "x/in/d.jsonl", "x/y/z/c.jsonl"]
    inner = FileSource(collection(tmp_path, "**/in/**/*.jsonl"), blob).freeze(None, until=None)
    assert names(inner) == ["in/in/e.jsonl", "x/in/d.jsonl"]


def test_empty_files_are_consumed_too(tmp_path: Path) -> None:
    source = FileSource(collection(tmp_path), MemBlob())
    drop(tmp_path, "empty.jsonl", b"")
    freeze = source.freeze(None, until=None)
    assert names(freeze) == ["empty.jsonl"]
    assert names(source.freeze(source.advance(None, freeze.frozen), until=None)) == []


@pytest.mark.parametrize(("data", "mtime_ms"), [(b"longer", 1_000), (b"ab", 2_000)], ids=["size", "mtime"])
def test_a_consumed_file_that_changed_is_reported_not_read(tmp_path: Path, data: bytes, mtime_ms: int) -> None:
    source = FileSource(collection(tmp_path), MemBlob())
    drop(tmp_path, "a.jsonl", b"ab", mtime_ms=1_000)
    frontier = source.advance(None, source.freeze(None, until=None).frozen)
    drop(tmp_path, "a.jsonl", data, mtime_ms=mtime_ms)
    freeze = source.freeze(frontier, until=None)
    assert names(freeze) == []
    (changed,) = freeze.changed
    assert (changed.old_size_bytes, changed.old_mtime_ms) == (2, 1_000)
    assert (changed.new_size_bytes, changed.new_mtime_ms) == (len(data), mtime_ms)
    assert "changed after it was consumed (2 bytes at 1000" in freeze.notices()[0]


def test_links_inside_the_tree_are_followed_others_are_refused(tmp_path: Path) -> None:
    secret = drop(tmp_path, "secret.jsonl")
    drop(tmp_path, "in/store/a.jsonl")
    (tmp_path / "in" / "file.jsonl").symlink_to("store/a.jsonl")
    (tmp_path / "in" / "steals.jsonl").symlink_to(secret)
    (tmp_path / "in" / "broken.jsonl").symlink_to("nothing")
    (tmp_path / "in" / "loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "in" / "outside").symlink_to(tmp_path)
    (tmp_path / "in" / "again").symlink_to("store")
    (tmp_path / "in" / "store" / "up").symlink_to("..")
    freeze = FileSource(collection(tmp_path, "in/**/*.jsonl"), MemBlob()).freeze(None, until=None)
    assert names(freeze) == ["again/a.jsonl", "file.jsonl", "store/a.jsonl"]
    reasons = {file.path: file.reason for file in freeze.unmatched}
    assert "leaves" in reasons["steals.jsonl"]
    assert "leaves" in reasons["outside/"]
    assert "folder that holds it" in reasons["store/up/"]
    assert "folder that holds it" in reasons["again/up/"]
    assert "link to nothing" in reasons["broken.jsonl"]
    assert "loop.jsonl" in reasons


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    drop(tmp_path, "v1/a.jsonl")
    (tmp_path / "current").symlink_to("v1")
    freeze = FileSource(collection(tmp_path, "current/*.jsonl"), MemBlob()).freeze(None, until=None)
    assert [file.path for file in freeze.frozen.files] == [f"{tmp_path}/current/a.jsonl"]


@pytest.mark.parametrize("name", ["a\nb.jsonl", "a\x1b[2J.jsonl", "back\\slash.jsonl"])
def test_names_that_no_reader_can_be_trusted_with(tmp_path: Path, name: str) -> None:
    drop(tmp_path, name)
    freeze = FileSource(collection(tmp_path), MemBlob()).freeze(None, until=None)
    assert names(freeze) == []
    assert len(freeze.unmatched) == 1
    assert freeze.notices()[0].isprintable()


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).write_bytes(b"{}")
    freeze = FileSource(collection(tmp_path), MemBlob()).freeze(None, until=None)
    assert [file.reason for file in freeze.unmatched] == [
        "its name holds a control character, a backslash or bytes that are not UTF-8"
    ]
    assert freeze.notices()[0].isascii()


@pytest.mark.parametrize(
    "name", ["a b.jsonl", "ünï.jsonl", "a'; DROP TABLE x;--.jsonl", "{a}[b]*.jsonl", "%2e%2e.jsonl", "a:b.jsonl"]
)
def test_odd_names_that_are_fine(tmp_path: Path, name: str) -> None:
    source = FileSource(collection(tmp_path), MemBlob())
    drop(tmp_path, name)
    freeze = source.freeze(None, until=None)
    assert names(freeze) == [name]
    assert FrozenInput.decode(freeze.frozen.encode()) == freeze.frozen
    assert names(source.freeze(source.advance(None, freeze.frozen), until=None)) == []


def test_folders_and_pipes_that_match_are_reported(tmp_path: Path) -> None:
    drop(tmp_path, "spark.jsonl/part-0.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    freeze = FileSource(collection(tmp_path), MemBlob()).freeze(None, until=None)
    assert {file.path: file.reason for file in freeze.unmatched} == {
        "spark.jsonl": "it is a folder; end source.path in /* to read the files in it",
        "pipe.jsonl": "it is no regular file",
    }


def test_a_source_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Determinate, match=r"none.*does not exist or is no folder; create or mount it"):
        FileSource(collection(tmp_path, "none/*.jsonl"), MemBlob()).freeze(None, until=None)


@pytest.mark.parametrize("path", ["*/*.jsonl", "shut/*.jsonl", "shut/inner/*.jsonl"])
def test_a_folder_that_may_not_be_listed_is_an_error(path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        root = Path(folder)
        root.chmod(0o755)
        drop(root, "shut/inner/a.jsonl")
        (root / "shut").chmod(0)
        try:
            with unprivileged(), pytest.raises(Determinate, match=r"shut.*give this user access to it"):
                FileSource(collection(root, path), MemBlob()).freeze(None, until=None)
        finally:
            (root / "shut").chmod(0o755)


def test_limits_take_the_first_files_and_leave_the_rest(tmp_path: Path) -> None:
    for number in range(1, 13):
        drop(tmp_path, f"{number}.jsonl", b"x" * 10)
    config = collection(tmp_path, limits={"max_files": 5, "max_bytes": 35})
    source = FileSource(config, MemBlob())
    frontier: SourceFrontier | None = None
    seen: list[list[str]] = []
    for _ in range(4):
        freeze = source.freeze(frontier, until=DAY_MS)
        assert freeze.upper == DAY_MS
        frontier = source.advance(frontier, freeze.frozen)
        seen.append(names(freeze))
    assert seen == [[f"{n}.jsonl" for n in range(first, first + 3)] for first in (1, 4, 7, 10)]
    assert freeze.left_over == 0


def test_a_file_beyond_the_limit_is_taken_alone(tmp_path: Path) -> None:
    drop(tmp_path, "1.jsonl", b"x" * 100)
    drop(tmp_path, "2.jsonl")
    freeze = FileSource(collection(tmp_path, limits={"max_bytes": 10}), MemBlob()).freeze(None, until=DAY_MS)
    assert names(freeze) == ["1.jsonl"]
    assert freeze.is_over_limit
    assert freeze.left_over == 1
    assert any("are more than the collection's limits allow" in line for line in freeze.notices())


def test_closing_takes_everything_that_has_no_later_run(tmp_path: Path) -> None:
    for number in range(5):
        drop(tmp_path, f"{number}.jsonl")
    freeze = FileSource(collection(tmp_path, limits={"max_files": 2}), MemBlob()).freeze(None, until=None)
    assert len(freeze.frozen.files) == 5
    assert freeze.is_over_limit
    assert freeze.upper is None


def test_with_times_from_paths_whole_dates_are_taken_and_the_upper_stops_before_the_rest(tmp_path: Path) -> None:
    for name in ("z/2026-01-01.jsonl", "a/2026-01-01.jsonl", "a/2026-01-02.jsonl", "b/2026-01-03.jsonl"):
        drop(tmp_path, name)
    config = collection(tmp_path, "*/{date:%Y-%m-%d}.jsonl", time="path", limits={"max_files": 1})
    source = FileSource(config, MemBlob())
    first = source.freeze(None, until=parse_time("2026-01-04"))
    assert names(first) == ["a/2026-01-01.jsonl", "z/2026-01-01.jsonl"]
    assert first.upper == parse_time("2026-01-02")
    assert (first.left_over, first.is_over_limit) == (2, True)
    frontier = source.advance(None, first.frozen)
    second = source.freeze(frontier, until=None, lower=parse_time("2026-01-02"))
    assert names(second) == ["a/2026-01-02.jsonl"]
    assert second.upper == parse_time("2026-01-03")


def test_files_dated_before_the_lower_go_together(tmp_path: Path) -> None:
    for day in (1, 2, 3, 5):
        drop(tmp_path, f"2026-01-0{day}.jsonl")
    config = collection(tmp_path, "{date:%Y-%m-%d}.jsonl", time="path", limits={"max_files": 1})
    lower, until = parse_time("2026-01-03"), parse_time("2026-01-06")
    freeze = FileSource(config, MemBlob()).freeze(None, until=until, lower=lower)
    assert names(freeze) == ["2026-01-01.jsonl", "2026-01-02.jsonl", "2026-01-03.jsonl"]
    assert freeze.upper == parse_time("2026-01-05")


def test_frozen_input_has_canonical_bytes(tmp_path: Path) -> None:
    for number in range(3):
        drop(tmp_path, f"{number}.jsonl", mtime_ms=1_000)
    first = FileSource(collection(tmp_path), MemBlob()).freeze(None, until=None).frozen
    again = FileSource(collection(tmp_path), MemBlob()).freeze(None, until=None).frozen
    assert first.encode() == again.encode()
    assert first.digest() == again.digest()
    assert FrozenInput.decode(first.encode()) == first
    other = FrozenInput(first.files[1:], first.base)
    assert other.digest() != first.digest()


def test_frozen_input_of_elsewhere_is_refused() -> None:
    with pytest.raises(UnknownVersion, match="frozen input version 2"):
        FrozenInput.decode(b'{"version":2,"base":"","files":[]}')
    for data in (b"", b"[]", b"{}", b'{"version":1,"base":"","files":[[1]]}', b"\xff"):
        with pytest.raises(CorruptArtifact, match="mint again"):
            FrozenInput.decode(data)


def test_frozen_files_that_change_or_vanish_are_named(tmp_path: Path) -> None:
    path = drop(tmp_path, "a.jsonl", b"ab", mtime_ms=1_000)
    frozen = FileSource(collection(tmp_path), MemBlob()).freeze(None, until=None).frozen
    check_unchanged(frozen)
    drop(tmp_path, "a.jsonl", b"abc", mtime_ms=1_000)
    with pytest.raises(SourceChanged, match=r"a\.jsonl changed between minting and reading: 2 bytes at 1000, now 3"):
        check_unchanged(frozen)
    drop(tmp_path, "a.jsonl", b"xy", mtime_ms=1_001)
    with pytest.raises(SourceChanged, match="now 2 bytes at 1001"):
        check_unchanged(frozen)
    path.unlink()
    with pytest.raises(SourceChanged, match=r"a\.jsonl can't be read any more"):
        check_unchanged(frozen)


def test_a_frontier_can_be_advanced_again_but_not_past_the_same_files(tmp_path: Path) -> None:
    drop(tmp_path, "a.jsonl")
    blob = MemBlob()
    source = FileSource(collection(tmp_path), blob)
    frozen = source.freeze(None, until=None).frozen
    frontier = source.advance(None, frozen)
    assert FileSource(collection(tmp_path), blob).advance(None, frozen) == frontier
    with pytest.raises(InvalidInput, match=r"a\.jsonl.*consumed by an earlier commit"):
        source.advance(frontier, frozen)
    twice = FrozenInput((frozen.files[0], frozen.files[0]), frozen.base)
    with pytest.raises(InvalidInput, match="names a file twice"):
        source.advance(None, twice)


@pytest.mark.parametrize("wider", ["**/*.jsonl", "/{top}/**/*.jsonl", "/{top}/in/*/*.jsonl"])
def test_another_pattern_over_the_same_files_reads_nothing_again(tmp_path: Path, wider: str) -> None:
    drop(tmp_path, "in/x/a.jsonl")
    drop(tmp_path, "in/x/b.jsonl")
    blob = MemBlob()
    narrow = FileSource(collection(tmp_path, "in/x/*.jsonl"), blob)
    frontier = narrow.advance(None, narrow.freeze(None, until=None).frozen)
    drop(tmp_path, "in/y/c.jsonl")
    wide = FileSource(collection(tmp_path, wider.replace("/{top}", str(tmp_path))), blob)
    freeze = wide.freeze(frontier, until=None)
    assert [file.path for file in freeze.frozen.files] == [f"{tmp_path}/in/y/c.jsonl"]
    assert FrozenInput.decode(freeze.frozen.encode()) == freeze.frozen
    after = wide.advance(frontier, freeze.frozen)
    assert names(wide.freeze(after, until=None)) == []
    assert names(narrow.freeze(after, until=None)) == []


def test_a_tree_that_moved_is_known_by_its_relative_paths(tmp_path: Path) -> None:
    drop(tmp_path, "old/a.jsonl", mtime_ms=1_000)
    blob = MemBlob()
    source = FileSource(collection(tmp_path / "old"), blob)
    frontier = source.advance(None, source.freeze(None, until=None).frozen)
    (tmp_path / "old").rename(tmp_path / "new")
    moved = FileSource(collection(tmp_path / "new"), blob)
    assert names(moved.freeze(frontier, until=None)) == []


def test_segments_stay_few_and_are_rewritten_seldom() -> None:
    blob = MemBlob()
    frontier: SourceFrontier | None = None
    staged = 0
    commits = 600
    for number in range(commits):
        ledger = Ledger(blob, "orders")
        frontier = ledger.extend(frontier, {f"{number}.jsonl": (1, 2)}, base="/in")
        segments = segments_of(frontier)
        staged += segments[-1].files
        assert len(segments) <= (number + 1).bit_length()
        for larger, smaller in itertools.pairwise(segments):
            assert larger.files >= 2 * smaller.files
    assert frontier is not None
    assert Ledger(blob, "orders").consumed(frontier) == {f"{number}.jsonl": (1, 2) for number in range(commits)}
    assert staged <= commits * commits.bit_length()
    assert segment_keys([frontier]) == {segment.key for segment in segments_of(frontier)}


def test_damage_to_the_ledger_is_named(tmp_path: Path) -> None:
    drop(tmp_path, "a.jsonl")
    blob = MemBlob()
    config = collection(tmp_path)
    source = FileSource(config, blob)
    frontier = source.advance(None, source.freeze(None, until=None).frozen)
    (segment,) = segments_of(frontier)
    whole = blob.get(segment.key)
    assert whole is not None
    blob.set(segment.key, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptArtifact, match=f"{segment.key}.*has the digest .*, wanted {segment.sha256}"):
        FileSource(config, blob).freeze(frontier, until=None)
    blob.delete(segment.key)
    with pytest.raises(CorruptArtifact, match=f"{segment.key}.*is missing"):
        FileSource(config, blob).freeze(frontier, until=None)
    offsets = {**frontier.offsets, "segments": [{**frontier.offsets["segments"][0], "files": 2}]}
    blob.set(segment.key, whole)
    with pytest.raises(CorruptArtifact, match="holds 1 files, wanted 2"):
        FileSource(config, blob).freeze(SourceFrontier("files", offsets), until=None)


@pytest.mark.parametrize(
    "frontier",
    [
        SourceFrontier("kafka", {"segments": []}),
        SourceFrontier("files", {}),
        SourceFrontier("files", {"segments": [1]}),
    ],
)
def test_a_frontier_of_something_else_is_refused(tmp_path: Path, frontier: SourceFrontier) -> None:
    with pytest.raises(InvariantViolation, match="source frontier is none of 'files'"):
        FileSource(collection(tmp_path), MemBlob()).freeze(frontier, until=None)


class Consumption(RuleBasedStateMachine):
    """Files arrive anywhere at any time, runs freeze, die, commit: each file is consumed exactly once."""

    @initialize(by_path=st.booleans(), max_files=st.integers(1, 4))
    def start(self, by_path: bool, max_files: int) -> None:
        self.folder = Path(_folder())
        time = "path" if by_path else "description"
        self.config = collection(self.folder, "{date:%Y-%m-%d}/*.jsonl", time=time, limits={"max_files": max_files})
        self.blob = MemBlob()
        self.frontier: SourceFrontier | None = None
        self.upper = 0
        self.arrived: set[str] = set()
        self.consumed: list[str] = []

    @rule(day=st.integers(1, 5), number=st.integers(0, 15))
    def arrive(self, day: int, number: int) -> None:
        name = f"1970-01-0{day}/{number}.jsonl"
        if name not in self.arrived:
            drop(self.folder, name)
            self.arrived.add(name)

    @rule(days=st.integers(0, 7), dies=st.booleans())
    def run(self, days: int, dies: bool) -> None:
        until = days * DAY_MS
        if until <= self.upper:
            return
        source = FileSource(self.config, self.blob)  # a fresh process
        freeze = source.freeze(self.frontier, until=until, lower=self.upper)
        assert freeze.upper is not None
        assert self.upper < freeze.upper <= until
        assert FrozenInput.decode(freeze.frozen.encode()) == freeze.frozen
        orders = [file.order for file in freeze.frozen.files]
        assert orders == sorted(orders)
        due = {name for name in self.arrived - set(self.consumed) if _date(name) < until}
        assert freeze.left_over == len(due) - len(freeze.frozen.files)
        assert freeze.not_due == len(self.arrived) - len(self.consumed) - len(due)
        assert bool(due) == bool(freeze.frozen.files)
        if self.config.time.source == "path":
            left = due - set(names(freeze))
            assert all(_date(name) >= freeze.upper for name in left)
        if not dies:
            self.frontier = source.advance(self.frontier, freeze.frozen)
            self.consumed += names(freeze)
            self.upper = freeze.upper

    @invariant()
    def each_file_at_most_once(self) -> None:
        if hasattr(self, "consumed"):
            assert len(self.consumed) == len(set(self.consumed))
            assert set(self.consumed) <= self.arrived

    def teardown(self) -> None:
        if not hasattr(self, "config"):
            return
        for _ in range(len(self.arrived) + 1):
            self.run(8 + self.upper // DAY_MS, dies=False)
        assert sorted(self.consumed) == sorted(self.arrived)


def _date(name: str) -> int:
    return (int(name[8:10]) - 1) * DAY_MS


_ROOT: list[Path] = []


def _folder() -> str:
    """A fresh folder for each example, below pytest's own."""
    path = _ROOT[0] / str(len(list(_ROOT[0].iterdir())))
    path.mkdir()
    return str(path)


def test_each_file_is_consumed_exactly_once(tmp_path: Path) -> None:
    _ROOT[:] = [tmp_path]
    Consumption.TestCase.settings = settings(
        max_examples=settings().max_examples, stateful_step_count=25, deadline=None
    )
    Consumption.TestCase().runTest()


def test_twenty_thousand_files_take_a_moment(tmp_path: Path) -> None:
    """Against anything quadratic, which would take minutes; 100,000 files were measured at 2 s a freeze."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(20_000):
        os.close(os.open(folder / f"{number}.jsonl", os.O_CREAT | os.O_WRONLY))
    source = FileSource(collection(folder), MemBlob())
    freeze = source.freeze(None, until=None)
    assert len(freeze.frozen.files) == 20_000
    frontier = source.advance(None, FrozenInput.decode(freeze.frozen.encode()))
    assert source.freeze(frontier, until=None).frozen.files == ()
