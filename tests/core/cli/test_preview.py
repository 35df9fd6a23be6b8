"""`persist preview` on the command line, with a stand-in for `spark-submit`: options, errors, what is left behind."""

from __future__ import annotations

import json

import pytest

from persist_core.cli.main import run_command
from tests.core.cli.world import World
from tests.core.cli.world import world as world  # the fixture


@pytest.fixture(autouse=True)
def only_here(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.folder)
    monkeypatch.delenv("PERSIST_SPARK_MASTER", raising=False)


def test_rows_and_the_next_run_and_nothing_is_written(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.drop("a.txt", 1, 2)
    file = str(world.write_config())
    assert run_command(["preview", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in found["rows"]] == [1, 2]
    assert (found["stops"], found["next_run"]["files"], found["next_run"]["size_bytes"]) == (None, 1, 4)
    assert found["sample"][0]["path"] == str(world.drops / "a.txt")
    assert world.client.shards() == []
    assert list(world.client.blob.list_keys_and_metadata("")) == []
    assert run_command(["preview", file, "--rows", "1"]) == 0
    printed = capsys.readouterr()
    assert "the first 1 of 2 rows" in " ".join(printed.out.split())
    assert "nothing is written" in printed.err


def test_what_stops_a_run_of_the_sample_is_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.drop("a.txt", 1)
    world.spark_will("fail", "schema_mismatch")
    assert run_command(["preview", str(world.write_config())]) == 0
    assert "a run would stop: the job says why" in capsys.readouterr().out


def test_other_input(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.drop("a.txt", 1)
    world.run(world.config())
    (world.folder / "new").mkdir()
    (world.folder / "new" / "b.txt").write_text("7\n")
    assert run_command(["preview", str(world.write_config()), "--input", "new/*.txt", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in found["rows"]] == [7]
    assert (found["next_run"]["lower"], found["next_run"]["files"]) == (0, 1)


def test_wrong_arguments(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.drop("2026-01-01.txt", 1)
    file = str(world.write_config(source={"path": "in/{date:%Y-%m-%d}.txt", "format": "json"}, time="path"))
    for arguments, told in (
        ([file, "--input", "in/*.txt"], "--input in/*.txt: time: path needs a {date:...} in it"),
        ([file, "--input", "in/{date:%Y"], "expected"),
        ([file, "--limit", "0"], "--limit"),
        (["absent"], "absent"),
    ):
        assert run_command(["preview", *arguments]) == 2, arguments
        assert told in capsys.readouterr().err
    (world.folder / "views").mkdir()
    view = world.folder / "views" / "one.yaml"
    view.write_text(json.dumps({"query": "SELECT count(*) AS n FROM orders", "schedule": "@daily"}))
    assert run_command(["preview", str(view), "--collections", str(world.folder)]) == 2
    assert "one.yaml is a view; expected a collection" in capsys.readouterr().err
    assert world.calls() == []


def test_a_job_that_fails_leaves_no_archive(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(world.folder / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(world.folder))
    world.spark_will("fail", "schema_mismatch")
    assert run_command(["warm-up"]) == 5
    assert "the job says why" in capsys.readouterr().err
    assert "ArchiveClassesAtExit" in json.dumps(world.calls())
    assert list((world.folder / "cache" / "airflow-persist").iterdir()) == []
