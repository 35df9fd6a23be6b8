"""A merge that is killed at any of its writes changes no answer, and the next one does the work."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persist_core.handles.client import PersistClient
from tests.core.compaction.histories import KEYED, History
from tests.core.compaction.kill_driver import INPUTS, SHARD, count_writes, merge, merge_in_steps, opened
from tests.virtual import ManualClock, SeededIds

BATCHES = 7
SECONDS = 120  # a bound on each process, which takes about one


@pytest.mark.family("merges")
def test_kill_9_at_every_write(tmp_path: Path) -> None:
    """The folder is copied for each process; all of them run side by side."""
    history, writes = whole_and_writes(tmp_path, merge)
    assert writes[-1] == "compare_and_set"
    assert len(writes) >= 5, "parts of several kinds, the manifest, the state"
    points = [1, len(writes) - 2, len(writes) - 1, len(writes)]
    killed = {point: started(copied(tmp_path, str(point)), point) for point in points}
    for point, process in killed.items():
        assert process.wait(SECONDS) == -signal.SIGKILL
        clock = ManualClock(1_700_000_000_000)
        history.client = PersistClient(opened(tmp_path / str(point)), clock, SeededIds(99, clock))
        is_done = point == len(writes)
        assert len(history.state.batches) == (
            BATCHES - len(range(*INPUTS.indices(BATCHES))) + 1 if is_done else BATCHES
        )
        history.check()
        merge(history.client)
        history.append()
        history.check()
        history.expected = history.expected.until(history.client.state(SHARD).batches[-1].lower)
        history.client.location.close()


@pytest.mark.family("merges")
def test_kill_9_in_a_step_and_between_steps(tmp_path: Path) -> None:
    history, writes = whole_and_writes(tmp_path, merge_in_steps, ids=12)
    ends = [number for number, name in enumerate(writes) if name == "compare_and_set"]
    assert len(ends) > 5, "steps"
    points = [ends[2] - 1, ends[2], ends[2] + 1, ends[-1]]
    killed = {point: started(copied(tmp_path, str(point)), str(point), "steps") for point in points}
    for point, process in killed.items():
        assert process.wait(SECONDS) == -signal.SIGKILL
        clock = ManualClock(1_700_000_000_000)
        history.client = PersistClient(opened(tmp_path / str(point)), clock, SeededIds(99, clock))
        assert history.state.batches[0].is_partial
        history.check()
        merge_in_steps(history.client)
        history.check()
        history.client.location.close()


def whole_and_writes(
    folder: Path, merging: Callable[[PersistClient], None], **options: Any
) -> tuple[History, list[str]]:
    """A history in the folder `whole`, and the writes of merging a copy of it."""
    history = History(opened(folder / "whole"), KEYED, seed=4, **options)
    while len(history.state.batches) < BATCHES:
        history.append()
    history.client.location.close()
    counted = PersistClient(opened(copied(folder, "counted")))
    writes = count_writes(counted)
    merging(counted)
    counted.location.close()
    return history, writes


def started(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.core.compaction.kill_driver", *map(str, arguments)])


def copied(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder / "whole", folder / name))
