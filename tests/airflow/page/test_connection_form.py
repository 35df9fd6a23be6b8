"""The connection form of Airflow 3: its fields, and the Test button as the UI presses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.page.conftest import Browse

pytestmark = pytest.mark.filterwarnings("ignore:ProvidersManager.hooks is deprecated")  # Airflow's own call
CONNECTIONS = "/api/v2/connections"


def saved(browse: Browse, folder: Path, port: int | None, consensus: str = "consensus.db") -> dict[str, Any]:
    """A connection saved as the form does it; what the Test button then sends (no port: `Number(null)`, 0)."""
    extra = {"blob_uri": f"file://{folder}/blob", "consensus_uri": f"sqlite:///{folder}/{consensus}"}
    body = {
        "connection_id": f"lake_{port}",
        "conn_type": "persist",
        "host": "",
        "login": "",
        "schema": "",
        "port": port,
        "extra": json.dumps(extra),
    }
    admin = browse("admin")
    admin.delete(f"{CONNECTIONS}/lake_{port}")
    assert admin.post(CONNECTIONS, json={**body, "password": ""}).status_code == 201
    listed = admin.get(f"{CONNECTIONS}/lake_{port}").json()
    return {
        **{
            name: listed[name] or ""
            for name in ("connection_id", "conn_type", "description", "host", "login", "schema")
        },
        "password": listed["password"] or "",
        "extra": listed["extra"],
        "port": int(listed["port"] or 0),
    }


def press(browse: Browse, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AIRFLOW__CORE__TEST_CONNECTION", "Enabled")
    return browse("admin").post(f"{CONNECTIONS}/test", json=body)


def test_the_button_tests_a_connection_with_port_0(
    browse: Browse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = press(browse, saved(browse, tmp_path, 0), monkeypatch)
    assert (answer.status_code, answer.json()["status"]) == (200, True), answer.text
    assert answer.json()["message"].startswith("wrote, read and deleted a blob in file://")
    (tmp_path / "file").touch()
    answer = press(browse, saved(browse, tmp_path, 0, "file/c.db"), monkeypatch)
    assert (answer.status_code, answer.json()["status"]) == (200, False), answer.text


def test_without_it_airflow_refuses_the_test(browse: Browse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails after an upgrade, Airflow is corrected: hide the field of the port again."""
    answer = press(browse, saved(browse, tmp_path, None), monkeypatch)
    assert answer.status_code == 400
    assert "port to test differs from the stored connection" in answer.json()["detail"]


def test_the_form_shows_the_port_and_names_every_kind_of_store(browse: Browse) -> None:
    found = browse("admin").get("/ui/connections/hook_meta").json()
    (form,) = [each for each in found if each["connection_type"] == "persist"]
    port = form["standard_fields"]["port"]
    assert (port["hidden"], port["placeholder"]) == (False, "0")
    texts = {name: field["description"] for name, field in form["extra_fields"].items()}
    for scheme in ("file://", "s3://", "mem:"):
        assert scheme in texts["blob_uri"]
    for scheme in ("postgresql://", "sqlite://", "s3://", "mem:"):
        assert scheme in texts["consensus_uri"]
    assert "file://" not in texts["consensus_uri"], "it holds no consensus"
