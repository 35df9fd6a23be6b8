"""The stories of docs/changing.md that need Spark, run block by block; and `persist reprocess`."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from persist_core.cli.main import run_command
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from tests.sampling import sample

PAGE = Path(__file__).resolve().parents[2] / "docs" / "changing.md"
PIECE = re.compile(r"`(in/\S+)`|```(yaml|json|console)\n(.*?)```", re.S)


def tell(section: str, tmp_path: Path, there: list[str], capsys: pytest.CaptureFixture[str]) -> PersistClient:
    """Do what a section of the page says, and see what it shows."""
    path = ""
    for named, kind, text in PIECE.findall(PAGE.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]):
        path = named or path
        if kind == "yaml":
            (tmp_path / "orders.yaml").write_text(text)
        elif kind == "json":
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        for each in text.split("$ persist ")[1:]:
            command, _, expected = each.partition("\n")
            files = [] if command.startswith(("snapshot", "diff", "generations")) else ["--collections", str(tmp_path)]
            code = run_command([*shlex.split(command), *files, *there])
            said = capsys.readouterr()
            if expected.startswith("persist: "):
                assert (code, expected in said.err) == (2, True), said.err
            else:
                assert code == 0, said.err
                assert said.out == expected or not expected, command
    client = PersistClient(open_location(PersistLocation(there[1], there[3])))
    report = fsck(client, "orders")
    assert report.is_clean, report.violations
    assert client.shards() == ["orders"]
    return client


@pytest.mark.family("commands")
def test_the_story_of_a_feed_that_changes(tmp_path: Path, there: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    tell("The feed changes", tmp_path, there, capsys)


def test_the_story_of_a_wrong_key(tmp_path: Path, there: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    client = tell("The key was wrong", tmp_path, there, capsys)
    assert client.state("orders").origin.generation == 2


@pytest.mark.family("commands")
def test_the_story_of_a_wrong_file(tmp_path: Path, there: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    client = tell("Correct wrong data", tmp_path, there, capsys)
    newest = client.state("orders").newest_commit
    assert newest is not None
    restored = client.manifest(newest).restored
    assert restored is not None
    assert restored.correction is not None
    assert restored.correction.reason == "prices in cents"


SEQUENCE = """
source: {path: "in/date={date:%Y-%m-%d}/*.jsonl", format: json}
key: id
columns: {id: bigint, name: string, seq: bigint, op: string}
order: {mode: sequence, by: [seq]}
delete: {column: op, values: [D]}
time: {source: path, late: lift}
"""


@pytest.mark.family("histories in Spark")
def test_a_wrong_record_with_a_high_order_does_not_win(tmp_path: Path, there: list[str]) -> None:
    """Neither of a row nor of a delete, which is operator state."""
    (tmp_path / "things.yaml").write_text(SEQUENCE)
    client = PersistClient(open_location(PersistLocation(there[1], there[3])))

    def drop(day: int, *rows: tuple[int, str | None, int]) -> None:
        folder = tmp_path / "in" / f"date=2026-01-{day}"
        folder.mkdir(parents=True, exist_ok=True)
        records = [{"id": i, "name": name, "seq": seq, "op": "U" if name else "D"} for i, name, seq in rows]
        (folder / "a.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))

    def persist(*arguments: str) -> None:
        assert run_command([*arguments, "--collections", str(tmp_path), *there]) == 0

    def names() -> dict[int, str]:
        return {row["id"]: row["name"] for row in client.open_reader("things").snapshot().to_pylist()}

    drop(21, (1, "a", 1), (2, "x", 1))
    persist("run", "things", "--until", "2026-01-22")
    drop(22, (1, "wrong", 100), (2, None, 100))
    persist("run", "things", "--until", "2026-01-23")
    drop(23, (1, "c", 3), (2, "y", 3))
    persist("run", "things", "--until", "2026-01-24")
    assert names() == {1: "wrong"}
    drop(22, (1, "b", 2), (2, "z", 2), (3, "new", 1))
    persist("reprocess", "things", "--from", "2026-01-22", "--yes")
    assert names() == {1: "c", 2: "y", 3: "new"}
    drop(24, (1, "d", 4), (2, "late", 2))
    persist("run", "things", "--until", "2026-01-25")
    assert names() == {1: "d", 2: "y", 3: "new"}
    newest = client.state("things").newest_commit
    assert newest is not None
    assert client.manifest(newest).stats.get("late_times", 0) == 0, "the day that the correction has begun is not late"
    report = fsck(client, "things")
    assert report.is_clean, report.violations


DAILY = """
source: {path: "in/date={date:%Y-%m-%d}/*.jsonl", format: json}
key: id
columns: {id: bigint, name: string, day: timestamp}
time: {source: path, late: error}
delete: none
"""
BY_FIELD = DAILY.replace("date={date:%Y-%m-%d}", "*").replace("source: path", "field: day")


CHANGES = (
    ["reprocess things --from 2026-01-22", "rebuild things"],
    ["rebuild things", "rebuild things --swap-back"],
    ["rebuild things", "reprocess things --from 2026-01-22"],
    ["erase things --key 1 --reason asked", "erase things --key 2 --reason asked"],
)


@pytest.mark.parametrize(
    ("definition", "changes"),
    [
        *((DAILY, each) for each in sample(CHANGES, 2, "changes of a day")),
        *((BY_FIELD, each) for each in sample(CHANGES, 1, "changes of a midnight")),
    ],
)
@pytest.mark.family("histories in Spark")
def test_the_day_that_is_not_over_is_left_to_its_run(
    tmp_path: Path, there: list[str], capsys: pytest.CaptureFixture[str], definition: str, changes: list[str]
) -> None:
    """Each change moves the upper by a millisecond, into the next day; its files are neither read early nor late."""
    (tmp_path / "things.yaml").write_text(definition)
    client = PersistClient(open_location(PersistLocation(there[1], there[3])))

    def drop(day: int, *ids: int) -> None:
        folder = tmp_path / "in" / f"date=2026-01-{day}"
        folder.mkdir(parents=True, exist_ok=True)
        rows = [{"id": each, "name": str(day), "day": f"2026-01-{day}T00:00:00Z"} for each in ids]
        (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def persist(command: str, *more: str) -> None:
        assert run_command([*command.split(), *more, *there]) == 0, capsys.readouterr().err

    files = ("--collections", str(tmp_path))
    for day in (21, 22):
        drop(day, day, 1, 2)
        persist("run things", "--until", f"2026-01-{day + 1}", *files)
    drop(23, 23)
    for number, change in enumerate(changes):
        if change.startswith("reprocess"):
            drop(22, 22, 1, 2, 3 + number)
        persist(change, *(() if change.startswith("erase") else ("--yes", *files)))
    assert 23 not in client.open_reader("things").snapshot()["id"].to_pylist()
    drop(23, 23, 24)
    persist("run things", "--until", "2026-01-24", *files)
    newest = client.state("things").newest_commit
    assert newest is not None
    assert client.manifest(newest).stats.get("late_times", 0) == 0
    for ids in ((23, 24), (23, 24, 25)):
        drop(23, *ids)
        persist("reprocess things --from 2026-01-23", "--yes", *files)
        reader = client.open_reader("things")
        assert (set(ids) <= set(reader.snapshot()["id"].to_pylist()), reader.errors().num_rows) == (True, 0)
