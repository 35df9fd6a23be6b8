"""`persist run` of several: one process for all, each with its own result."""

from __future__ import annotations

import json

import pytest

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.cli import run
from persist_core.cli.main import run_command
from persist_core.config.project import MAX_HOURS, MaintenanceConfig
from persist_core.config.shard import ShardConfig
from persist_core.errors import CorruptArtifact, Determinate, Indeterminate, PersistError
from persist_core.handles.client import PersistClient
from persist_core.protocol import stages
from persist_core.time_text import HOUR_MS
from tests.core.cli.world import UNTIL, World
from tests.core.cli.world import world as world  # the fixture


def write_collections(world: World, *names: str) -> list[str]:
    """The files of collections that read the same folder, and the command that runs them all."""
    folder = world.folder / "dags" / "collections"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        body = {
            "source": {"path": str(world.drops / "*.txt"), "format": "json"},
            "key": "id",
            "columns": {"id": "bigint"},
            "delete": "none",
        }
        (folder / f"{name}.yaml").write_text(json.dumps(body))
    return ["run", "--collections", str(folder), "--until", str(UNTIL)]


def ids(world: World, name: str) -> list[int]:
    return sorted(world.client.open_reader(name).snapshot()["id"].to_pylist())


def has_checkpoint(world: World, name: str) -> bool:
    """True if the newest commit has one."""
    state = world.client.state(name)
    assert state.newest_commit is not None
    checkpointer = Checkpointer(world.client.blob, name, state.origin.life)
    return checkpointer.find_readable(state.newest_commit.checkpoint_id) is not None


def test_all_share_one_process_and_views_come_after_their_inputs(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    command = write_collections(world, "a", "b")
    views = world.folder / "dags" / "views"
    views.mkdir()
    (views / "a_view.yaml").write_text(json.dumps({"inputs": ["b"], "query": "SELECT id FROM b"}))
    world.drop("x.txt", 1, 2)
    assert run_command([*command, "--all", "--json"]) == 0
    printed = capsys.readouterr()
    found = [json.loads(line) for line in printed.out.splitlines()]
    assert [(body["shard"], body["status"]) for body in found] == [
        ("a", "committed"), ("b", "committed"), ("a_view", "committed"),
    ]  # fmt: skip
    assert "3 shards: 3 committed" in printed.err
    assert [ids(world, name) for name in ("a", "b", "a_view")] == [[1, 2]] * 3
    assert len(world.calls()) == 1
    assert run_command([*command, "--all"]) == 0
    assert "3 shards: 3 up to date" in capsys.readouterr().err
    assert len(world.calls()) == 1, "without input there is no Spark"


@pytest.mark.family("commands")
@pytest.mark.parametrize("do", ["fail", "die"])
def test_one_that_fails_or_kills_spark_leaves_the_others_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], do: str
) -> None:
    command = write_collections(world, "a", "b", "c")
    world.drop("x.txt", 1)
    monkeypatch.setenv("STAND_IN_OF", json.dumps({"b": do}))
    world.spark_will("stage", "too_many_errors")
    assert run_command([*command, "c", "b", "a"]) == 5
    printed = capsys.readouterr()
    assert "b failed: " in printed.out
    assert "1 of 3 failed, the others are done: b" in printed.err
    assert (ids(world, "a"), ids(world, "c"), world.client.state("b").commits) == ([1], [1], ())
    monkeypatch.delenv("STAND_IN_OF")
    before = len(world.calls())
    assert run_command([*command, "a", "b", "c"]) == 0
    assert "3 shards: 1 committed, 2 up to date" in capsys.readouterr().err
    assert (ids(world, "b"), len(world.calls()) - before) == ([1], 1)


@pytest.mark.family("commands")
@pytest.mark.parametrize(("error", "code"), [(Determinate, 6), (Indeterminate, 6), (CorruptArtifact, 4)])
def test_a_commit_whose_checkpoint_fails_is_a_commit(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: type[PersistError],
    code: int,
) -> None:
    """It is reported as one, the exit code is the error's, and the next run makes the checkpoint."""
    command = write_collections(world, "a", "b", "c")
    checkpoint = stages.checkpoint
    broken = ["a", "b"]

    def fails(client: PersistClient, config: ShardConfig) -> object:
        if config.name in broken:
            raise error(f"no connection for {config.name}; nothing was changed")
        return checkpoint(client, config)

    monkeypatch.setattr(stages, "checkpoint", fails)
    world.drop("x.txt", 1)
    assert run_command([*command, "a", "--json"]) == code
    printed = capsys.readouterr()
    body = json.loads(printed.out)
    assert (body["status"], len(body["commits"])) == ("committed", 1)
    assert body["checkpoint_error"]["kind"] == error.kind
    assert "a: committed; its checkpoint failed, and the next run makes it: no connection for a" in printed.err
    assert run_command([*command, "a"]) == code, "as long as it cannot be made"
    assert "persist: no connection for a" in capsys.readouterr().err
    world.drop("y.txt", 2)
    monkeypatch.setenv("STAND_IN_OF", json.dumps({"c": "fail"}))
    world.spark_will("stage", "too_many_errors")
    assert run_command([*command[:-1], str(UNTIL + 1), "a", "b", "c"]) == 5
    printed = capsys.readouterr()
    assert "3 shards: 2 committed, 1 failed" in printed.err
    assert "committed without a checkpoint, which the next run makes: a, b" in printed.err
    assert printed.err.rstrip().endswith("persist: 1 of 3 failed, the others are done: c")
    assert ids(world, "a") == ids(world, "b") == [1, 2]
    assert not has_checkpoint(world, "b")
    world.drop("z.txt", 3)
    monkeypatch.delenv("STAND_IN_OF")
    assert run_command([*command[:-1], str(UNTIL + 2), "a", "b", "c"]) == code, "of the checkpoints: all have committed"
    world.drop("zz.txt", 4)
    broken.clear()
    assert run_command([*command[:-1], str(UNTIL + 3), "--all"]) == 0
    assert "3 shards: 3 committed" in capsys.readouterr().err
    assert has_checkpoint(world, "a")
    assert has_checkpoint(world, "b")


def test_maintenance_in_a_run_keeps_the_hours_of_the_project(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[str, int, int]] = []

    def noted(_client: PersistClient, shard: str, given: MaintenanceConfig) -> None:
        kept.append((shard, given.grace_hours, given.intent_hours))

    monkeypatch.setattr(run, "maintain_inline", noted)
    command = write_collections(world, "a", "b")
    project = world.folder / "dags" / "persist.yaml"
    project.write_text("maintenance: {grace_hours: 100, intent_hours: 400}\n")
    world.drop("x.txt", 1)
    assert run_command([*command, "--all"]) == 0
    assert sorted(kept) == [("a", 100, 400), ("b", 100, 400)]
    world.drop("y.txt", 2)
    assert run_command(["run", f"{command[2]}/a.yaml", "--until", str(UNTIL + 1)]) == 0
    assert kept[2:] == [("a", 100, 400)], "a file lies in its folder of collections"


def test_a_wrong_project_file_stops_no_run(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[MaintenanceConfig] = []
    monkeypatch.setattr(run, "maintain_inline", lambda _client, _shard, given: kept.append(given))
    command = write_collections(world, "a")
    (world.folder / "dags" / "persist.yaml").write_text("maintenance: {hours: 1}\n")
    world.drop("x.txt", 1)
    assert run_command([*command, "--all"]) == 0
    assert "persist.yaml: maintenance.hours" in capsys.readouterr().err
    assert [each.grace_ms for each in kept] == [MAX_HOURS * HOUR_MS], "no file goes that a corrected one would keep"


def test_others_are_named_only_if_there_are_some(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = write_collections(world, "a", "b")
    world.drop("x.txt", 1)
    monkeypatch.setenv("STAND_IN_OF", json.dumps({"a": "fail", "b": "fail"}))
    world.spark_will("stage", "too_many_errors")
    assert run_command([*command, "--all"]) == 5
    assert "persist: 2 of 2 failed: a, b" in capsys.readouterr().err


def test_a_wrong_file_and_a_name_twice(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    command = write_collections(world, "a")
    (world.folder / "dags" / "collections" / "b.yaml").write_text("key: [")
    assert run_command([*command, "--all"]) == 5
    printed = capsys.readouterr()
    assert "2 shards: 1 committed, 1 failed" in printed.err
    assert "b.yaml" in printed.err
    assert run_command([*command, "a", "a"]) == 2
    assert run_command(command) == 2
    assert run_command([*command, "a", "--all"]) == 2
    assert run_command([*command, "a", "b", "--recreate"]) == 2
    printed = capsys.readouterr()
    assert "expected a NAME, several, --all, or --group" in printed.err
    assert "--close and --recreate are for one NAME" in printed.err


def test_all_without_the_folder_says_how_to_name_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--all", "--collections", str(world.folder / "none")]) == 2
    assert "give --collections FOLDER, or set PERSIST_COLLECTIONS" in capsys.readouterr().err


def test_a_group_is_its_collections_alone(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    command = write_collections(world, "a", "b", "c")
    (world.folder / "dags" / "persist.yaml").write_text("groups: {ours: {collections: [a, b]}}\n")
    world.drop("x.txt", 1)
    assert run_command([*command, "--group", "ours"]) == 0
    assert "2 shards: 2 committed" in capsys.readouterr().err
    assert world.client.shards() == ["a", "b"]
    assert run_command([*command, "--group", "theirs"]) == 2
    assert "no collection file of group theirs" in capsys.readouterr().err
    assert run_command([*command, "a", "--group", "ours"]) == 2


def test_a_process_serves_only_jobs_that_its_settings_fit(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Two collections ask for other settings of Spark: each has them on its command line."""
    command = write_collections(world, "a", "b", "c")
    path = world.folder / "dags" / "collections" / "b.yaml"
    path.write_text(json.dumps({**json.loads(path.read_text()), "spark_conf": {"spark.driver.memory": "2g"}}))
    world.drop("x.txt", 1)
    assert run_command([*command, "--all"]) == 0
    assert "3 shards: 3 committed" in capsys.readouterr().err
    assert ["spark.driver.memory=2g" in call["argv"] for call in world.calls()] == [False, True]
