"""Groups: membership by file and by pattern, and what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from persist_core.config.collection import load_collection, load_collections
from persist_core.config.groups import agreed
from persist_core.config.project import load_project
from persist_core.errors import ConfigError

COLLECTION = """
source: {path: "*.json", format: json}
key: id
columns: {id: bigint}
delete: none
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three collections; `own` names its group itself."""
    folder = tmp_path / "collections"
    folder.mkdir()
    for name, more in (("crm_a", ""), ("crm_b", "group: null\n"), ("own", "group: crm\n")):
        (folder / f"{name}.yaml").write_text(COLLECTION + more)
    return folder


def project(folder: Path, text: str) -> Path:
    path = folder.parent / "persist.yaml"
    path.write_text(text)
    return path


def groups(folder: Path) -> dict[str, str | None]:
    found, errors = load_collections(folder)
    assert not errors
    return {config.name: config.group for config in found}


def test_the_project_file_lies_beside_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own.yaml").write_text(COLLECTION)
    (folder / "archive").mkdir()
    monkeypatch.chdir(folder / "archive")
    for zone in ("Europe/Berlin", "UTC"):  # the second within the clock tick of the first
        os.utime(project(folder, f"timezone: {zone}\n"), (1e9, 1e9))
        assert load_collection(Path("../own.yaml")).timezone == zone


def test_a_files_own_group_goes_over_the_patterns(folder: Path) -> None:
    assert groups(folder) == {"crm_a": None, "crm_b": None, "own": "crm"}
    path = project(folder, "groups: {erp: {collections: [crm_*, own], batch_of: 7}}\n")
    assert groups(folder) == {"crm_a": "erp", "crm_b": None, "own": "crm"}
    assert load_project(path).groups["erp"].batch_of == 7


def test_of_a_group_only_files_that_may_be_its_own_are_parsed(folder: Path) -> None:
    project(folder, "groups: {crm: {collections: [crm_*]}}\n")
    (folder / "broken.yaml").write_text("columns: [")
    found, errors = load_collections(folder, group="crm")
    assert ([config.name for config in found], errors) == (["crm_a", "own"], [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("groups: {crm: {collection: [a]}}", "groups.crm.collection: found an unknown field"),
        ("groups: {crm: {batch_of: 0}}", "groups.crm.batch_of: found 0"),
        ("groups: {a b: {}}", "found 'a b', expected"),
        ("groups: {x: {collections: [crm_*]}, y: {collections: ['*_a']}}", "the patterns of x and y"),
    ],
)
def test_a_wrong_section_is_an_error_of_the_files_without_group(folder: Path, text: str, expected: str) -> None:
    project(folder, text + "\n")
    found, errors = load_collections(folder)
    assert [config.name for config in found] == ["crm_b", "own"]
    (error,) = errors
    assert str(error).startswith(f"{folder / 'crm_a.yaml'}: group: ")
    assert expected in str(error)


def test_a_group_name_that_is_none_names_the_field(folder: Path) -> None:
    (folder / "own.yaml").write_text(COLLECTION + "group: a b\n")
    (error,) = load_collections(folder)[1]
    assert "own.yaml: group: found 'a b'" in str(error)


@pytest.mark.parametrize(
    "line", ["schedule: '@hourly'", "timezone: Asia/Tokyo", "start_date: 2026-02-01", "airflow: {owner: me}"]
)
def test_one_that_differs_is_left_out_with_both_files_named(folder: Path, line: str) -> None:
    for name in ("crm_a", "crm_b", "own"):
        (folder / f"{name}.yaml").write_text(f"{COLLECTION}group: crm\n{line if name == 'crm_a' else ''}\n")
    found, _ = load_collections(folder)
    agreeing, errors = agreed([(folder / f"{config.name}.yaml", config) for config in found])
    assert [config.name for config in agreeing] == ["crm_b", "own"]
    (error,) = errors
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"{folder / 'crm_a.yaml'}: {line.partition(':')[0]}")
    assert str(folder / "crm_b.yaml") in str(error)


def test_another_section_for_airflow_is_named_by_its_field(folder: Path) -> None:
    lines = {"crm_a": "owner: {o}", "crm_b": "owner: {o}", "own": "write: {{pool: {o}}}"}
    for owner, expected in (("me", "airflow.owner: found nothing, expected 'me'"), ("you", "expected 'you'")):
        for name, line in lines.items():
            (folder / f"{name}.yaml").write_text(f"{COLLECTION}group: crm\nairflow: {{{line.format(o=owner)}}}\n")
        found, _ = load_collections(folder)
        agreeing, (error,) = agreed([(folder / f"{config.name}.yaml", config) for config in found])
        assert [config.name for config in agreeing] == ["crm_a", "crm_b"]
        assert expected in str(error)
    for other, expected in (("{n: 1}", "n: found true, expected 1"), ("{n: true, m: null}", "m: found nothing")):
        for name, value in {"crm_a": other, "crm_b": other, "own": "{n: true}"}.items():
            section = f"airflow: {{write: {{executor_config: {value}}}}}"
            (folder / f"{name}.yaml").write_text(f"{COLLECTION}group: crm\n{section}\n")
        found, _ = load_collections(folder)
        _, (error,) = agreed([(folder / f"{config.name}.yaml", config) for config in found])
        assert expected in str(error)
