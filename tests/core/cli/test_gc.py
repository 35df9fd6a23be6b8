"""`persist gc`, `persist drop` and `persist run --recreate`: what they print and refuse."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from persist_core.cli.main import run_command
from persist_core.compaction.merge import Merge, merge_here
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from tests.core.gc.test_kills import SHARD, make_garbage

NOW = ("--grace-hours", "0", "--intent-hours", "0")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PersistClient:
    location = PersistLocation(f"file://{tmp_path}/blobs", f"sqlite:///{tmp_path}/consensus.db")
    for name, value in location.to_env().items():
        monkeypatch.setenv(name, value)
    client = PersistClient(open_location(location))
    for day in (1, 2, 3):
        make_garbage(client, day)
    return client


@pytest.mark.usefixtures("client")
def test_gc_says_what_it_found_and_deletes_it_later(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["gc", SHARD, "--dry-run", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["reason"] for each in found} == {"no batch, commit or fork names it"}
    assert run_command(["gc", SHARD, "--dry-run"]) == 0
    assert "why it is not needed" in capsys.readouterr().out
    for expected in ({"marked": len(found)}, {"marked": 0, "deleted": 0}, {"deleted": len(found)}):
        assert run_command(["gc", "--json", *NOW]) == 0
        done = json.loads(capsys.readouterr().out)
        assert {name: done[name] for name in expected} == expected
    assert run_command(["gc", SHARD, "--dry-run"]) == 0
    assert "everything is needed" in capsys.readouterr().out
    assert run_command(["gc", SHARD, "nothing"]) == 3
    assert run_command(["gc", SHARD, "--grace-hours", "5", "--intent-hours", "1"]) == 2
    assert run_command(["gc", SHARD, "--intent-hours", f"{10**15}"]) == 0
    assert run_command(["fsck", SHARD]) == 0


@pytest.mark.parametrize("command", [("gc", SHARD), ("maintain", SHARD, "--max-merges", "0")])
def test_hours_are_those_of_the_project_file_unless_given(
    client: PersistClient, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSIST_COLLECTIONS", f"{tmp_path}/dags/collections")
    project = tmp_path / "dags" / "persist.yaml"
    project.parent.mkdir()
    project.write_text("maintenance: {grace_hours: 100, intent_hours: 400}\n")
    assert run_command(command) == 0
    era = client.state(SHARD).era
    for listed in (tmp_path / "blobs").glob(f"{SHARD}/gc/**/*"):
        os.utime(listed, (client.clock.now_ms() / 1000 - 50 * 3600,) * 2)  # longer ago than the grace by default
    assert run_command(command) == 0
    assert client.state(SHARD).era == era
    project.write_text("maintenance: {grace_hours: 20}\n")
    assert run_command(("gc", SHARD, "--grace-hours", "60", "--intent-hours", "60")) == 0
    assert client.state(SHARD).era == era
    assert run_command(command) == 0
    assert client.state(SHARD).era == era + 1
    project.write_text("maintenance: {grace_hours: none}\n")
    assert run_command(command) == 2


@pytest.mark.usefixtures("client")
def test_each_error_of_several_shards_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["gc", "nothing", SHARD, "none", "--json"]) == 3
    captured = capsys.readouterr()
    assert [json.loads(line)["shard"] for line in captured.out.splitlines()] == [SHARD]
    assert [json.loads(line)["error"]["kind"] for line in captured.err.splitlines()] == ["shard_not_found"] * 2


@pytest.mark.usefixtures("client")
def test_after_an_error_of_each_shard_none_is_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["gc", "--grace-hours", "0"]) == 2
    assert capsys.readouterr().out == ""


def test_drop_asks_and_refuses_what_is_needed(
    client: PersistClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.open_since(SHARD, "view/sales")
    assert run_command(["drop", SHARD, "--yes"]) == 2
    assert "is needed by hold view/sales" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run_command(["drop", SHARD]) == 130
    assert not client.state(SHARD).is_dropped
    assert run_command(["drop", SHARD, "--yes", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shard": SHARD, "dropped": True, "is_new": True}
    for _ in range(3):
        assert run_command(["gc", SHARD, *NOW]) == 0
    assert list(client.blob.list_keys_and_metadata(f"{SHARD}/")) == []
    capsys.readouterr()
    assert run_command(["drop", SHARD, "--yes"]) == 0
    assert "was dropped before" in capsys.readouterr().out


def test_a_merge_in_a_dropped_shard_does_nothing(client: PersistClient) -> None:
    state = client.state(SHARD)
    make_garbage(client, 4)
    assert run_command(["drop", SHARD, "--yes"]) == 0
    assert run_command(["fsck", SHARD]) == 0
    with pytest.raises(ValueError, match="not neighbors"):
        merge_here(client, Merge.of(client, client.state(SHARD), state.batches), attempt=client.ids.uuid7())
