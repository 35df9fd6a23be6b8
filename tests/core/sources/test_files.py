"""The file source: what is frozen, consumed, left over and reported. On a real file system and a real `Blob`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from persist_core.contents.batch import SourceFrontier
from persist_core.errors import CorruptArtifact, InvalidInput, SourceChanged, UnknownVersion
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.sealed import seal
from persist_core.shard.state import Commit, ShardState
from persist_core.sources.collection import CollectionSource
from persist_core.sources.feed import LocalFeed, Wanted
from persist_core.sources.file_scan import FoundFile, Scan
from persist_core.sources.files import FileSource
from persist_core.sources.input_file import FrozenInput
from persist_core.sources.ledger import FileProgress
from persist_core.time_text import parse_time
from tests.core.sources.drop_folder import DAY_MS, collection, drop, folder, names


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
    frontier = source.advance(None, first.frozen, era=0)
    assert names(source.freeze(frontier, until=None)) == []
    drop(tmp_path, "date=2026-01-01/late.jsonl")
    drop(tmp_path, "date=2026-01-02/0.jsonl")
    second = source.freeze(frontier, until=None)
    assert names(second) == ["date=2026-01-01/late.jsonl", "date=2026-01-02/0.jsonl"]
    after = source.advance(frontier, second.frozen, era=0)
    assert names(source.freeze(after, until=None)) == []
    assert after.offsets["files"] == 3


def test_a_file_dated_at_the_upper_is_not_due(tmp_path: Path) -> None:
    source = FileSource(collection(tmp_path, "{date:%Y-%m-%d}.jsonl"), MemBlob())
    for day in (1, 2, 3):
        drop(tmp_path, f"2026-01-0{day}.jsonl")
    freeze = source.freeze(None, until=parse_time("2026-01-03"))
    assert names(freeze) == ["2026-01-01.jsonl", "2026-01-02.jsonl"]
    assert freeze.not_due == 1
    assert freeze.notices() == (), "usual in a backfill"
    assert source.freeze(None, until=parse_time("2026-01-03") + 1).not_due == 0


def test_a_look_for_files_lists_days_and_not_the_bucket() -> None:
    """A run that is covered looks so, and a task that waits: to list the whole bucket costs as much as its history."""
    client = PersistClient(OpenLocation(MemBlob(), MemConsensus()))
    source = {"path": "s3://bucket/{date:%Y-%m-%d}/*.jsonl", "format": "debezium-json"}
    asked: list[tuple[int, int] | None] = []

    class Listed(LocalFeed):
        def scan(self, wanted: Wanted) -> Scan:
            asked.append(wanted.dates)
            return Scan([FoundFile("2026-01-10/a.jsonl", 1, 1, 0, parse_time("2026-01-10"))])

    found = CollectionSource(client, config := collection(Path("/"), source=source))
    found.files = FileSource(config, client.blob, Listed(config.source_pattern()))
    upper = parse_time("2026-01-10T12:00")
    consumed = found.files.advance(None, found.files.freeze(None, until=upper).frozen, era=0)
    state = replace(ShardState("orders"), upper=Frontier(upper), sources={"files": consumed})
    for until, again in ((upper, False), (upper - DAY_MS, False), (upper + DAY_MS, True)):
        assert found.pending(state, until=until, again=again) == 0
        assert asked.pop() == (min(upper, until) - 7 * DAY_MS, until)
    assert found.pending(state, until=upper + DAY_MS) == 0
    assert asked.pop() is None, "the first look of a day, as of a run"
    commit = Commit("t", "c", 0, upper, "key", "aa", "id", 1, "cli", 3, 6, 0, 99, restored_from="id0", is_change=True)
    for again in (False, True):
        assert found.pending(replace(state, commits=(commit,)), until=upper, again=again) == 0
        assert asked.pop() is None, "the progress was put back: any file may be due again"


def test_empty_files_are_consumed_too(tmp_path: Path) -> None:
    source = FileSource(collection(tmp_path), MemBlob())
    drop(tmp_path, "empty.jsonl", b"")
    freeze = source.freeze(None, until=None)
    assert names(freeze) == ["empty.jsonl"]
    assert names(source.freeze(source.advance(None, freeze.frozen, era=0), until=None)) == []


@pytest.mark.parametrize(("data", "mtime_ms"), [(b"longer", 1_000), (b"ab", 2_000)], ids=["size", "mtime"])
def test_a_consumed_file_that_changed_is_reported_not_read(tmp_path: Path, data: bytes, mtime_ms: int) -> None:
    source = FileSource(collection(tmp_path), MemBlob())
    drop(tmp_path, "a.jsonl", b"ab", mtime_ms=1_000)
    frontier = source.advance(None, source.freeze(None, until=None).frozen, era=0)
    drop(tmp_path, "a.jsonl", data, mtime_ms=mtime_ms)
    freeze = source.freeze(frontier, until=None)
    assert names(freeze) == []
    (changed,) = freeze.changed
    assert (changed.old_size_bytes, changed.old_mtime_ms) == (2, 1_000)
    assert (changed.new_size_bytes, changed.new_mtime_ms) == (len(data), mtime_ms)
    assert "changed after it was consumed (2 bytes at 1970-01-01T00:00:01Z" in freeze.notices()[0]


def test_a_file_that_was_set_aside_is_read_when_it_changes(tmp_path: Path) -> None:
    blob = MemBlob()
    source = FileSource(collection(tmp_path), blob)
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        drop(tmp_path, name, b"ab", mtime_ms=1_000)
    frozen = source.freeze(None, until=None).frozen
    frontier = source.set_aside(source.advance(None, frozen, era=0), {frozen.files[1]}, era=0)
    assert names(source.freeze(frontier, until=None)) == []
    for name in ("a.jsonl", "b.jsonl"):
        drop(tmp_path, name, b"corrected", mtime_ms=2_000)
    again = FileSource(collection(tmp_path), blob).freeze(frontier, until=None)
    assert [file.relative for file in again.changed] == ["a.jsonl"], "this one was read"
    assert [(file.relative, file.is_corrected) for file in again.frozen.files] == [("b.jsonl", True)]
    assert FrozenInput.decode(again.frozen.encode()) == again.frozen
    after = source.advance(frontier, again.frozen, era=0)
    assert (after.offsets["files"], after.offsets["size_bytes"]) == (4, 15), "they never sink"
    progress = FileProgress(blob, "orders", after)
    assert list(progress.verify()) == []
    assert [each.name for each in progress.consumed_since(frontier)] == ["b.jsonl"]
    drop(tmp_path, "b.jsonl", b"once more", mtime_ms=3_000)
    assert names(source.freeze(after, until=None)) == []


def test_a_file_that_was_empty_is_read_when_it_is_filled(tmp_path: Path) -> None:
    source = FileSource(collection(tmp_path), MemBlob())
    drop(tmp_path, "a.jsonl", b"", mtime_ms=1_000)
    frontier = source.advance(None, source.freeze(None, until=None).frozen, era=0)
    drop(tmp_path, "a.jsonl", b"filled", mtime_ms=2_000)
    freeze = source.freeze(frontier, until=None)
    assert (names(freeze), freeze.changed) == (["a.jsonl"], ())
    after = source.advance(frontier, freeze.frozen, era=0)
    drop(tmp_path, "a.jsonl", b"once more", mtime_ms=3_000)
    again = source.freeze(after, until=None)
    assert (names(again), len(again.changed)) == ([], 1)


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
        frontier = source.advance(frontier, freeze.frozen, era=0)
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
    assert any("exceed the collection's limits" in line for line in freeze.notices())


def test_closing_takes_everything_that_has_no_later_run(tmp_path: Path) -> None:
    for number in range(5):
        drop(tmp_path, f"{number}.jsonl")
    freeze = FileSource(collection(tmp_path, limits={"max_files": 2}), MemBlob()).freeze(None, until=None)
    assert len(freeze.frozen.files) == 5
    assert freeze.is_over_limit
    assert freeze.upper is None


def test_with_times_from_paths_whole_dates_are_taken(tmp_path: Path) -> None:
    for name in ("z/2026-01-01.jsonl", "a/2026-01-01.jsonl", "a/2026-01-02.jsonl", "b/2026-01-03.jsonl"):
        drop(tmp_path, name)
    config = collection(tmp_path, "*/{date:%Y-%m-%d}.jsonl", time="path", limits={"max_files": 1})
    source = FileSource(config, MemBlob())
    first = source.freeze(None, until=parse_time("2026-01-04"))
    assert names(first) == ["a/2026-01-01.jsonl", "z/2026-01-01.jsonl"]
    assert first.upper == parse_time("2026-01-02")
    assert (first.left_over, first.is_over_limit) == (2, True)
    frontier = source.advance(None, first.frozen, era=0)
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
    assert FrozenInput.decode(first.encode()) == first
    other = FrozenInput(first.files[1:], first.base)
    assert other.encode() != first.encode()


def test_frozen_input_of_elsewhere_is_refused() -> None:
    with pytest.raises(UnknownVersion, match="frozen input has version 2"):
        FrozenInput.decode(seal("frozen_files", 2, {}))
    for data in (b"", b"[]", b"{}", b"\xff", seal("frozen_files", 1, {"base": "", "files": [[1]]})):
        with pytest.raises(CorruptArtifact, match=r"a frozen input is (damaged|malformed)"):
            FrozenInput.decode(data)


def test_frozen_files_that_change_or_vanish_are_named(tmp_path: Path) -> None:
    path = drop(tmp_path, "a.jsonl", b"ab", mtime_ms=1_000)
    frozen = FileSource(collection(tmp_path), MemBlob()).freeze(None, until=None).frozen
    folder(tmp_path).check(frozen.files)
    drop(tmp_path, "a.jsonl", b"abc", mtime_ms=1_000)
    with pytest.raises(
        SourceChanged, match=r"a\.jsonl changed between minting and reading: 2 bytes at 1970-01-01T00:00:01Z, now 3"
    ):
        folder(tmp_path).check(frozen.files)
    drop(tmp_path, "a.jsonl", b"xy", mtime_ms=1_001)
    with pytest.raises(SourceChanged, match=r"now 2 bytes at 1970-01-01T00:00:01\.001Z"):
        folder(tmp_path).check(frozen.files)
    path.unlink()
    with pytest.raises(SourceChanged, match=r"a\.jsonl can no longer be read"):
        folder(tmp_path).check(frozen.files)


def frozen_of(root: Path, path: str = "in/**/*.jsonl") -> FrozenInput:
    return FileSource(collection(root, path), MemBlob()).freeze(None, until=None).frozen


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_put_in_after_the_scan_is_not_read(tmp_path: Path, what: str) -> None:
    secret = drop(tmp_path, "secret/a.jsonl", b"ab", mtime_ms=1_000)
    inside = drop(tmp_path, "in/x/a.jsonl", b"cd", mtime_ms=1_000)
    frozen = frozen_of(tmp_path)
    left, leads = (inside, secret) if what == "file" else (inside.parent, secret.parent)
    left.rename(tmp_path / "away")
    left.symlink_to(leads)
    with pytest.raises(SourceChanged, match=r"a\.jsonl now leads to .*/secret/a\.jsonl, outside of .*/in"):
        folder(tmp_path / "in").check(frozen.files)


def test_a_file_that_was_exchanged_and_put_back_is_seen(tmp_path: Path) -> None:
    path = drop(tmp_path, "in/a.jsonl", b"ab", mtime_ms=1_000)
    frozen = frozen_of(tmp_path)
    folder(tmp_path / "in").check(frozen.files)
    for _ in range(100_000):  # until the file system's clock has gone on, some ms
        if drop(tmp_path, "clock").stat().st_ctime_ns > frozen.files[0].ctime_ns:
            break
    path.rename(tmp_path / "in/away")
    drop(tmp_path, "in/a.jsonl", b"cd", mtime_ms=1_000)
    (tmp_path / "in/away").replace(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (b"ab", 1_000_000_000)
    with pytest.raises(SourceChanged, match=r"its name, rights or links changed at 20"):
        folder(tmp_path / "in").check(frozen.files)


def test_links_that_stay_inside_are_read_as_before(tmp_path: Path) -> None:
    drop(tmp_path, "v1/store/a.jsonl")
    (tmp_path / "v1/link.jsonl").symlink_to("store/a.jsonl")
    (tmp_path / "v1/again").symlink_to("store")
    (tmp_path / "in").symlink_to("v1")
    frozen = frozen_of(tmp_path)
    assert len(frozen.files) == 3
    folder(tmp_path / "in").check(frozen.files)


def test_a_feed_copied_to_another_machine_is_not_changed(tmp_path: Path) -> None:
    drop(tmp_path, "in/a.jsonl", b"ab", mtime_ms=1_000)
    blob = MemBlob()
    source = FileSource(collection(tmp_path, "in/*.jsonl"), blob)
    frontier = source.advance(None, source.freeze(None, until=None).frozen, era=0)
    (tmp_path / "in").rename(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "in")  # with other inodes and times of change
    again = FileSource(collection(tmp_path, "in/*.jsonl"), blob).freeze(frontier, until=None)
    assert (again.frozen.files, again.changed) == ((), ())


def test_a_frontier_does_not_pass_the_same_files_twice(tmp_path: Path) -> None:
    drop(tmp_path, "a.jsonl")
    blob = MemBlob()
    source = FileSource(collection(tmp_path), blob)
    frozen = source.freeze(None, until=None).frozen
    frontier = source.advance(None, frozen, era=0)
    assert FileSource(collection(tmp_path), blob).advance(None, frozen, era=0) == frontier
    with pytest.raises(InvalidInput, match=r"a\.jsonl.*consumed by an earlier commit"):
        source.advance(frontier, frozen, era=0)
    twice = FrozenInput((frozen.files[0], frozen.files[0]), frozen.base)
    with pytest.raises(InvalidInput, match="names a file twice"):
        source.advance(None, twice, era=0)


@pytest.mark.parametrize("wider", ["**/*.jsonl", "/{top}/**/*.jsonl", "/{top}/in/*/*.jsonl"])
def test_another_pattern_over_the_same_files_reads_nothing_again(tmp_path: Path, wider: str) -> None:
    drop(tmp_path, "in/x/a.jsonl")
    drop(tmp_path, "in/x/b.jsonl")
    blob = MemBlob()
    narrow = FileSource(collection(tmp_path, "in/x/*.jsonl"), blob)
    frontier = narrow.advance(None, narrow.freeze(None, until=None).frozen, era=0)
    drop(tmp_path, "in/y/c.jsonl")
    wide = FileSource(collection(tmp_path, wider.replace("/{top}", str(tmp_path))), blob)
    freeze = wide.freeze(frontier, until=None)
    assert [file.path for file in freeze.frozen.files] == [f"{tmp_path}/in/y/c.jsonl"]
    assert FrozenInput.decode(freeze.frozen.encode()) == freeze.frozen
    after = wide.advance(frontier, freeze.frozen, era=0)
    assert names(wide.freeze(after, until=None)) == []
    assert names(narrow.freeze(after, until=None)) == []
