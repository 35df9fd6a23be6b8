"""`persist restore`, `pin`, `unpin` on real locations, and the procedure of docs/operations.md, command by command."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest

from persist_core.checkpoint.quarantine import Quarantine
from persist_core.cli.main import run_command
from persist_core.handles.client import PersistClient
from persist_core.keys import CheckpointLayout
from persist_core.location.open import open_location
from persist_core.maintenance.hidden import hidden_of
from persist_core.protocol import stages
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.protocol.stages import Conflict
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.state import Committed
from tests.core.cli.test_cli import DAY_1, DAY_2, DAY_3, Persist
from tests.core.cli.test_cli import persist as persist  # the fixture
from tests.core.cli.world import World
from tests.core.cli.world import world as world  # the fixture
from tests.servers.backends import on_each_consensus

OPERATIONS = Path(__file__).resolve().parents[3] / "docs" / "operations.md"


def checkpoint_ids(persist: Persist, shard: str = "orders") -> list[str]:
    return [body["checkpoint_id"] for body in persist("checkpoints", shard, "--json").json]


@on_each_consensus
def test_a_restore_from_the_command_line(persist: Persist) -> None:
    first, second = checkpoint_ids(persist)
    (planned,) = persist("restore", "orders", "--to", first, "--dry-run", "--json").json
    assert (planned["status"], planned["lower"], planned["upper"]) == ("dry_run", DAY_3, DAY_3 + 1)
    assert planned["counts"] == {"insertions": 1, "retractions": 1, "err_insertions": 0, "err_retractions": 0}
    assert checkpoint_ids(persist) == [first, second]
    (done,) = persist("restore", "orders", "--to", first, "--json").json
    assert done == planned | {"status": "restored", "checkpoint_id": done["checkpoint_id"]}
    assert persist("snapshot", "orders", "--json").json[0]["price"] == "10.50"
    assert persist("snapshot", "orders", "--json", "--as-of", str(DAY_2)).json[0]["price"] == "7.00"
    (again,) = persist("restore", "orders", "--to", first, "--json").json
    assert again["status"] == "up_to_date"
    assert "nothing to do: the newest commit of orders" in persist("restore", "orders", "--to", first).out
    listed = persist("checkpoints", "orders", "--json").json
    assert [body["restored_from"] for body in listed] == [None, None, first]
    assert listed[-1]["is_latest"]
    assert persist("fsck").code == 0
    shown = persist("restore", "orders", "--to", second).out
    assert "1 rows inserted, 1 retracted" in shown
    assert "inputs consumed since, which the next run reads again if they are still there: 0" in shown
    assert persist("snapshot", "orders", "--json").json[0]["price"] == "7.00"


@on_each_consensus
def test_a_fork_from_the_command_line(persist: Persist) -> None:
    first, _ = checkpoint_ids(persist)
    (done,) = persist("restore", "orders", "--to", first, "--as", "orders-before", "--json").json
    assert (done["status"], done["forked_from"], done["upper"]) == ("forked", "orders", DAY_2)
    for command in ("snapshot", "errors"):
        forked = persist(command, "orders-before", "--as-of", str(DAY_1), "--json")
        assert forked.out == persist(command, "orders", "--as-of", str(DAY_1), "--json").out
    assert persist("fsck").code == 0
    assert "was already made a fork" in persist("restore", "orders", "--to", first, "--as", "orders-before").out
    assert checkpoint_ids(persist, "orders-before") == [done["checkpoint_id"]]


def test_errs_go_back_too(persist: Persist) -> None:
    before = checkpoint_ids(persist)[-1]
    description = persist.describe(DAY_3, DAY_3 + 10, "errs")
    gone = (7, "value", "another message", b'{"id":"7"}', b"\xff", DAY_3, -1)
    come = (1, "value", "new", b'{"id":"1"}', b"x", DAY_3, 1)
    ada = next(row for row in persist.client.open_reader("orders").snapshot().to_pylist() if row["id"] == 1)
    assert isinstance(persist.append(description, [(*ada.values(), DAY_3, -1)], [gone, come]), Committed)
    errors = persist("errors", "orders", "--as-of", str(DAY_2), "--json").json
    (done,) = persist("restore", "orders", "--to", before, "--json").json
    assert done["counts"] == {"insertions": 1, "retractions": 0, "err_insertions": 1, "err_retractions": 1}
    kept = ("_persist_err_kind", "_persist_err_key", "_persist_err_payload")
    now = persist("errors", "orders", "--json").json
    assert [[row[name] for name in kept] for row in now] == [[row[name] for name in kept] for row in errors]
    assert persist("fsck").code == 0


def test_pins_are_shown_and_kept(persist: Persist) -> None:
    first, second = checkpoint_ids(persist)
    assert persist("pin", "orders", first, "--json").json == [
        {"shard": "orders", "checkpoint_id": first, "is_pinned": True}
    ]
    assert f"{first} (pinned)" in persist("checkpoints", "orders").out
    assert [body["is_pinned"] for body in persist("checkpoints", "orders", "--json").json] == [True, False]
    assert "no longer pinned" in persist("unpin", "orders", first).out
    assert "was not pinned" in persist("unpin", "orders", first).out
    assert "retention skips it" in persist("pin", "orders", second).out


def test_a_pin_of_a_lost_checkpoint_can_be_ended(persist: Persist) -> None:
    """Repair moves a damaged manifest aside. The pin still keeps all history since then, and only `unpin` ends it."""
    first, _ = checkpoint_ids(persist)
    persist("pin", "orders", first)
    assert Quarantine(persist.client.blob, CheckpointLayout("orders")).move(first)
    refused = persist("release", "orders", f"pin/{first}", "--reason", "its checkpoint is lost")
    assert f"end it with `persist unpin orders {first}`" in refused.err
    assert "no longer pinned" in persist("unpin", "orders", first).out
    assert not persist.client.state("orders").holds
    assert persist("unpin", "orders", first).code == 3


def test_a_checkpoint_that_can_not_be_read_is_listed_so(persist: Persist) -> None:
    first, second = checkpoint_ids(persist)
    persist.client.blob.set(f"orders/checkpoints/{second}/manifest.json", b"rotten")
    damaged = persist("checkpoints", "orders", "--json").json[1]
    assert (damaged["checkpoint_id"], damaged["epoch"]) == (second, None)
    assert damaged["error"].startswith("corrupt_artifact: checkpoint manifest ")
    assert "the manifest can't be read" in persist("checkpoints", "orders").out
    persist.client.blob.set("orders/checkpoints/_latest", b"rotten")
    listed = persist("checkpoints", "orders")
    assert listed.code == 0
    assert first in listed.out
    assert "warning: orders/checkpoints/_latest holds b'rotten'" in listed.err
    assert persist("restore", "orders", "--to", second, "--json").code == 4
    assert persist("restore", "orders", "--to", first, "--json").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["restore", "orders", "--to", "no id"], 2, "invalid_name"),
        (["restore", "orders", "--to", "0193b1f0-0000-7000-8000-000000000000"], 3, "checkpoint_not_found"),
        (["restore", "none", "--to", "0193b1f0-0000-7000-8000-000000000000"], 3, "shard_not_found"),
        (["restore", "orders"], 2, "invalid_input"),
        (["restore", "orders", "--to", "FIRST", "--max-updates", "1"], 2, "invalid_input"),
        (["restore", "orders", "--to", "FIRST", "--as", "../x"], 2, "invalid_name"),
        (["restore", "orders", "--to", "FIRST", "--as", "orders"], 2, "invalid_input"),
        (["restore", "orders", "--to", "FIRST", "--as", "x", "--dry-run"], 2, "invalid_input"),
        (["restore", "sums", "--to", "FIRST"], 2, "invalid_input"),
        (["pin", "orders", "0193b1f0-0000-7000-8000-000000000000"], 3, "checkpoint_not_found"),
        (["pin", "orders", "../../x"], 2, "invalid_name"),
        (["unpin", "none", "0193b1f0-0000-7000-8000-000000000000"], 3, "shard_not_found"),
    ],
)
def test_what_is_refused_says_why(persist: Persist, arguments: list[str], code: int, kind: str) -> None:
    first, _ = checkpoint_ids(persist)
    if arguments[1] == "sums":
        writer, ids = persist.client.open_writer("sums"), persist.client.ids
        view = CollectionSchema(key=(), values=(Column("n", "bigint"),))
        description = persist.describe(0, DAY_2, "view")
        made = description.__class__.from_json({**description.to_json(), "shard": "sums", "epoch": 1})
        stages.append(persist.client, made, writer.stage(made, view, ids.uuid7()))
    before = persist.client.state("orders")
    ran = persist(*[first if argument == "FIRST" else argument for argument in arguments], "--json")
    assert ran.code == code, ran.err
    assert json.loads(ran.err)["error"]["kind"] == kind
    assert persist.client.state("orders") == before


def test_a_restore_that_loses_its_race_ends_with_5(persist: Persist, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = checkpoint_ids(persist)

    def overtaken(client: PersistClient, plan: RestorePlan, *, writer: str) -> Committed | Conflict:
        assert isinstance(persist.append(persist.describe(DAY_3, DAY_3 + 9, "c"), [], []), Committed)
        return restore(client, plan, writer=writer)

    monkeypatch.setattr("persist_core.protocol.restore.restore", overtaken)
    ran = persist("restore", "orders", "--to", first, "--json")
    assert ran.code == 5
    assert "won by test/c" in json.loads(ran.err)["error"]["message"]
    assert persist("conflicts", "orders", "--json").json[-1]["loser"] == "cli/restore"


@on_each_consensus
def test_many_restores_at_once_are_one_commit(persist: Persist) -> None:
    first, _ = checkpoint_ids(persist)
    start, found = threading.Barrier(4), []

    def go_back() -> None:
        with open_location(persist.location) as location:
            client = PersistClient(location)
            plan = plan_restore(client, "orders", first)
            assert isinstance(plan, RestorePlan)
            start.wait(timeout=60)
            found.append(restore(client, plan, writer="test"))

    threads = [threading.Thread(target=go_back) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert [isinstance(result, Committed) for result in found] == [True] * 4
    assert sum(isinstance(result, Committed) and result.is_new for result in found) == 1
    assert len(persist.client.state("orders").commits) == 3
    assert persist("fsck").code == 0


@pytest.fixture
def inside(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A collection `orders` whose second file was bad, and this process in its folder."""
    monkeypatch.chdir(world.folder)
    world.write_config()
    monkeypatch.setenv("PERSIST_COLLECTIONS", str(world.folder))
    world.drop("1.txt", 1, 2)
    world.run(world.config(), 1_000)
    world.drop("2.txt", 3)
    world.run(world.config(), 2_000)
    return world


def procedure() -> list[str]:
    """The commands under "Going back to a checkpoint"."""
    section = OPERATIONS.read_text().partition("## Going back to a checkpoint")[2].partition("\n## ")[0]
    return re.findall(r"^ *\$ (.*)$", section, re.MULTILINE)


@pytest.mark.family("commands")
def test_the_procedure_of_the_handbook(inside: World, capsys: pytest.CaptureFixture[str]) -> None:
    commands = procedure()
    assert {command.split()[1] for command in commands} >= {"checkpoints", "pin", "restore", "run", "snapshot"}
    run_command(["checkpoints", "orders", "--json"])
    first = json.loads(capsys.readouterr().out.splitlines()[0])["checkpoint_id"]
    names = {"customers_fork": "orders_fork", "customers": "orders", "CHECKPOINT_ID": first}
    (inside.folder / "orders_fork.yaml").write_text((inside.folder / "orders.yaml").read_text())
    for command in commands:
        for name, ours in names.items():
            command = re.sub(rf"\b{name}\b", ours, command)
        if command.startswith("persist run"):
            (inside.drops / "2.txt").unlink(missing_ok=True)
            inside.drop("mended.txt", 4)
        assert run_command(command.split()[1:]) == 0, (command, capsys.readouterr().err)
        capsys.readouterr()
    assert inside.ids() == [1, 2, 4]
    assert sorted(inside.client.open_reader("orders_fork").snapshot()["id"].to_pylist()) == [1, 2, 4]


def test_a_damaged_restore_hides_nothing_else(inside: World, capsys: pytest.CaptureFixture[str]) -> None:
    stages.checkpoint(inside.client, inside.config())
    first = inside.client.state("orders").commits[0].checkpoint_id
    assert run_command(["restore", "orders", "--to", first]) == 0
    assert run_command(["describe", "orders"]) == 0
    assert "replays days from" in capsys.readouterr().out
    commit = inside.client.state("orders").newest_commit
    assert commit is not None
    inside.client.blob.delete(commit.manifest_key)
    assert run_command(["describe", "orders"]) == 0
    said = capsys.readouterr().out
    assert "shard:        orders (collection)" in said
    assert f"not readable: corrupt_artifact: manifest {commit.manifest_key} is missing" in said
    assert "replays" not in said


@pytest.mark.parametrize("command", ["reprocess", "rebuild"])
def test_giving_up_is_all_that_a_command_does(command: str, inside: World, capsys: pytest.CaptureFixture[str]) -> None:
    hidden = hidden_of("orders", command)
    fork(inside.client, "orders", inside.client.state("orders").commits[0].checkpoint_id, hidden, writer="test")
    more = ["--swap-back"] if command == "rebuild" else ["--from=2026-01-01", "--reason="]
    for option in ("--dry-run", "--yes", "--take-back-gone", "--max-updates=1", "--master=local", *more):
        assert run_command([command, "orders", "--give-up", option]) == 2
        assert "--give-up deletes, and does nothing else" in capsys.readouterr().err
    assert inside.client.state(hidden).commits
    for status, deleted in (("given_up", [hidden]), ("up_to_date", [])):
        assert run_command([command, "orders", "--give-up", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"shard": "orders", "status": status, "deleted": deleted}
    assert run_command([command, "orders", "--give-up"]) == 0
    assert capsys.readouterr().out == "orders: there is nothing to give up\n"
