"""Airflow 3's own API app in this process, with the plugin's app in it, on a migrated database with two DAGs."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from tests.airflow.page import shop
from tests.airflow.page.browser import api_server, chromium, page, url  # noqa: F401 - fixtures for the tests here

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

collect_ignore_glob = []
if importlib.util.find_spec("airflow.api_fastapi") is None:  # 2.11 has another UI
    collect_ignore_glob += ["test_*.py"]
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Airflow's own, at its import
        importlib.import_module("airflow.api_fastapi.app")

Browse = Callable[..., "TestClient"]


@pytest.fixture(scope="session")
def shop_location(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PersistLocation]:
    """A location with every shard of the shop; it is also in the environment."""
    folder = tmp_path_factory.mktemp("shop")
    location = PersistLocation(f"file://{folder}/blob", f"sqlite:///{folder}/consensus.db")
    with open_location(location) as opened:
        shop.fill(PersistClient(opened), days=12)
    before = {name: os.environ.get(name) for name in location.to_env()}
    os.environ.update(location.to_env())
    yield location
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


@pytest.fixture(scope="session")
def airflow_api(shop_location: PersistLocation, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The API app. Its users' roles are Airflow's, but no user but an admin may read the DAG of `menace`."""
    assert os.environ["PERSIST_BLOB_URI"] == shop_location.blob_uri
    from airflow.api_fastapi import app as api
    from airflow.utils.db import initdb

    initdb()
    _add_dags(shop.write_dags(tmp_path_factory.mktemp("shop-dags")))
    os.environ["AIRFLOW__CORE__AUTH_MANAGER"] = "tests.airflow.page.roles.Roles"
    os.environ["AIRFLOW__API_AUTH__JWT_SECRET"] = "no secret, but as long as the signature requires: " + 64 * "."
    api.purge_cached_app()
    return api.create_app("core")


def _add_dags(folder: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    importlib.import_module("airflow.dag_processing.bundles.manager").DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(folder, bundle_name="dags-folder", bundle_path=folder)
    assert not bag.import_errors, bag.import_errors
    sync_bag_to_db(bag, "dags-folder", bundle_version=None)


@pytest.fixture
def browse(airflow_api: Any) -> Browse:
    """`browse("viewer")`: an HTTP client with the session of a user of that role; `None`: without a session."""
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi.testclient import TestClient

    def client(role: str | None, root_path: str = "") -> TestClient:
        made = TestClient(airflow_api, base_url="http://127.0.0.1", root_path=root_path, follow_redirects=False)
        if role is not None:
            user = SimpleAuthManagerUser(username=f"a {role}", role=role)
            made.cookies.set("_token", airflow_api.state.auth_manager.generate_jwt(user))
        return made

    return client
