"""Airflow's REST API, for tests."""

from __future__ import annotations

import json
import urllib.request
from typing import Any


class Api:
    """The API of a running Airflow, as one user."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._headers = {"Content-Type": "application/json"}
        token = self.call("POST", "/auth/token", {"username": user, "password": password})["access_token"]
        self._headers["Authorization"] = f"Bearer {token}"

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer's JSON. Raises `HTTPError`."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, content, self._headers, method=method)
        with self._opener.open(request, timeout=60) as answer:
            return json.load(answer)

    def pause(self, dag_id: str, *, is_paused: bool) -> None:
        """Pause or unpause a DAG."""
        self.call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": is_paused})

    def start(self, dag_id: str) -> str:
        """Start a dag run; its path."""
        run = self.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None})
        return f"/api/v2/dags/{dag_id}/dagRuns/{run['dag_run_id']}"
