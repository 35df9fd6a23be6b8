"""Whole dag runs with a real Spark: `dag.test()` on both lines, and 2.11's own `airflow dags backfill`."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.conflicts import list_conflicts
from tests import real_parts
from tests.airflow.airflow_process import run
from tests.airflow.fruit import DAY_MS, NAME, START_MS, Fruit, check_history, end_of
from tests.sampling import is_long
from tests.servers.backends import on_s3

pytestmark = pytest.mark.airflow_2_11

IS_AIRFLOW_3 = importlib.metadata.version("apache-airflow").startswith("3")
as_on_2_11 = pytest.mark.skipif(
    IS_AIRFLOW_3 and not is_long(), reason="tests/e2e shows it on Airflow 3 (PERSIST_PROFILE=nightly)"
)
SKIPPED = dict.fromkeys(
    ("mint_batch_descriptions", "write_batches", "append_batches", "checkpoint_manifest"), "skipped"
)
SUCCESS = dict.fromkeys(SKIPPED, "success")

DRIVER = """
import datetime, importlib, json, sys
sys.path.insert(0, sys.argv[1])
dag = importlib.import_module("fruit_dag").persist_upsert__fruit
states = []
for text in sys.argv[2:]:
    when = datetime.datetime.fromisoformat(text)
    try:
        run = dag.test(logical_date=when)
    except TypeError:  # 2.11
        run = dag.test(execution_date=when)
    states.append([str(run.state), {ti.task_id: str(ti.state) for ti in run.get_task_instances()}])
print(json.dumps(states))
"""


@on_s3
@as_on_2_11
def test_dag_runs_in_any_order_end_in_the_same_history(
    fruit: Fruit, migrated: Path, location: PersistLocation, client: PersistClient
) -> None:
    """The run of day 2 comes first and takes three days' input; day 1 then has nothing to do; day 3 continues."""
    real_parts.used("dag.test()", importlib.metadata.version("apache-airflow"))
    fruit.write_days(range(4))
    ends = [end_of(day).isoformat() for day in (2, 1, 3)]
    out = run(fruit.dags, migrated, location, "-c", DRIVER, str(fruit.dags), *ends)
    states: list[Any] = json.loads(out.splitlines()[-1])
    assert states == [["success", SUCCESS], ["success", SKIPPED], ["success", SUCCESS]]
    assert "already in shard fruit" in out
    assert check_history(client) == {"upper": START_MS + 4 * DAY_MS, "commits": 2}
    assert not list_conflicts(client.blob, NAME)
    assert fsck(client, NAME).is_clean


@pytest.mark.skipif(IS_AIRFLOW_3, reason="Airflow 2.11's own command; 3.x has ours, see tests/e2e")
@pytest.mark.family("own backfills")
def test_airflow_2s_own_backfill(
    fruit: Fruit, migrated: Path, location: PersistLocation, client: PersistClient
) -> None:
    fruit.write_days(range(1))  # no input on the second day: its tasks run without Spark
    run(fruit.dags, migrated, location, "-m", "airflow", "dags", "backfill", "persist_upsert__fruit",
        "-s", "2026-01-01", "-e", "2026-01-02", "--disable-retry")  # fmt: skip
    assert check_history(client, 1) == {"upper": START_MS + 2 * DAY_MS, "commits": 2}
    assert fsck(client, NAME).is_clean


@as_on_2_11
def test_too_many_errors_fail_the_run_at_once_and_commit_nothing(
    fruit: Fruit, migrated: Path, location: PersistLocation, client: PersistClient
) -> None:
    text = (fruit.dags / "collections" / "fruit.yaml").read_text()
    fruit.write_collection(NAME, text + "limits: {max_errors: 0}\n")
    fruit.write_days(range(1))
    with (fruit.feed / "date=2026-01-01" / "part.json").open("a") as part:
        part.write('{"id": 7, "name": \n')
    out = run(fruit.dags, migrated, location, "-c", DRIVER, str(fruit.dags), end_of(0).isoformat())
    ((state, tasks),) = json.loads(out.splitlines()[-1])
    assert (state, tasks["mint_batch_descriptions"], tasks["write_batches"]) == ("failed", "success", "failed")
    assert "too_many_errors" in out
    failures = [entry.key for entry in client.blob.list_keys_and_metadata(f"{NAME}/") if "failure.json" in entry.key]
    assert len(failures) == 1, "one try, no retry"
    assert not client.state(NAME).commits
