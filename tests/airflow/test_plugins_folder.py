"""A clone whose `plugins/` is Airflow's plugins folder, with and without the package being installed as well."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from tests.airflow.airflow_process import run
from tests.airflow.fruit import DAY_MS, NAME, START_MS, Fruit

pytestmark = pytest.mark.airflow_2_11
ROOT = Path(__file__).resolve().parents[2]
IS_AIRFLOW_3 = importlib.metadata.version("apache-airflow").startswith("3")
HIDDEN = """
import importlib, importlib.metadata

def hide(metadata):
    distributions = metadata.distributions
    metadata.distributions = lambda **kwargs: (
        found for found in distributions(**kwargs) if found.metadata["Name"] != "airflow-persist"
    )

hide(importlib.metadata)
try:
    hide(importlib.import_module("importlib_metadata"))  # Airflow reads entry points with it
except ImportError:
    pass
"""
PROBE = """
import json, sys
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager

if hasattr(plugins_manager, "_get_plugins"):
    plugins, errors = plugins_manager._get_plugins()
    apps, links = plugins_manager.get_fastapi_plugins()[0], plugins_manager.get_operator_extra_links()
else:
    plugins_manager.initialize_extra_operators_links_plugins()
    plugins, errors = plugins_manager.plugins, plugins_manager.import_errors
    apps, links = [], plugins_manager.operator_extra_links
of_providers = ProvidersManager().extra_links_class_names
print(json.dumps({
    "sources": [str(plugin.source) for plugin in plugins if plugin.name == "persist"],
    "errors": errors,
    "pages": [app["url_prefix"] for app in apps if app["name"] == "persist-shards"],
    "links": [type(link).__name__ for link in links] + [name for name in of_providers if "persist" in name],
    "strays": [
        name for name, module in sys.modules.items()
        if "/plugins/persist_airflow/" in (getattr(module, "__file__", None) or "")
        and not name.startswith("persist_airflow.") and name != "persist_airflow"
    ],
}))
"""
AS_AIRFLOW_IMPORTS = """
import importlib.machinery, importlib.util, sys
from pathlib import Path

def load(path):
    loader = importlib.machinery.SourceFileLoader(path.stem, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.stem, loader))
    before, sys.modules[path.stem] = sys.modules.get(path.stem), module
    try:
        loader.exec_module(module)
    except ImportError as error:  # the page is for Airflow 3
        print("not here:", error)
    finally:
        sys.modules.pop(path.stem)
        if before is not None:
            sys.modules[path.stem] = before

for path in sorted(Path(sys.argv[1]).rglob("*.py")):
    load(path)
print("end")
"""


@pytest.fixture(autouse=True)
def _plugins_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__PLUGINS_FOLDER", str(ROOT / "plugins"))


@pytest.mark.parametrize("is_installed", [True, False], ids=["installed", "mounted"])
def test_the_folder_registers_the_plugin_once_and_nothing_else(
    fruit: Fruit, migrated: Path, location: PersistLocation, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out = run(fruit.dags, migrated, location, "-c", PROBE if is_installed else HIDDEN + PROBE)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    (source,) = found["sources"]
    assert ("persist_plugin.py" in source) == (not is_installed)
    assert found["errors"] == {}
    assert found["pages"] == (["/persist"] if IS_AIRFLOW_3 else [])
    assert found["links"] == (["persist_airflow.links.ShardLink"] if is_installed else ["ShardLink"])
    assert found["strays"] == []


@pytest.mark.family("tasks")
def test_commands_and_a_dag_run(fruit: Fruit, migrated: Path, location: PersistLocation, client: PersistClient) -> None:
    """The day has no input: what a Spark job imports depends on no folder of plugins."""
    assert "persist" in run(fruit.dags, migrated, location, "-m", "airflow", "plugins")
    command = ("backfill", "create") if IS_AIRFLOW_3 else ("dags", "backfill")
    assert f"sage: airflow {' '.join(command)}" in run(
        fruit.dags, migrated, location, "-m", "airflow", *command, "--help"
    )
    run(fruit.dags, migrated, location, "-m", "airflow", "dags", "test", f"persist_upsert__{NAME}", "2026-01-02")
    assert client.state(NAME).upper.time == START_MS + DAY_MS


def test_no_file_acts_when_it_is_imported_under_its_own_name(tmp_path: Path) -> None:
    """Also where `.airflowignore` is not: a copy of the package alone, in a folder with other plugins."""
    shutil.copytree(ROOT / "plugins" / "persist_airflow", tmp_path / "persist_airflow")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AS_AIRFLOW_IMPORTS, str(tmp_path)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["end"]), done.stdout + done.stderr
    assert ("not here:" in done.stdout) == (not IS_AIRFLOW_3)
