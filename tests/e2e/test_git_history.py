"""The history of git repositories, replayed through the job, equals `git ls-tree -r` at every commit sampled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persist_core.handles.client import PersistClient
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from tests.e2e.git_feed import COLLECTION, Tree, commits, path_text, records, tree
from tests.e2e.git_replay import replay
from tests.e2e.random_repo import make_random_repo
from tests.servers.backends import on_postgresql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def location(tmp_path: Path, consensus_uri: str) -> Iterator[OpenLocation]:
    uris = PersistLocation((tmp_path / "blobs").as_uri(), consensus_uri)
    with open_location(uris) as opened:
        yield opened


@pytest.fixture
def random_repo(tmp_path: Path, persist_seed: int) -> Path:
    return make_random_repo(tmp_path / "repo.git", seed=persist_seed, commits=300)


def test_the_feed_says_what_git_says(random_repo: Path) -> None:
    """The feed itself is correct: applied record by record it gives the tree of every single commit."""
    history = commits(random_repo)
    feed = list(records(random_repo, history))
    state: Tree = {}
    position = 0
    for time, commit in enumerate(history, 1):
        while position < len(feed) and feed[position].time == time:
            record = feed[position]
            if record.mode is None or record.blob is None:
                del state[record.path]
            else:
                state[record.path] = (record.mode, record.blob)
            position += 1
        assert state == tree(random_repo, commit), f"commit {time}"
    assert position == len(feed)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain", "plain"),
        (b"new\nline", "new\nline"),
        ("\u6f22".encode(), "\u6f22"),
        (b"latin-\xe9", "latin-\\xe9"),
        (b"latin-\\xe9", "latin-\\\\xe9"),
    ],
)
def test_paths_stay_different_as_text(raw: bytes, text: str) -> None:
    assert path_text(raw) == text


@pytest.mark.family("histories in Spark")
def test_a_random_repository(spark: SparkSession, location: OpenLocation, random_repo: Path, tmp_path: Path,
                             persist_seed: int) -> None:  # fmt: skip
    done = replay(spark, location, random_repo, tmp_path / "work", batches=4, samples=40, seed=persist_seed)
    assert done.commits == 300
    assert any(stats["stashed"] for stats in done.stats), "no record ever waited in the stash: the test lost its point"
    assert sum(stats["deletes"] for stats in done.stats) > 10
    client = PersistClient(location)
    assert len(client.state(COLLECTION).batches) < 4, "nothing was merged"
    assert fsck(client, COLLECTION).is_clean


@pytest.mark.family("days of a source")
@on_postgresql
def test_this_repository(spark: SparkSession, location: OpenLocation, tmp_path: Path, persist_seed: int) -> None:
    if subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, check=False).returncode:
        pytest.skip(f"{ROOT} is no git repository with a commit")
    done = replay(spark, location, ROOT, tmp_path / "work", batches=3, samples=10, seed=persist_seed)
    assert done.records >= 1
