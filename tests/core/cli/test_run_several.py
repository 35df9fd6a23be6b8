"""`persist run` of several: one process for all, each with its own result."""

from __future__ import annotations

import json

import pytest

from persist_core.cli.main import run_command
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
