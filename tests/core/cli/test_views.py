"""`persist run VIEW` and what the other commands say of views; a stand-in for `spark-submit`, all else real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persist_core.cli.configs import ENV_COLLECTIONS, ENV_VIEWS, find_config
from persist_core.cli.main import run_command
from persist_core.cli.session import Session
from persist_core.config.collection import CollectionConfig
from persist_core.config.view import ViewConfig
from persist_core.errors import InvalidInput
from tests.core.cli.world import World
from tests.servers.backends import on_each_consensus


@pytest.fixture
def world(tmp_path: Path, consensus_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """`collections/orders.yaml` with two orders committed up to 1000, `views/ids.yaml` and one that is tried only."""
    made = World(tmp_path, consensus_uri, monkeypatch)
    for folder in ("collections", "views"):
        (tmp_path / folder).mkdir()
    config = made.write_config(base_dir="..")
    config.rename(tmp_path / "collections" / "orders.yaml")
    (tmp_path / "views" / "ids.yaml").write_text("query: SELECT id FROM orders\n")
    (tmp_path / "views" / "tried.yaml").write_text("query: SELECT id FROM orders\nread_only: true\n")
    monkeypatch.setenv(ENV_COLLECTIONS, str(tmp_path / "collections"))
    made.drop("a.txt", 1, 2)
    assert run_command(["run", "orders", "--until", "1000"]) == 0
    yield made
    made.client.location.close()


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert run_command([*arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.family("commands")
@on_each_consensus
def test_a_view_is_run_and_read_like_a_collection(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run_command(["run", "ids"]) == 0
    told = capsys.readouterr()
    assert "ids 0 -> 1000: 1 inputs; corrections 2, rows 2" in told.out
    assert "contents" not in told.out
    assert "2 rows were not as the last refresh left them" in told.err
    assert [row["id"] for row in printed(capsys, "snapshot", "ids")] == [1, 2]
    assert [row["_persist_diff"] for row in printed(capsys, "changes", "ids", "--after", "5")] == [1, 1]
    assert printed(capsys, "errors", "ids") == []
    (described,) = printed(capsys, "describe", "orders")
    assert [(each["holder"], each["since"]) for each in described["held"] if each["kind"] == "view"] == [
        ("view/ids", 0)
    ]
    assert run_command(["describe", "ids"]) == 0
    assert "uppers (orders 1000)" in capsys.readouterr().out
    (again,) = printed(capsys, "run", "ids")
    assert again["status"] == "up_to_date"
    assert "up to date with its inputs" in again["reason"]
    assert len(world.calls()) == 2


def test_a_plan_says_what_changed_files_will_do(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    plans = {each["shard"]: each["plan"] for each in printed(capsys, "plan", "--all")}
    assert plans == {"orders": "nothing", "ids": "new", "tried": "new"}
    assert run_command(["run", "ids"]) == 0
    assert printed(capsys, "plan", "ids")[0]["plan"] == "nothing"
    (world.folder / "views" / "ids.yaml").write_text("query: SELECT id + 1 AS id FROM orders\n")
    assert run_command(["plan", "ids", "orders"]) == 0
    told = capsys.readouterr().out
    assert "ids: its query has changed: the next refresh writes the difference" in told
    orders = world.folder / "collections" / "orders.yaml"
    body = json.loads(orders.read_text())
    orders.write_text(json.dumps({**body, "columns": {"id": "bigint", "more": "string"}}))
    world.drop("b.txt", 3)
    assert run_command(["run", "orders", "--until", "2000"]) == 5, "the stand-in knows one schema"
    assert "the schema of orders evolves: more (string) is added: null in earlier rows" in "".join(capsys.readouterr())
    orders.write_text(json.dumps({**body, "columns": {"id": "string"}}))
    assert run_command(["plan", "--all"]) == 2
    said = capsys.readouterr()
    assert "orders: the schema does not fit the shard's: id would go from bigint to string" in said.err
    assert "ids: " in said.out
    assert run_command(["plan"]) == 2
    assert "expected a NAME, several, or --all" in capsys.readouterr().err


@pytest.mark.family("commands")
def test_read_only_says_what_it_would_write_and_leaves_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("run", "ids", "--read-only"), ("run", "tried")):
        (dry_run,) = printed(capsys, *arguments)
        assert (dry_run["status"], dry_run["as_of"], dry_run["stats"]["inserted"]) == ("read_only", 999, 2)
        assert dry_run["sample"] == [{"_persist_diff": 1, "id": 1}]
    assert run_command(["run", "tried"]) == 0
    told = capsys.readouterr().out
    assert "tried as of 999 would write: inserted 2" in told
    assert "and 1 more updates" in told
    assert world.client.shards() == ["orders"]
    assert not list(world.client.blob.list_keys_and_metadata("tried/"))
    assert run_command(["run", "orders", "--read-only"]) == 2
    assert "orders is a collection; expected a view" in capsys.readouterr().err
    for refused in (["ids", "--read-only", "--close"], ["tried", "--recreate"]):
        assert run_command(["run", *refused]) == 2
        assert "a read-only run writes nothing; expected no --close" in capsys.readouterr().err


def test_a_read_only_run_that_fails_leaves_others_alone(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write_config(base_dir="..").rename(tmp_path / "collections" / "empty.yaml")
    (tmp_path / "views" / "none.yaml").write_text("query: SELECT id FROM empty\n")
    capsys.readouterr()
    assert run_command(["run", "none", "ids", "--read-only"]) == 5
    said = capsys.readouterr()
    assert "none failed: " in said.out
    assert "ids as of 999 would write: inserted 2" in said.out
    assert "1 of 2 failed, the others are done: none" in said.err


def test_a_view_is_closed_when_its_inputs_are(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "ids", "--close"]) == 2
    assert "its input orders is open" in capsys.readouterr().err
    assert world.client.shards() == ["orders"]


def test_names_are_looked_up_in_both_folders(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert isinstance(find_config("orders", None, None), CollectionConfig)
    assert isinstance(find_config("ids", None, None), ViewConfig)
    assert isinstance(find_config(str(tmp_path / "views" / "ids.yaml"), None, None), ViewConfig)
    (tmp_path / "other" / "views").mkdir(parents=True)
    (tmp_path / "other" / "views" / "v.yaml").write_text("query: SELECT id FROM orders\n")
    assert find_config(str(tmp_path / "other" / "views" / "v.yaml"), tmp_path / "collections", None).name == "v"
    assert isinstance(find_config(str(tmp_path / "collections" / "orders.yaml"), None, None), CollectionConfig)
    monkeypatch.setenv(ENV_VIEWS, str(world.folder))
    with pytest.raises(InvalidInput, match=f"no view file {world.folder}/ids.yaml.*--views FOLDER"):
        find_config("ids", None, None)
    assert isinstance(find_config("ids", None, tmp_path / "views"), ViewConfig)
    monkeypatch.delenv(ENV_VIEWS)
    monkeypatch.chdir(tmp_path / "collections")
    assert isinstance(find_config("ids", Path(), None), ViewConfig)


def test_a_time_of_a_zone_after_the_year_9999_of_utc(world: World) -> None:
    session = Session(world.client, world.location, as_json=False)
    assert session.time("9999-12-31 23:59", "--as-of", "America/New_York") == 253_402_318_740_000
