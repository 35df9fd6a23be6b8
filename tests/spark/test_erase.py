"""Records of erased keys in a write by Spark, and the story of docs/erasing.md."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from persist_core.cli import reprocess as cli_reprocess
from persist_core.cli.main import run_command
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_spark.read.frames import snapshot
from tests.spark.test_reprocess import PIECE

DOCS = Path(__file__).resolve().parents[2] / "docs"

SEQUENCE = """
source: {path: "in/*.jsonl", format: json}
key: email
columns: {email: string, name: string, seq: bigint, op: string}
order: {mode: sequence, by: [seq]}
delete: {column: op, values: [D]}
limits: {max_errors: 100}
"""
LOG = """
source: {path: "in/date={date:%Y-%m-%d}/*.jsonl", format: json}
key: email
columns: {email: string, name: string}
time: {source: path, late: lift}
delete: none
"""
STASH = """
source: {path: "in/*.jsonl", format: json}
key: email
columns: {email: string, name: string, at: bigint}
time: {field: at, unit: ms}
delete: none
"""
TIMED = """
source: {path: "in/*.jsonl", format: json}
key: [born, name]
columns: {born: timestamp, name: string, v: {type: int, on_error: "null"}, seq: bigint}
order: {mode: sequence, by: [seq]}
delete: none
checks: {known: {sql: "v IS NOT NULL", on_fail: warn}}
"""
FAR = """
source: {path: "in/*.jsonl", format: json}
key: [born, at]
columns: {born: date, at: {type: timestamp, unit: us}, name: string, seen: {type: timestamp, unit: us}}
order: {mode: sequence, by: [seen]}
delete: none
"""
FUTURE = 32_503_680_000_000  # in the year 3000
ANN = "ann.smith@example.org"


class Story:
    """A collection, its feed, and commands."""

    def __init__(self, folder: Path, options: list[str], definition: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.options, self.capsys = folder, options, capsys
        (folder / "people.yaml").write_text(definition)
        self.client = PersistClient(open_location(PersistLocation(options[1], options[3])))

    def feed(self, name: str, *records: dict[str, Any] | str) -> None:
        path = self.folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [each if isinstance(each, str) else json.dumps(each) for each in records]
        path.write_text("".join(f"{text}\n" for text in texts))
        self.persist("run", "people", "--collections", str(self.folder))

    def persist(self, *command: str, code: int = 0) -> str:
        assert run_command([*command, *self.options]) == code, self.capsys.readouterr().err
        return self.capsys.readouterr().out

    def rows(self) -> list[tuple[Any, ...]]:
        table = self.client.open_reader("people").snapshot()
        return sorted(zip(table["email"].to_pylist(), table["name"].to_pylist(), strict=True))

    def objects_with(self, text: str) -> list[str]:
        """The objects below the shard, and versions of its state, that hold a text, in any file's rows or bytes."""
        found = []
        for entry in list(self.client.blob.list_keys_and_metadata("")):
            data = self.client.blob.get(entry.key) or b""
            rows = pq.read_table(io.BytesIO(data)).to_pylist() if data.startswith(b"PAR1") else []
            if text.encode() in data or text in repr(rows):
                found.append(entry.key)
        states = self.client.location.consensus.scan("people", 0)
        return [*found, *(f"version {each.seqno}" for each in states if text.encode() in each.data)]


@pytest.mark.family("histories in Spark")
def test_late_records_do_not_bring_an_erased_key_back(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
    spark: SparkSession,
) -> None:
    story = Story(tmp_path, there, SEQUENCE, capsys)
    story.feed("1.jsonl", {"email": ANN, "name": "Ann", "seq": 5}, {"email": "bo@x", "name": "Bo", "seq": 1})
    story.feed("2.jsonl", {"email": ANN, "name": "Ann S", "seq": 7}, {"email": "cy@x", "name": "Cy", "seq": 2})
    story.feed("3.jsonl", {"email": ANN, "name": "late", "seq": 6}, {"email": "cy@x", "seq": 9, "op": "D"})
    story.feed("4.jsonl", {"email": ANN, "name": 1, "seq": "bad"}, {"email": "bo@x", "name": "Bo", "seq": 2})
    story.feed("5.jsonl", "no JSON but " + ANN, {"email": "bo@x", "name": "Bo", "seq": 3})
    assert story.objects_with(ANN)
    said = story.persist("erase", "people", "--key", ANN, "--reason", "asked on paper", "--verify")
    assert "erased 1 keys of people" in said
    assert "verified" in said
    assert story.objects_with(ANN) == []
    assert "nothing to do" in story.persist("erase", "people", "--key", ANN, "--reason", "asked on paper")
    others = [("bo@x", "Bo")]
    assert story.rows() == others
    for name in ("4.jsonl", "5.jsonl"):  # without an order or a key, nothing recognizes a record that comes again
        (tmp_path / "in" / name).unlink()
    story.feed("6.jsonl", {"email": ANN, "name": "late", "seq": 7}, {"email": ANN, "name": "later", "seq": 3})
    assert story.objects_with(ANN) == []
    newest = story.client.state("people").newest_commit
    assert newest is not None
    assert story.client.manifest(newest).stats["skipped"] == 2
    first = json.loads(story.persist("checkpoints", "people", "--json").splitlines()[0])
    story.persist("restore", "people", "--to", first["checkpoint_id"])
    story.persist("run", "people", "--collections", str(tmp_path))  # reads all files but the first again
    assert story.objects_with(ANN) == []
    assert story.rows() == others
    story.feed("7.jsonl", {"email": ANN, "name": "again", "seq": 8})
    assert story.rows() == [(ANN, "again"), *others]
    frame = snapshot(spark, story.client.location, "people")
    assert sorted((row["email"], row["name"]) for row in frame.collect()) == story.rows()
    assert fsck(story.client, "people").is_clean


@pytest.mark.family("histories in Spark")
def test_views_are_named_and_built_again_without_the_key(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the commands that the erasure says, in its order."""
    story = Story(tmp_path, there, SEQUENCE, capsys)
    (tmp_path / "views").mkdir()
    files = ["--collections", str(tmp_path), "--views", str(tmp_path / "views")]
    for name, source in (("named", "people"), ("again", "named")):
        (tmp_path / "views" / f"{name}.yaml").write_text(f"query: SELECT name, email FROM {source}\n")
    story.feed("1.jsonl", {"email": ANN, "name": "Ann", "seq": 1}, {"email": "bo@x", "name": "Bo", "seq": 1})
    for name in ("named", "again"):
        story.persist("run", name, *files)
    said = story.persist("erase", "people", "--key", ANN, "--reason", "asked", "--verify")
    views = [line for line in said.splitlines() if "not reached: view" in line]
    assert [line.split("view ")[1].partition(":")[0] for line in views] == ["named", "again"]
    for name in ("named", "again"):
        story.persist("run", name, *files)
    assert {each.partition("/")[0] for each in story.objects_with(ANN)} == {"named", "again"}
    for line in views:
        for command in re.findall("`persist ([^`]*)`", line):
            story.persist(*command.split(), *(files if command.startswith("run") else []))
    assert story.objects_with(ANN) == []
    assert story.client.open_reader("again").snapshot().to_pylist() == [{"name": "Bo", "email": "bo@x"}]


def test_in_log_order_the_time_of_a_record_decides(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    story = Story(tmp_path, there, LOG, capsys)
    story.feed("date=2026-01-01/a.jsonl", {"email": ANN, "name": "Ann"}, {"email": "bo@x", "name": "Bo"})
    first = json.loads(story.persist("checkpoints", "people", "--json").splitlines()[0])
    story.feed("date=2026-01-02/a.jsonl", {"email": ANN, "name": "Ann S"})
    story.persist("erase", "people", "--key", ANN, "--reason", "asked")
    story.persist("restore", "people", "--to", first["checkpoint_id"], code=2)
    story.feed("date=2026-01-02/b.jsonl", {"email": ANN, "name": "late"}, {"email": "bo@x", "name": "Bob"})
    assert story.objects_with(ANN) == []
    story.persist("reprocess", "people", "--from", "2026-01-01", "--yes", "--collections", str(tmp_path))
    assert story.objects_with(ANN) == []
    assert story.rows() == [("bo@x", "Bob")]


def test_what_waited_of_one_key_says_nothing_of_another(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    story = Story(tmp_path, there, STASH, capsys)
    story.feed("1.jsonl", *({"email": ANN, "name": "Ann", "at": at} for at in (1, FUTURE)), {"email": "bo@x", "at": 1})
    story.persist("erase", "people", "--key", ANN, "--key", "bo@x", "--reason", "asked")
    upper = story.client.state("people").upper.time
    assert upper is not None
    story.feed("2.jsonl", {"email": ANN, "at": upper + 1}, {"email": "bo@x", "name": "again", "at": upper})
    assert story.rows() == [("bo@x", "again")]


def test_an_order_of_one_key_says_nothing_of_another(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    story = Story(tmp_path, there, SEQUENCE, capsys)
    story.feed("1.jsonl", {"email": ANN, "name": "Ann", "seq": 9}, {"email": "bo@x", "name": "Bo", "seq": 1})
    story.persist("erase", "people", "--key", ANN, "--key", "bo@x", "--reason", "asked")
    story.feed("2.jsonl", {"email": ANN, "name": "late", "seq": 8}, {"email": "bo@x", "name": "again", "seq": 2})
    assert story.rows() == [("bo@x", "again")]


def test_a_later_erasure_protects_no_less_than_the_first(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first one has no order to go by, the second one has."""
    timed = SEQUENCE.replace("seq: bigint", "seq: bigint, at: bigint") + "time: {field: at, unit: ms}\n"
    story = Story(tmp_path, there, timed, capsys)
    story.feed("1.jsonl", {"email": "bo@x", "name": "Bo", "seq": 1, "at": 1})
    erase = ["erase", "people", "--key", ANN, "--reason", "asked"]
    story.persist(*erase)
    first = story.client.state("people").upper.time
    assert first is not None
    story.feed("2.jsonl", {"email": ANN, "name": "Ann", "seq": 10, "at": first})
    assert story.rows() == [(ANN, "Ann"), ("bo@x", "Bo")]
    story.persist(*erase)
    story.feed("3.jsonl", {"email": ANN, "seq": 11, "at": first - 1}, {"email": ANN, "seq": 10, "at": first})
    assert story.rows() == [("bo@x", "Bo")]
    story.feed("4.jsonl", {"email": ANN, "name": "again", "seq": 12, "at": first})
    assert story.rows() == [(ANN, "again"), ("bo@x", "Bo")]


def test_far_dates_are_erased_for_good(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Python has neither the year 0 nor PostgreSQL's infinity; the order of the erased row is beyond it too."""
    story, latest = Story(tmp_path, there, FAR, capsys), 2**63 - 1
    ann, bo = {"born": "0000-12-30", "at": latest}, {"born": "0001-01-01", "at": latest}
    story.feed("1.jsonl", {**ann, "name": "Ann", "seen": latest - 1}, {**bo, "name": "Bo", "seen": 1})
    story.persist(
        "erase", "people", "--key", "0000-12-30", "--key", "+294247-01-10T04:00:54.775807Z", "--reason", "asked"
    )
    story.feed("2.jsonl", {**ann, "name": "late", "seen": latest - 2}, {**bo, "name": "late", "seen": 0})
    assert story.client.open_reader("people").snapshot()["name"].to_pylist() == ["Bo"]
    assert "0001-01-01" in story.persist("late", "people")
    story.feed("3.jsonl", {**ann, "name": "new", "seen": latest})
    assert sorted(story.client.open_reader("people").snapshot()["name"].to_pylist()) == ["Bo", "new"]


@pytest.mark.family("histories in Spark")
def test_an_erasure_while_a_rebuild_begins(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing that was staged without the list of erasures is committed, and the next call knows the list."""
    story = Story(tmp_path, there, SEQUENCE, capsys)
    story.feed("1.jsonl", {"email": ANN, "name": "Ann", "seq": 5}, {"email": "bo@x", "name": "Bo", "seq": 1})
    story.feed("2.jsonl", {"email": ANN, "seq": 6, "op": "D"}, {"email": "bo@x", "name": "Bob", "seq": 2})
    story.feed("3.jsonl", {"email": ANN, "name": "Ann S", "seq": 7})
    write, erasures = vars(cli_reprocess)["write_batch"], 0

    def written(*arguments: Any) -> Any:
        nonlocal erasures
        key = write(*arguments)
        if not erasures:
            erasures += 1
            story.persist("erase", "people", "--key", ANN, "--reason", "asked")
        return key

    monkeypatch.setattr(cli_reprocess, "write_batch", written)
    (tmp_path / "people.yaml").write_text(SEQUENCE.replace("name: string", "name: json"))
    rebuild = ["rebuild", "people", "--yes", "--collections", str(tmp_path)]
    story.persist(*rebuild, code=5)
    assert story.objects_with("ann.smith") == [], "after the refusal"
    story.persist(*rebuild)
    assert erasures == 1
    assert story.objects_with("ann.smith") == []
    assert [email for email, _ in story.rows()] == ["bo@x"]


UNTIMED = {"email": ANN, "name": "Ann", "at": "no time"}


@pytest.mark.parametrize("command", [["reprocess", "people", "--from", "1970-01-02"], ["rebuild", "people"]])
@pytest.mark.family("histories in Spark")
def test_neither_a_replay_nor_a_rebuild_brings_a_key_back(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    story = Story(tmp_path, there, STASH, capsys)
    story.feed("1.jsonl", {"email": ANN, "name": "Ann", "at": 1}, {"email": "bo@x", "name": "Bo", "at": 1})
    story.feed("2.jsonl", UNTIMED, {"email": "cy@x", "name": "Cy", "at": 2})
    story.persist("erase", "people", "--key", ANN, "--reason", "asked")
    assert story.objects_with(ANN) == []
    if command[0] == "rebuild":
        (tmp_path / "people.yaml").write_text(STASH.replace("name: string", "name: json"))
    (tmp_path / "in" / "1.jsonl").write_text(
        "".join(f"{json.dumps(each)}\n" for each in ({"email": ANN, "name": "A", "at": 1}, {"email": "bo@x", "at": 1}))
    )
    story.persist(*command, "--yes", "--collections", str(tmp_path))
    assert story.objects_with(ANN) == []
    assert [email for email, _ in story.rows()] == ["bo@x", "cy@x"]
    (tmp_path / "people.yaml").write_text(STASH.replace("unit: ms", "unit: s"))
    for again in (["reprocess", "people", "--from", "1970-01-02"], ["rebuild", "people"], ["run", "people"]):
        story.persist(*again, "--collections", str(tmp_path), code=2)
    assert story.objects_with(ANN) == []


@pytest.mark.family("histories in Spark")
def test_the_stash_forgets_the_key_and_keeps_all_others(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    story = Story(tmp_path, there, STASH, capsys)
    later = [{"email": email, "name": "later", "at": FUTURE} for email in (ANN, "bo@x")]
    story.feed("1.jsonl", {"email": ANN, "name": "Ann", "at": 1}, {"email": "bo@x", "name": "Bo", "at": 1}, *later)
    story.persist("erase", "people", "--key", ANN, "--reason", "asked")
    assert story.objects_with(ANN) == []
    again = {"email": ANN, "name": "again", "at": FUTURE}  # was in the stash: it is known, so it is dropped
    story.feed("2.jsonl", {"email": "cy@x", "name": "Cy", "at": FUTURE}, again)
    newest = story.client.state("people").newest_commit
    assert newest is not None
    assert story.client.manifest(newest).stats["stashed"] == 2
    assert story.rows() == [("bo@x", "Bo")]
    until = ["--until", str(FUTURE + 1), "--force"]
    story.persist("run", "people", "--collections", str(tmp_path), *until)
    assert story.rows() == [("bo@x", "later"), ("cy@x", "Cy")]
    assert fsck(story.client, "people").is_clean


def test_keys_with_escapes_are_in_no_sample_and_no_error(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    checked = SEQUENCE + 'checks: {long: {sql: "length(name) > 3", on_fail: warn}}\n'
    story = Story(tmp_path, there, checked, capsys)
    odd = 'CORP\\änn"q"smith'
    unordered = json.dumps({"email": odd, "name": "x"}, ensure_ascii=True)
    story.feed(
        "1.jsonl", {"email": odd, "name": "Ann", "seq": 1}, {"email": "bo@x", "name": "Robert", "seq": 1}, unordered
    )
    assert story.objects_with("smith")
    shown = story.persist("erase", "people", "--key", odd, "--reason", "asked", "--verify")
    assert "verified" in shown
    assert story.objects_with("smith") == []
    assert story.rows() == [("bo@x", "Robert")]


@pytest.mark.family("histories in Spark")
def test_a_key_with_a_time_is_in_no_sample_after_a_merge(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    story = Story(tmp_path, there, TIMED, capsys)
    ann = {"born": "1985-03-07T09:11:12.123456Z", "name": "ann.smith", "v": "x", "seq": 1}
    bo = {"born": "1990-01-01T00:00:00Z", "name": "bo", "v": 1}
    story.feed("1.jsonl", ann, {**bo, "seq": 1})
    for number in range(2, 5):
        story.feed(f"{number}.jsonl", {**bo, "seq": number})
    story.persist("maintain", "people")
    key = ["--key", "1985-03-07T09:11:12.123456Z", "--key", "ann.smith"]
    assert story.objects_with("ann.smith")
    assert "verified" in story.persist("erase", "people", *key, "--reason", "asked", "--verify")
    assert story.objects_with("ann.smith") == []


def test_the_story_of_the_page(
    tmp_path: Path,
    there: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, tail = "", (DOCS / "erasing.md").read_text()
    for named, kind, text in PIECE.findall(tail):
        path = named or path
        if kind == "yaml":
            (tmp_path / "people.yaml").write_text(text)
        elif kind == "json":
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        for each in text.split("$ persist ")[1:]:
            command, _, expected = each.partition("\n")
            files = ["--collections", str(tmp_path)] if command.startswith("run") else []
            assert run_command([*shlex.split(command), *files, *there]) == 0, capsys.readouterr().err
            said = capsys.readouterr().out
            assert said == expected or not expected, command
