"""Users who may only read, or not even that: what commands say to them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from persist_core.alerts.board import WatchBoard
from persist_core.cli.main import run_command
from persist_core.errors import Determinate
from persist_core.handles.client import PersistClient
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance import actions
from tests.core.sources.test_scan import only_root, unprivileged
from tests.core.world import SCHEMA
from tests.plain_commit import commit

SHARD = "fruit"


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a location with one shard, which all may read; `tmp_path` is closed to other users."""
    folder = Path(tempfile.mkdtemp(prefix="persist-readers-"))
    (folder / "blob").mkdir(mode=0o755)
    folder.chmod(0o755)
    location = PersistLocation(f"file://{folder}/blob", f"sqlite:///{folder}/consensus.db")
    before = os.umask(0o022)
    with open_location(location) as opened:
        commit(PersistClient(opened), SHARD, SCHEMA, 5, [((1, "apple"), 1, 1)])
    os.umask(before)
    for name, value in location.to_env().items():
        monkeypatch.setenv(name, value)
    yield folder
    shutil.rmtree(folder)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The command as a user who owns nothing of it: its exit code, and what it prints."""
    capsys.readouterr()
    with unprivileged():
        code = run_command(list(arguments))
    return code, capsys.readouterr().out


def test_parts_that_may_not_be_read_are_no_damage(owned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (owned / "blob" / "lost+found").mkdir(mode=0)  # as in the root of a disk
    code, out = run(capsys, "fsck")
    assert (code, out.startswith(f"{SHARD}: clean")) == (0, True)
    for part in owned.rglob("*.parquet"):
        part.chmod(0)
    code, out = run(capsys, "fsck")
    assert (code, "violations" in out) == (6, False)
    assert "could not be checked" in out.splitlines()[0]


def test_a_store_that_fails_leaves_the_last_result(monkeypatch: pytest.MonkeyPatch) -> None:
    client = PersistClient(OpenLocation(blob := MemBlob(), MemConsensus()))
    commit(client, SHARD, SCHEMA, 5, [((1, "apple"), 1, 1)])
    key = client.manifest(client.state(SHARD).batches[0]).parts[0].key
    actions.check(client, SHARD)
    before = WatchBoard(client).read().of(SHARD).check

    def get(wanted: str) -> bytes | None:
        if wanted == key:
            raise Determinate("no answer")
        return MemBlob.get(blob, wanted)

    monkeypatch.setattr(blob, "get", get)
    done = actions.check(client, SHARD)
    assert (done.facts["is_clean"], done.facts["is_damaged"]) == (False, False)
    assert WatchBoard(client).read().of(SHARD).check == before


def test_why_a_shard_cannot_be_read_is_said_in_full(owned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for manifest in owned.rglob("manifest.json"):
        manifest.chmod(0)
    code, out = run(capsys, "shards")
    assert (code, out.splitlines()[-1].startswith(f"{SHARD}: ")) == (0, True)
    assert "Permission denied" in out.splitlines()[-1]


@only_root
def test_doctor_tells_a_reader_what_runs_need(owned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "doctor")
    assert code == 1
    assert out.count("problem  probe ") == out.count("runs need them, readers do not") == 2
    owned.chmod(0o700)
    code, out = run(capsys, "doctor")
    assert (code, "does not exist" in out, out.count("Permission denied")) == (1, False, 2)
