"""The dashboards of docker/metrics, and what their panels ask for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.servers.prometheus import Prometheus

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "metrics" / "grafana" / "dashboards"
VARIABLES = {"$location": ".*", "$shard": ".*"}


def board(name: str) -> dict[str, Any]:
    """A dashboard's JSON."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def expressions(name: str) -> Iterator[tuple[str, str]]:
    """Each panel's title and PromQL, with all shards chosen."""
    for panel in board(name)["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            yield panel["title"], expression


def check_data(server: Prometheus) -> None:
    """Every panel of the dashboard for shards has data."""
    empty = {
        f"{title}: {expression}"
        for title, expression in expressions("persist")
        if not any(math.isfinite(float(sample["value"][1])) for sample in server.query(expression))
    }
    assert not empty
