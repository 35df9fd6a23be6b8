"""The examples that a newcomer types: from getting-started, and the project that `persist init` writes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persist_core.cli.main import run_command
from persist_core.cli.project import DAG_FILES, project_files
from persist_core.config.collection import load_collection
from persist_core.config.view import load_view
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import location_from

if TYPE_CHECKING:
    from tests.servers.spark_connect import ConnectServer

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "getting-started.md").read_text()
SECTIONS = ("From Debezium", "From AWS DMS")
_FENCED = re.compile(r"`([\w./-]+\.(?:jsonl|csv|yaml))`[^`]*?:?\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect_server: ConnectServer) -> Path:
    """A project as `persist init` makes it, in which this process is, with a Spark."""
    assert run_command(["init", str(tmp_path / "shop")]) == 0
    monkeypatch.chdir(tmp_path / "shop")
    for name in [name for name in os.environ if name.startswith("PERSIST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PERSIST_SPARK_MASTER", connect_server.url)
    return tmp_path / "shop"


def run_console(text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Run each command of the text's console blocks; if output follows it there, it must be the same."""
    outputs = {}
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for shown in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = shown.partition("\n")
            capsys.readouterr()
            code = run_command(command.split()[1:])
            printed = capsys.readouterr()
            assert code == 0, f"{command}: {printed.err}"
            if expected.strip():
                assert [json.loads(line) for line in printed.out.splitlines()] == [
                    json.loads(line) for line in expected.splitlines()
                ], command
            outputs[command] = printed.out
    return outputs


@pytest.mark.family("commands")
@pytest.mark.parametrize("section", SECTIONS)
def test_getting_started(section: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GUIDE.partition(f"### {section}\n")[2]
    text = re.split(r"^##+ ", text, flags=re.MULTILINE)[0]
    files = dict(_FENCED.findall(text))
    assert len(files) == 3, files.keys()
    for name, content in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(content)
    assert any("snapshot" in command for command in run_console(text, capsys))


@pytest.mark.family("commands")
def test_a_new_project_runs_as_its_readme_says(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = run_console((project / "README.md").read_text(), capsys)
    assert len(outputs) == 5
    assert "9.90" in outputs["persist snapshot orders --as-of 2026-01-01"]
    assert "55.50" in outputs["persist changes orders_by_status --after 2026-01-01"]
    assert "12 EUR" in outputs["persist errors orders"]


def test_init_writes_files_that_load(tmp_path: Path) -> None:
    assert run_command(["init", str(tmp_path / "shop")]) == 0
    dags = tmp_path / "shop" / "dags"
    assert load_collection(dags / "collections" / "orders.yaml").name == "orders"
    assert load_view(dags / "views" / "orders_by_status.yaml", collections=dags / "collections").inputs == ("orders",)
    bundled = Path(__file__).parents[1] / "dags"
    assert {path.name for path in bundled.glob("*.py")} == set(DAG_FILES)
    assert all((dags / name).read_text() == (bundled / name).read_text() for name in DAG_FILES)
    written = {path.relative_to(tmp_path / "shop").as_posix() for path in (tmp_path / "shop").rglob("*.*")}
    assert set(project_files(tmp_path / "shop")) <= written


@pytest.mark.parametrize("name", ["a%20b", "a#b", "a?b", 'a"b', "a\\b", "a b {c} ü"])
def test_init_in_a_folder_of_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command(["init", str(tmp_path / name)]) == 0
    monkeypatch.chdir(tmp_path / name)
    with open_location(location_from(env={})) as location:
        PersistClient(location).ensure_shard("s")
    assert (tmp_path / name / "data" / "consensus.db").exists()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a\nb", b"a\xff".decode(errors="surrogateescape")])
def test_init_refuses_a_folder_that_no_uri_can_name(name: str, tmp_path: Path) -> None:
    assert run_command(["init", str(tmp_path / name)]) == 2
    assert list(tmp_path.iterdir()) == []


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "persist.toml").write_text("mine")
    assert run_command(["init", str(tmp_path / "shop")]) == 2
    assert "persist.toml: exists already; nothing was written" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["persist.toml"]
