"""The ledger of consumed files; and that each file is consumed exactly once, whatever the order of events."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from persist_core.contents.batch import SourceFrontier
from persist_core.errors import CorruptArtifact, InvariantViolation
from persist_core.location.mem import MemBlob
from persist_core.sources.files import FileSource
from persist_core.sources.input_file import FrozenInput
from persist_core.sources.ledger import FileProgress, Ledger, segments_of
from persist_core.sources.root import Place
from tests.core.sources.drop_folder import DAY_MS, collection, drop, names


def test_segments_stay_few_and_are_rewritten_seldom() -> None:
    blob = MemBlob()
    frontier: SourceFrontier | None = None
    staged = 0
    commits = 600
    for number in range(commits):
        ledger = Ledger(blob, "orders")
        frontier = ledger.extend(frontier, {f"{number}.jsonl": (1, 2, None, False)}, place=Place("/in", "/in"), era=0)
        segments = segments_of(frontier)
        staged += segments[-1].files
        assert len(segments) <= (number + 1).bit_length()
        for larger, smaller in itertools.pairwise(segments):
            assert larger.files >= 2 * smaller.files
    assert frontier is not None
    facts = (1, 2, None, False)
    assert Ledger(blob, "orders").consumed(frontier) == {f"{number}.jsonl": facts for number in range(commits)}
    assert staged <= commits * commits.bit_length()
    assert FileProgress(blob, "orders", frontier).needed_keys() == {segment.key for segment in segments_of(frontier)}


def test_damage_to_the_ledger_is_named(tmp_path: Path) -> None:
    drop(tmp_path, "a.jsonl")
    blob = MemBlob()
    config = collection(tmp_path)
    source = FileSource(config, blob)
    frontier = source.advance(None, source.freeze(None, until=None).frozen, era=0)
    (segment,) = segments_of(frontier)
    whole = blob.get(segment.key)
    assert whole is not None
    blob.set(segment.key, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptArtifact, match=f"{segment.key}.*has the digest .*, expected {segment.sha256}"):
        FileSource(config, blob).freeze(frontier, until=None)
    blob.delete(segment.key)
    with pytest.raises(CorruptArtifact, match=f"{segment.key}.*is missing"):
        FileSource(config, blob).freeze(frontier, until=None)
    offsets = {**frontier.offsets, "segments": [{**frontier.offsets["segments"][0], "files": 2}]}
    blob.set(segment.key, whole)
    with pytest.raises(CorruptArtifact, match="holds 1 files, expected 2"):
        FileSource(config, blob).freeze(SourceFrontier("files", offsets), until=None)


@pytest.mark.parametrize(
    "frontier",
    [
        SourceFrontier("kafka", {"root": "/", "base": "/", "segments": []}),
        SourceFrontier("files", {}),
        SourceFrontier("files", {"segments": [1]}),
    ],
)
def test_a_frontier_of_something_else_is_refused(tmp_path: Path, frontier: SourceFrontier) -> None:
    with pytest.raises(InvariantViolation, match="source progress is not of type 'files'"):
        FileSource(collection(tmp_path), MemBlob()).freeze(frontier, until=None)


class Consumption(RuleBasedStateMachine):
    """Files arrive anywhere at any time; runs freeze, crash, commit: each file is consumed exactly once."""

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
            self.frontier = source.advance(self.frontier, freeze.frozen, era=0)
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
    """A quadratic algorithm would take minutes; with 100,000 files a freeze takes 2 s (measured)."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(20_000):
        os.close(os.open(folder / f"{number}.jsonl", os.O_CREAT | os.O_WRONLY))
    source = FileSource(collection(folder), MemBlob())
    freeze = source.freeze(None, until=None)
    assert len(freeze.frozen.files) == 20_000
    frontier = source.advance(None, FrozenInput.decode(freeze.frozen.encode()), era=0)
    assert source.freeze(frontier, until=None).frozen.files == ()
