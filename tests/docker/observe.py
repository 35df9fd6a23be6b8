"""Look at Prometheus in the running compose stack: `tests/docker/stack.sh` runs this after the main job.

    persist_maintenance, persist_watch, started by Airflow's API --StatsD--> exporter --> Prometheus --> these checks

1. Both DAGs run to success.
2. Prometheus scrapes the exporter, and has loaded every alert of docker/metrics/alerts.yaml.
3. It has the commits of the main job, the tries of maintenance, and Airflow's own metrics of the run of the watch.
4. Every panel of both dashboards has data, unless its events did not happen.

    python -m tests.docker.observe AIRFLOW_PORT PROMETHEUS_PORT
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import yaml

from persist_core.clock import SystemClock
from tests.airflow.api import Api
from tests.docker.dashboards import expressions
from tests.servers.prometheus import Prometheus

DOCKER = Path(__file__).resolve().parents[2] / "docker"
DAGS = ("persist_maintenance", "persist_watch")
WAIT_MS = 300_000  # the scheduler starts a task in seconds; the stack shares its machine
SCRAPE_MS = 60_000  # four scrapes
EXPECTED = {
    # The seven days of customers, committed one by one: the state counts them, and so did the tasks.
    'sum(persist_commits_total{shard="customers"})': 7,
    'max(persist_rows{shard="customers"})': 50,
    'max(persist_upper_timestamp_seconds{shard="customers"})': 1767830400,  # 2026-01-08
    'sum(airflow_dagrun_duration_success_count{dag_id="persist_watch"})': 1,
    'sum(airflow_dagrun_duration_success_count{dag_id="persist_maintenance"})': 1,
}
# Nothing of this happens in the main job.
NO_EVENT = {
    "Conflicts and heals per hour",
    "Failed tasks per hour",
    "History that holders keep",
    "Late records per hour",
    "Merges per hour",
    "Problems",
}


def check_runs(api: Api) -> None:
    """Both DAGs run to success."""
    deadline_ms = SystemClock().now_ms() + WAIT_MS
    for dag_id in DAGS:
        api.pause(dag_id, is_paused=False)
    for path in [api.start(dag_id) for dag_id in DAGS]:
        while (state := api.call("GET", path)["state"]) not in ("success", "failed"):
            assert SystemClock().now_ms() < deadline_ms, f"{path} is still {state}"
            SystemClock().sleep_ms(1_000)
        assert state == "success", f"{path}: {state}"


def check_rules(server: Prometheus) -> None:
    """The targets are up, and the alerts are loaded."""
    targets = server.get("targets")["activeTargets"]
    assert targets
    assert all(target["health"] == "up" for target in targets), targets
    rules = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
    (group,) = yaml.safe_load((DOCKER / "metrics" / "alerts.yaml").read_text())["groups"]
    assert [rule["name"] for rule in rules] == [rule["alert"] for rule in group["rules"]]
    assert not [rule for rule in rules if rule["health"] == "err"]


def value(server: Prometheus, expression: str) -> float | None:
    """The value of the only sample."""
    samples = server.query(expression)
    return float(samples[0]["value"][1]) if samples else None


def empty_panels(server: Prometheus) -> set[str]:
    """Titles of the panels for which no query has a number."""
    full, titles = set(), set()
    for board in ("airflow", "persist"):
        for title, expression in expressions(board):
            titles.add(title)
            if any(math.isfinite(float(sample["value"][1])) for sample in server.query(expression)):
                full.add(title)
    return titles - full


def main(airflow_port: int, prometheus_port: int) -> None:
    """Run the DAGs, then look. Raises `AssertionError`."""
    password = json.loads((DOCKER / "secrets" / "airflow_passwords").read_text())["admin"]
    check_runs(Api(f"http://127.0.0.1:{airflow_port}", "admin", password))
    server = Prometheus(prometheus_port)
    check_rules(server)
    deadline_ms = SystemClock().now_ms() + SCRAPE_MS
    while True:
        found = {expression: value(server, expression) for expression in EXPECTED}
        empty = empty_panels(server) - NO_EVENT
        if found == EXPECTED and not empty:
            break
        assert SystemClock().now_ms() < deadline_ms, f"{found}; panels without data: {sorted(empty)}"
        SystemClock().sleep_ms(2_000)
    for expression, number in found.items():
        print(f"   {expression} = {number:.0f}")  # noqa: T201 - the script's output


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
