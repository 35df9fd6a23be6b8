"""The files of docker/metrics: dashboards that fit Grafana's schema, PromQL that Prometheus accepts, alerts that fire.

That every panel has data is checked in `tests/airflow/test_metrics.py`, with what real tasks send.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from persist_core.inspection.metrics import RUN_METRICS, SHARD_METRICS
from tests.docker.dashboards import FOLDER, VARIABLES, board, expressions
from tests.servers.prometheus import promtool, running_exporter, wait

METRICS = FOLDER.parents[1]
BOARDS = ("airflow", "persist")
HERE = Path(__file__).parent


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_fits_grafanas_schema(name: str) -> None:
    """Grafana's own types, made from its schema, keep every field: none is unknown or of another type."""
    importlib.import_module("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    schema: Any = importlib.import_module("grafana_foundation_sdk.models.dashboard")
    encoder: Any = importlib.import_module("grafana_foundation_sdk.cog.encoder")
    given = board(name)
    read = schema.Dashboard.from_json(given)
    kept = json.loads(encoder.JSONEncoder().encode(read))
    assert list(_lost(given, kept, name)) == []
    untyped = [panel.title for panel in read.panels if panel.type_val != "row" and isinstance(panel.options, dict)]
    assert not untyped or name == "airflow"


def _lost(given: Any, kept: Any, path: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            yield from _lost(value, kept[name], f"{path}.{name}") if name in kept else [f"{path}.{name}"]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (value, other) in enumerate(zip(given, kept, strict=True)):
            yield from _lost(value, other, f"{path}[{number}]")
    elif given != kept:
        yield f"{path}: {given!r} became {kept!r}"


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_places_and_the_data_source(name: str) -> None:
    (source,) = yaml.safe_load((METRICS / "grafana" / "datasources" / "prometheus.yaml").read_text())["datasources"]
    panels = board(name)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        x, y, w, h = (panel["gridPos"][side] for side in "xywh")
        covered = {(column, row) for column in range(x, x + w) for row in range(y, y + h)}
        assert x + w <= 24
        assert not covered & cells, panel["title"]
        cells |= covered
        for part in (panel, *panel.get("targets", ())):
            assert part.get("datasource", {"uid": source["uid"]})["uid"] == source["uid"]
    (provider,) = yaml.safe_load((FOLDER / "provider.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/grafana/provisioning/dashboards"


def test_every_metric_is_shown() -> None:
    asked = " ".join(expression for _, expression in expressions("persist"))
    names = {metric.name: metric.series for metric in (*SHARD_METRICS, *RUN_METRICS)}
    unshown = {name for name, series in names.items() if series not in asked}
    assert unshown == {
        "upper_lag",  # it stands still between two runs; the panel compares the upper with the clock
        "since_timestamp",
        "holders",
        "updates",
        "last_commit_parts",
        "last_commit_late_records",  # counted over time instead
    }


@pytest.mark.parametrize("name", BOARDS)
def test_prometheus_parses_every_expression(name: str, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression} for number, (_, expression) in enumerate(expressions(name))
    ]
    assert not any(variable in json.dumps(rules) for variable in VARIABLES)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": name, "rules": rules}]}))
    _promtool("check", "rules", "--lint=none", str(tmp_path / "rules.yaml"))


def test_prometheus_accepts_the_configuration_and_the_alerts() -> None:
    out = _promtool("check", "config", str(METRICS / "prometheus.yaml"))
    assert "1 rule files found" in out


def test_alerts_fire_when_they_are_to() -> None:
    """alerts.test.yaml has an input for each alert, and the time at which it fires."""
    alerts = {rule["alert"] for rule in yaml.safe_load((METRICS / "alerts.yaml").read_text())["groups"][0]["rules"]}
    tests = yaml.safe_load((HERE / "alerts.test.yaml").read_text())["tests"]
    assert {each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]} == alerts
    _promtool("test", "rules", str(HERE / "alerts.test.yaml"))


@pytest.mark.parametrize("name", BOARDS)
def test_a_panel_counts_the_first_event_of_a_series(name: str, tmp_path: Path) -> None:
    """A counter is not there before its first event, and `increase()` alone does not count that one."""
    asked = [
        expression for _, expression in expressions(name) if "increase(" in expression and "[1m]" not in expression
    ]
    counters = {found for expression in asked for found in re.findall(r"increase\((\w+)", expression)}
    assert counters, "the board has panels of events"
    series = [
        {"series": f'{counter}{{dag_id="persist_x", state="failed", le="{bound}"}}', "values": "_x10 3x100"}
        for counter in counters
        for bound in (["5", "+Inf"] if counter.endswith("_bucket") else ["none"])
    ]
    checks = [
        {"expr": f"sum({expression}) > bool 0", "eval_time": "60m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for expression in asked
    ]
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": checks}]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"tests": tests}))
    _promtool("test", "rules", str(tmp_path / "panels.yaml"))


def test_the_exporter_makes_equal_metrics_without_tags() -> None:
    metrics = (*SHARD_METRICS, *RUN_METRICS)
    kinds = {"counter": "c", "gauge": "g", "timing": "ms"}
    lines, expected = [], set()
    for metric in metrics:
        own = {name: f"some_{name}" for name in metric.labels}
        for location in ("tags", "names"):
            labels = {"location": location, "shard": "a__b-c", **own}
            tags = "".join(f",{name}={value}" for name, value in labels.items())
            suffix = tags if location == "tags" else "." + ".".join(labels.values())
            lines.append(f"airflow.{metric.stat}{suffix}:2000|{kinds[metric.kind]}")
            series = f"{metric.series}_sum" if metric.kind == "timing" else metric.series
            value = 2.0 if metric.kind == "timing" else 2000.0  # seconds
            expected.add((series, frozenset(labels.items()), value))
    with running_exporter() as exporter:
        exporter.send(lines)

        def received() -> set[Any]:
            families = text_string_to_metric_families(exporter.text())
            samples = [each for family in families for each in family.samples if each.name.startswith("persist_")]
            return {(each.name, frozenset(each.labels.items()), each.value) for each in samples}

        wait(lambda: expected <= received(), "the exporter did not make all metrics")


def _promtool(*arguments: str) -> str:
    done = subprocess.run([promtool(), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
