"""`persist` on a real location (files and SQLite): what it prints for people and programs, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from persist_core.cli.main import run_command
from persist_core.cli.output import print_table, printable
from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.contents.stats import show_bytes
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.stages import Conflict
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.receive import move_away
from persist_core.shard.state import Committed
from persist_core.time_text import parse_time, show_time
from tests.plain_commit import table_of
from tests.servers.backends import blob_uri_beside, on_each_consensus

SCHEMA = CollectionSchema(
    key=(Column("id", "bigint", nullable=False),),
    values=(
        Column("name", "string"),
        Column("price", "decimal(12,2)"),
        Column("raw", "binary"),
        Column("day", "date"),
        Column("at", "timestamp"),
        Column("ratio", "double"),
    ),
)
DAY_1, DAY_2, DAY_3 = (parse_time(f"2026-01-0{day}") for day in (1, 2, 3))
HOSTILE = "x\x1b]0;title\x07\x1b[2J\r\n\u202egnp.exe\u2028\x85end"
ADA = (1, "Ada", Decimal("10.50"), b"\x00\xff", date(2026, 1, 31), datetime(2026, 1, 1, 12, tzinfo=UTC), 0.5)
ADA_LATER = (*ADA[:2], Decimal("7.00"), *ADA[3:])
MAIN = [sys.executable, "-c", "from persist_core.cli.main import main; main()"]
NAUGHTY = (2, HOSTILE, None, None, None, None, float("nan"))


@dataclass
class Ran:
    """One command's exit code and output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> list[dict[str, Any]]:
        """Every line of stdout as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Persist:
    """A location, and `persist` pointed at it."""

    def __init__(self, folder: Path, consensus_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.location = PersistLocation(blob_uri_beside(consensus_uri, folder / "blobs"), consensus_uri)
        self.client = PersistClient(open_location(self.location))
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Ran:
        options = ["--blob-uri", self.location.blob_uri, "--consensus-uri", self.location.consensus_uri]
        self._capsys.readouterr()
        code = run_command([*arguments, *options])
        captured = self._capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    def describe(self, lower: int, upper: int, token: str) -> BatchDescription:
        epoch = len(self.client.ensure_shard("orders").commits) + 1
        checkpoint_id = self.client.ids.uuid7()
        return BatchDescription("orders", lower, upper, token, checkpoint_id, epoch, None, writer=f"test/{token}")

    def append(self, description: BatchDescription, oks: list[Any], errs: list[Any]) -> Committed | Conflict:
        key = self.client.open_writer("orders").stage(
            description,
            SCHEMA,
            self.client.ids.uuid7(),
            table_of(oks, updates_schema(SCHEMA)),
            table_of(errs, errs_schema(SCHEMA)),
        )
        return stages.append(self.client, description, key)


COLLECTION = CollectionConfig.model_validate(
    {
        "name": "orders",
        "source": {"path": "*.jsonl", "format": "debezium-json"},
        "key": "id",
        "columns": {column.name: column.type for column in SCHEMA.columns},
    }
)


@pytest.fixture
def persist(tmp_path: Path, consensus_uri: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Persist]:
    """A location with the shard `orders`: two commits, a lost append, two errors."""
    world = Persist(tmp_path, consensus_uri, capsys)
    first = world.describe(0, DAY_2, "a")
    errs = [
        (None, "key", "no key here", None, b'{"id":', DAY_1, 1),
        (7, "value", "bad", b'{"id":"7"}', b"\xff", DAY_1, 1),
    ]
    assert isinstance(world.append(first, [(*ADA, DAY_1, 1), (*NAUGHTY, DAY_1, 1)], errs), Committed)
    assert isinstance(world.append(world.describe(0, DAY_2, "loser"), [], []), Conflict)
    second = world.describe(DAY_2, DAY_3, "b")
    assert isinstance(world.append(second, [(*ADA, DAY_2, -1), (*ADA_LATER, DAY_2, 1)], []), Committed)
    stages.checkpoint(world.client, COLLECTION)
    yield world
    world.client.location.close()


@pytest.mark.parametrize(
    "command", [["snapshot"], ["changes", "--after", "0"], ["errors"], ["late"], ["diff", "--a", "2026-01-01"]]
)
def test_the_largest_limit_shows_all_rows(persist: Persist, command: list[str]) -> None:
    assert persist(*command, "orders", "--limit", f"{10**15}").code == 0


@on_each_consensus
def test_shards(persist: Persist) -> None:
    (body,) = persist("shards", "--json").json
    assert (body["shard"], body["since"], body["upper"], body["batches"]) == ("orders", 0, DAY_3, 2)
    shown = persist("shards").out
    assert "2026-01-03T00:00:00Z" in shown
    assert re.search(r"\d+ days ago", shown), "the age of the upper"
    assert re.search(r"\d+ (second|minute)s? ago", shown), "the age of the last commit"
    manifest = persist.client.state("orders").batches[0].manifest_key
    persist.client.blob.set(manifest, b"damaged")
    assert "damaged" in persist("shards").out
    described = persist("describe", "orders").out
    assert re.search(r"attention: +damaged", described)
    assert manifest in described


@on_each_consensus
def test_an_empty_location(tmp_path: Path, consensus_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    empty = Persist(tmp_path, consensus_uri, capsys)
    assert empty("shards", "--json") == Ran(0, "", "")
    assert empty("shards").out.startswith("no shards in ")
    assert empty("fsck", "--json") == Ran(0, "", "")
    assert empty("fsck") == Ran(0, empty("shards").out, "")
    empty.client.location.close()


@on_each_consensus
def test_describe(persist: Persist) -> None:
    (body,) = persist("describe", "orders", "--json").json
    assert body["schema"] == SchemaVersions().placed(SCHEMA).to_json()
    assert (body["updates"], body["upper"], body["newest_commit"]["writer"]) == (6, DAY_3, "test/b")
    shown = persist("describe", "orders").out
    assert re.search(rf"2026-01-03T00:00:00Z \({DAY_3}\), \d+ days ago\n", shown)
    assert re.search(r"last commit: .*, \d+ \w+ ago, by test/b", shown)
    assert "decimal(12,2)" in shown


@on_each_consensus
def test_describe_says_where_a_shard_was_moved_to(persist: Persist) -> None:
    assert "moved to" not in persist("describe", "orders").out
    persist.client.machine.apply("orders", lambda state: move_away(state, "blob s3://new, consensus s3://new"))
    moved_to = r"moved to: +blob s3://new, consensus s3://new; it accepts no commits here\n"
    assert re.search(moved_to, persist("describe", "orders").out)
    assert "moved" in persist("shards").out


def test_snapshot_as_json_keeps_every_value(persist: Persist) -> None:
    ada, naughty = persist("snapshot", "orders", "--as-of", "2026-01-01", "--json").json
    assert ada == {
        "id": 1, "name": "Ada", "price": "10.50", "raw": "00ff", "day": "2026-01-31",
        "at": "2026-01-01T12:00:00.000000Z", "ratio": 0.5,
    }  # fmt: skip
    assert naughty["name"] == HOSTILE
    assert (naughty["price"], naughty["ratio"]) == (None, "nan")
    newest = persist("snapshot", "orders", "--json", "--limit", "1").json
    assert [row["price"] for row in newest] == ["7.00"]
    assert persist("snapshot", "orders", "--json", "--as-of", str(DAY_2)).json[0]["price"] == "7.00"
    assert persist("snapshot", "orders", "--key", "1", "--as-of", "2026-01-01", "--json").json == [ada]
    assert {row["id"] for row in persist("changes", "orders", "--after", "0", "--key", "1", "--json").json} == {1}
    refused = persist("snapshot", "orders", "--key", "one")
    assert refused.code == 2
    assert "key column id: found 'one'; expected a value of type bigint" in refused.err


@pytest.mark.parametrize("command", [["snapshot"], ["changes", "--after", "0"], ["errors"], ["describe"]])
def test_what_was_stored_can_not_drive_the_terminal(persist: Persist, command: list[str]) -> None:
    ran = persist(command[0], "orders", *command[1:])
    assert ran.code == 0
    assert all(line.isprintable() for line in ran.out.split("\n"))


def test_rows_that_are_not_shown_are_counted(persist: Persist) -> None:
    shown = persist("snapshot", "orders", "--limit", "1").out
    assert "1 more rows; --limit 2 shows all" in shown
    assert "Ada" in shown
    for command in (["snapshot"], ["changes", "--after", "0"], ["errors"], ["errors", "--summary"]):
        assert "no " not in persist(command[0], "orders", *command[1:], "--limit", "0").out, "there are some"
    assert "no changes" in persist("changes", "orders", "--after", str(DAY_2)).out


@on_each_consensus
def test_changes_stand_in_the_order_of_time_and_key(persist: Persist) -> None:
    ran = persist("changes", "orders", "--after", "2026-01-01", "--through", "2026-01-02", "--json")
    assert [(row["_persist_time"], row["_persist_diff"], row["id"], row["price"]) for row in ran.json] == [
        (DAY_2, -1, 1, "10.50"),
        (DAY_2, 1, 1, "7.00"),
    ]
    assert [row["id"] for row in persist("changes", "orders", "--after", "0", "--json").json] == [1, 2, 1, 1]
    errs = persist("changes", "orders", "--after", "0", "--errs", "--json").json
    assert {row["_persist_err_kind"] for row in errs} == {"key", "value"}


def test_errors_show_bytes_as_text_where_they_are(persist: Persist) -> None:
    bodies = {row["_persist_err_kind"]: row for row in persist("errors", "orders", "--json").json}
    assert bodies["key"]["_persist_err_payload"] == '{"id":'
    assert bodies["key"]["id"] is None
    assert bodies["value"]["_persist_err_payload"] == {"hex": "ff"}
    assert bodies["value"]["_persist_err_key"] == '{"id":"7"}'
    assert "no key here" in persist("errors", "orders").out


@on_each_consensus
def test_checkpoints(persist: Persist) -> None:
    bodies = persist("checkpoints", "orders", "--json").json
    assert [body["is_latest"] for body in bodies][-1] is True
    assert bodies[-1]["upper"] == DAY_3
    assert f"{bodies[-1]['checkpoint_id']} (latest)" in persist("checkpoints", "orders").out


@on_each_consensus
def test_conflicts(persist: Persist) -> None:
    (body,) = persist("conflicts", "orders", "--json").json
    assert (body["expected_upper"], body["found_upper"]) == (0, DAY_2)
    assert (body["loser"], body["winner"]) == ("test/loser", "test/a")
    assert "test/loser" in persist("conflicts", "orders").out


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["describe", "none"], 3, "shard_not_found"),
        (["conflicts", "none"], 3, "shard_not_found"),
        (["checkpoints", "none"], 3, "shard_not_found"),
        (["fsck", "none"], 3, "shard_not_found"),
        (["describe", "../../etc"], 2, "invalid_name"),
        (["snapshot", "orders", "--as-of", "2026-01-03"], 3, "outside_frontiers"),
        (["changes", "orders", "--after", "2026-02-01"], 3, "outside_frontiers"),
        (["snapshot", "orders", "--as-of", "last week"], 2, "invalid_time"),
        (["snapshot", "orders", "--as-of", "1969-01-01"], 2, "invalid_time"),
        (["snapshot", "orders", "--as-of", "2026-01-01 Europa/Berlin"], 2, "invalid_time"),
        (["changes", "orders"], 2, "invalid_input"),
        (["errors", "orders", "--rejected", "--summary"], 2, "invalid_input"),
        (["snapshot", "orders", "--frobnicate"], 2, "invalid_input"),
        (["run", "none"], 2, "invalid_input"),
        (["run", "none.yaml"], 2, "config"),
        (["run", "none", "--collections", "a_long_name" * 30], 2, "invalid_input"),
        (["run", "x", "--close", "--until", "1"], 2, "invalid_input"),
    ],
)
def test_errors_are_one_line_with_a_kind_and_a_code(
    persist: Persist, arguments: list[str], code: int, kind: str
) -> None:
    told = persist(*arguments)
    assert (told.code, told.out) == (code, "")
    assert told.err.startswith("persist: ")
    assert told.err.count("\n") == 1
    as_json = persist(*arguments, "--json")
    assert (as_json.code, as_json.out) == (code, "")
    assert json.loads(as_json.err)["error"]["kind"] == kind


def test_a_store_that_can_not_be_used_ends_with_6(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "consensus.db").mkdir()
    broken = PersistLocation(f"file://{tmp_path}/blobs", f"sqlite:///{tmp_path}/consensus.db")
    code = run_command(["shards", "--blob-uri", broken.blob_uri, "--consensus-uri", broken.consensus_uri, "--json"])
    captured = capsys.readouterr()
    assert code == 6
    assert json.loads(captured.err)["error"]["kind"].startswith("storage")


def test_the_location_may_come_from_the_environment_or_a_file(
    persist: Persist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = tmp_path / "here.toml"
    toml.write_text(f"blob_uri = '{persist.location.blob_uri}'\nconsensus_uri = '{persist.location.consensus_uri}'\n")
    monkeypatch.chdir(tmp_path)
    for name in ("PERSIST_BLOB_URI", "PERSIST_CONSENSUS_URI", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert run_command(["shards", "--config", str(toml), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shard"] == "orders"
    assert run_command(["shards", "--json"]) == 2
    for name, value in persist.location.to_env().items():
        monkeypatch.setenv(name, value)
    assert run_command(["shards", "--json"]) == 0


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--help"]) == 0
    assert "Exit codes" in capsys.readouterr().out
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out.startswith("persist, version ")
    assert run_command([]) == 2
    assert "Usage: persist" in capsys.readouterr().err
    names = ["shards", "describe", "snapshot", "changes", "errors", "checkpoints", "conflicts", "fsck", "run"]
    for command in names:
        assert run_command([command, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


@pytest.mark.family("commands")
def test_an_output_that_can_not_be_written(persist: Persist) -> None:
    """A closed pipe, as of `persist fsck | head -1`, ends a command as SIGPIPE does: a damage may not have been seen. A
    full disk is one line, and ends with 6."""
    reading, closed = os.pipe()
    os.close(reading)
    for command in ("snapshot orders --json", "fsck", "doctor", "shards"):
        assert _run(persist, command, closed) == (141, "")
    full = os.open("/dev/full", os.O_WRONLY)
    for command in ("snapshot orders", "--help", "snapshot orders --json"):  # the last is held back until the end
        code, text = _run(persist, command, full)
        assert (code, text.count("\n")) == (6, 1)
        assert "the output can't be written: No space left on device" in text
    os.close(closed)
    os.close(full)


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_output_is_not_missed(persist: Persist, closed: str) -> None:
    """As of a program that some supervisors start: it does its work, and nothing that it opens becomes its output."""
    command = ["sh", "-c", f'"$@" {closed}', "sh", *MAIN, "shards"]
    environment = {**os.environ, **persist.location.to_env()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, "orders" in done.stdout) == (0, "", closed == "2>&-")


def test_a_narrow_terminal_hides_no_column(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    print_table("abcdefghijk", [[letter * 9 for letter in "ABCDEFGHIJK"]])
    assert set("abcdefghijkABCDEFGHIJK") <= set(capsys.readouterr().out)


def _run(persist: Persist, command: str, stdout: int) -> tuple[int, str]:
    command_line, environment = [*MAIN, *command.split()], {**os.environ, **persist.location.to_env()}
    done = subprocess.run(command_line, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def test_rows_have_characters_that_the_locale_lacks(persist: Persist) -> None:
    row = (3, "Łódź 😀", None, None, None, None, None, DAY_3, 1)
    assert isinstance(persist.append(persist.describe(DAY_3, DAY_3 + 1, "c"), [row], []), Committed)
    environment = {**os.environ, **persist.location.to_env(), "PYTHONIOENCODING": "ascii"}
    table, lines = (
        subprocess.check_output([*MAIN, "snapshot", "orders", *more], env=environment) for more in ([], ["--json"])
    )
    assert rb"\u0141\xf3d\u017a \U0001f600" in table
    assert json.loads(lines.splitlines()[-1])["name"] == row[1]


def test_small_words_for_people() -> None:
    assert [show_bytes(n) for n in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    assert [show_time(t) for t in (None, 5, DAY_1)] == ["closed", "5", f"2026-01-01T00:00:00Z ({DAY_1})"]
    assert printable("é\t\x9b\u2066") == "é\\t\\x9b\\u2066"
