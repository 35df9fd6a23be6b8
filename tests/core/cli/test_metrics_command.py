"""`persist metrics`: printed, as JSON, and into a file that a textfile collector reads."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from persist_core.cli.main import run_command
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.time_text import parse_time
from tests.core.cli.test_cli import MAIN
from tests.core.world import SCHEMA
from tests.plain_commit import commit

DAY_1 = parse_time("2026-01-01")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def persist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command on a location with two shards: exit code, output, errors."""
    location = PersistLocation(f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/consensus.db")
    with open_location(location) as opened:
        for shard in ("cities", "customers"):
            commit(PersistClient(opened), shard, SCHEMA, DAY_1, [((1, "a"), DAY_1 - 1, 1)])

    def run(*arguments: str) -> tuple[int, str, str]:
        stores = ("--blob-uri", location.blob_uri, "--consensus-uri", location.consensus_uri)
        code = run_command(["metrics", *arguments, *stores])
        return code, *capsys.readouterr()

    return run


def shards_in(text: str) -> set[tuple[str, str]]:
    """Location and shard of each sample."""
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {(each.labels["location"], each.labels["shard"]) for each in samples}


def test_all_shards_or_those_that_are_named(persist: Run) -> None:
    code, out, _ = persist()
    assert code == 0
    assert shards_in(out) == {("persist_default", "cities"), ("persist_default", "customers")}
    _, out, _ = persist("customers", "--location", "eu")
    assert shards_in(out) == {("eu", "customers")}


def test_as_json(persist: Run) -> None:
    _, out, _ = persist("customers", "--json")
    values = [json.loads(line) for line in out.splitlines()]
    rows = {"name": "persist_rows", "labels": {"location": "persist_default", "shard": "customers"}, "value": 1}
    assert rows in values


def test_a_file_is_replaced_whole(persist: Run, tmp_path: Path) -> None:
    file = tmp_path / "text" / "persist.prom"
    file.parent.mkdir()
    file.write_text("old")
    assert persist("--output", str(file)) == (0, "", "")
    assert len(shards_in(file.read_text())) == 2
    assert list(file.parent.iterdir()) == [file], "nothing is left beside it"
    assert file.stat().st_mode & 0o044 == 0o044, "the collector is another user"


@pytest.mark.usefixtures("persist")
def test_a_file_is_utf_8_in_any_locale(tmp_path: Path) -> None:
    file = tmp_path / "persist.prom"
    stores = ["--blob-uri", f"file://{tmp_path}/blob", "--consensus-uri", f"sqlite:///{tmp_path}/consensus.db"]
    command = [*MAIN, "metrics", "--location", "Zürich", "--output", str(file), *stores]
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(command, env=ascii_only, check=True)
    assert shards_in(file.read_text(encoding="utf-8")) == {("Zürich", "cities"), ("Zürich", "customers")}


def test_what_cannot_be_done_is_an_error_and_changes_no_file(persist: Run, tmp_path: Path) -> None:
    file = tmp_path / "persist.prom"
    file.write_text("old")
    code, out, err = persist("nothing", "--output", str(file))
    assert (code, out, file.read_text()) == (3, "", "old")
    assert "no shard 'nothing'" in err
    code, _, err = persist("--output", str(file), "--json")
    assert (code, file.read_text()) == (2, "old")
    assert "--output and --json exclude each other" in err
    code, _, err = persist("--output", "")  # an unset variable of a shell
    assert code == 6
    code, _, err = persist("--output", str(tmp_path / "no" / "persist.prom"))
    assert code == 6
    assert "can't be written: No such file or directory" in err
