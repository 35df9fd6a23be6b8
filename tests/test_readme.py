"""The documents are correct: collection files load, commands and Python examples run, field tables are complete."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pytest
from pydantic import BaseModel

from persist_core.cli.main import persist, run_command
from persist_core.config.collection import CollectionConfig, load_collection
from persist_core.config.view import ViewConfig, ViewLimits, load_view
from persist_core.config.yaml_text import parse_yaml
from tests.env.reference import NO_LOCATION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
}
MAX_README_LINES = 150  # five minutes; what is looked up is in docs/reference
PERSIST = str(Path(sys.executable).with_name("persist"))
CHECKPOINT = "CHECKPOINT_ID"  # stands in the documents for an id that `persist checkpoints` prints
# Shown in the handbook; tests/core/cli and other pages run them.
IN_THE_HANDBOOK = {
    "ack", "columns", "copy", "diff", "drop", "erase", "fill", "generations", "preview", "rebuild", "release",
    "reprocess", "warm-up",
}  # fmt: skip
MAY_PRINT_NOTHING = {"alerts", "conflicts", "late"}  # as JSON lines
FEED = ROOT / "dags" / "feed"


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


YAML_FILES = [(name, block) for name, text in DOCUMENTS.items() for block in blocks(text, "yaml")]
IS_VIEW = re.compile("^(query|function):", re.MULTILINE)
IS_COLLECTION = re.compile("^source:", re.MULTILINE)
COLLECTION_FILES = [(name, block) for name, block in YAML_FILES if IS_COLLECTION.search(block)]
COLLECTION_PARTS = [
    (name, block)
    for name, block in YAML_FILES
    if not (IS_COLLECTION.search(block) or IS_VIEW.search(block))
    and {*parse_yaml(block.encode())} <= {*CollectionConfig.model_fields}
]
VIEW_FILES = [(name, block) for name, block in YAML_FILES if IS_VIEW.search(block)]
SHOWN_IN = ("README.md", "docs/reference/cli.md")
COMMANDS = [
    line.removeprefix("$ ")
    for document in SHOWN_IN
    for block in blocks(DOCUMENTS[document], "console")
    for line in block.splitlines()
]
PYTHON = [(name, block) for name, text in DOCUMENTS.items() for block in blocks(text, "python")]
READS_A_TABLE = [(name, block) for name, block in PYTHON if '"customers"' in block and "airflow" not in block]
BUILDS_A_DAG = [(name, block) for name, block in PYTHON if "airflow" in block]


@pytest.mark.parametrize(("document", "block"), COLLECTION_FILES, ids=[name for name, _ in COLLECTION_FILES])
def test_collection_files_load(document: str, block: str, tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(block)
    assert load_collection(file).key, document


@pytest.mark.parametrize(("document", "block"), COLLECTION_PARTS, ids=[name for name, _ in COLLECTION_PARTS])
def test_parts_of_collection_files_load(document: str, block: str, tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(blocks(README, "yaml")[0] + block)
    assert load_collection(file).key, document


@pytest.mark.parametrize(("document", "block"), VIEW_FILES, ids=[name for name, _ in VIEW_FILES])
def test_view_files_load(document: str, block: str, tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(block)
    assert load_view(file, collections=ROOT / "dags" / "collections").inputs, document


def test_the_reference_names_every_field_of_a_view_file() -> None:
    table = DOCUMENTS["docs/reference/views.md"].partition("| field | meaning")[2].partition("\n\n")[0]
    unsaid = {"name", "base_dir"}  # not for writing by hand
    assert [name for name in ViewConfig.model_fields if name not in unsaid and f"`{name}`" not in table] == []
    assert [name for name in ViewLimits.model_fields if f"`{name}`" not in table] == []


def test_the_readme_takes_five_minutes() -> None:
    assert README.count("\n") <= MAX_README_LINES


def test_the_first_example_has_ten_lines() -> None:
    assert "Ten lines" in README
    assert len(blocks(README, "yaml")[0].splitlines()) == 10


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = next((kind for kind in (field.annotation, *get_args(field.annotation)) if _is_model(kind)), None)
        if inner is None or name in ("columns", "checks", "airflow"):  # these have tables of their own
            yield prefix + name
        else:
            yield from _fields(inner, f"{name}.")


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def test_the_reference_names_every_field_of_a_collection_file() -> None:
    """And no other fields: a row's first cell holds fields, its second short forms."""
    table = DOCUMENTS["docs/reference/collections.md"].partition("| field | meaning")[2].partition("\n\n")[0]
    unsaid = {"name", "base_dir", "order.fields", "order.types", "delete.never"}  # not for writing by hand
    missing = [name for name in _fields(CollectionConfig) if name not in unsaid
               and name not in table and name.rpartition(".")[2] not in re.findall(r"\w+", table)]  # fmt: skip
    assert not missing
    named = re.findall(r"`([a-z_.]+)`", " ".join(row.split("|")[1] for row in table.splitlines() if row.count("|") > 2))
    known = {*_fields(CollectionConfig), *CollectionConfig.model_fields}
    assert [name for name in named if name not in known] == []


def test_every_command_is_shown() -> None:
    shown = {command.split()[1] for command in COMMANDS if command.startswith("persist ")}
    assert shown == set(persist.commands) - IN_THE_HANDBOOK
    for command in IN_THE_HANDBOOK:
        assert re.search(f"`persist {command}[ `]", DOCUMENTS["docs/operations.md"])


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9.-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = "\n".join(re.findall(r"^ *```.*?^ *```|`[^`]+`", DOCUMENTS[document], re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"(?:`|^)make ([a-z][a-z0-9.-]*)", code, re.MULTILINE))
    assert named <= targets


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the README's collection file, the bundled feed and an empty location."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "dags" / "collections").mkdir(parents=True)
    (folder / "dags" / "collections" / "customers.yaml").write_text(blocks(README, "yaml")[0])
    shutil.copytree(FEED, folder / "dags" / "feed")
    (folder / "persist.toml").write_text(
        f'blob_uri = "{(folder / "data").as_uri()}"\nconsensus_uri = "sqlite:///{folder}/data/consensus.db"\n'
    )
    return folder


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PERSIST_", "AIRFLOW"))}
    environment = {**clean, "AIRFLOW_HOME": str(folder / "airflow")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def loaded(workplace: Path) -> Path:
    """The folder after the README's first command."""
    first = _run([PERSIST, *COMMANDS[0].split()[1:]], workplace)
    assert first.returncode == 0, first.stdout + first.stderr
    return workplace


@pytest.fixture
def inside(loaded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process in that folder. Only its persist.toml names a location."""
    monkeypatch.chdir(loaded)
    for variable in ("PERSIST_BLOB_URI", "PERSIST_CONSENSUS_URI"):
        monkeypatch.delenv(variable, raising=False)
    return loaded


# Commands that need no location run in tests/test_examples.py and tests/env/check_wheel.py.
@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(
    "command",
    sorted(command for command in {*COMMANDS} - {COMMANDS[0]} if command.split()[1] not in NO_LOCATION),
)
def test_commands_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    if CHECKPOINT in command:
        assert run_command(["checkpoints", "customers", "--json"]) == 0
        checkpoint = json.loads(capsys.readouterr().out.splitlines()[0])["checkpoint_id"]
        command = command.replace(CHECKPOINT, checkpoint)
        if " unpin " in command:
            assert run_command(["pin", "customers", checkpoint]) == 0
    for options in ([], ["--json"]):
        assert run_command([*command.split()[1:], *options]) == 0, capsys.readouterr().err
        assert capsys.readouterr().out.strip() or command.split()[1] in MAY_PRINT_NOTHING


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(("document", "block"), READS_A_TABLE, ids=[name for name, _ in READS_A_TABLE])
def test_reading_examples_run(document: str, block: str, spark: SparkSession) -> None:
    names: dict[str, Any] = {"spark": spark}
    exec(block, names)
    rows = {name: _rows(value) for name, value in names.items() if name in ("table", "changed", "broken", "breaking")}
    assert rows
    assert all(count > 0 for count in rows.values()), f"{document}: {rows}"


def _rows(table: Any) -> int:
    return int(table.num_rows) if isinstance(table, pa.Table) else int(table.count())


# One process for all: to import Airflow takes longer than to build a DAG. It does not start in the folder of the files.
BUILD = """
import json, os, sys
file = os.path.abspath("dags/example.py")
os.chdir("/")
for document, block in json.loads(sys.argv[1]):
    print("the last one:", document, block, flush=True)
    exec(compile(block, document, "exec"), {"__name__": "dag_file", "__file__": file})
"""


def test_dag_examples_build(workplace: Path) -> None:
    if importlib.util.find_spec("airflow") is None:
        pytest.skip("no Airflow in this environment")
    (workplace / "dags" / "views").mkdir(exist_ok=True)
    (workplace / "dags" / "views" / "reds.yaml").write_text(blocks(DOCUMENTS["docs/views.md"], "yaml")[1])
    done = _run([sys.executable, "-c", BUILD, json.dumps(BUILDS_A_DAG)], workplace)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_kind_of_example_is_shown() -> None:
    assert len(READS_A_TABLE) == 3
    assert {document for document, _ in BUILDS_A_DAG} == {
        "docs/alerts.md",
        "docs/deploy.md",
        "docs/reference/airflow.md",
        "docs/views.md",
    }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_and_options_exist(document: str) -> None:
    """Every `persist COMMAND --option` that a document names in code."""
    code = re.findall(r"^ *```.*?^ *```|`[^`]+`", DOCUMENTS[document], re.MULTILINE | re.DOTALL)
    missing = []
    for line in "\n".join(code).replace("\\\n", " ").splitlines():
        for name, rest in re.findall(r"(?:^|[`$/ ])persist ([a-z]+(?:-[a-z]+)*)([^`;|]*)", line):
            command = persist.commands.get(name)
            options = {option for parameter in getattr(command, "params", ()) for option in parameter.opts}
            missing += [f"persist {name}"] * (command is None)
            missing += [
                f"persist {name} {option}" for option in re.findall(r"--[a-z-]+", rest) if option not in options
            ]
    assert missing == []
