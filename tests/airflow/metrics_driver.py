"""Runs real operators with Airflow's own Stats, in a process of its own: `python -m tests.airflow.metrics_driver DAGS`.

Day 0 commits a row, an error and a late record. Day 2 loses to day 1, which commits as much, and heals. Day 1 again is
skipped. Maintenance looks at all shards, and merges the batches of this one.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from persist_airflow.compat import DAG, AirflowSkipException
from persist_airflow.failures import PersistCasConflict
from persist_airflow.maintenance import MaintainShardOperator, build_maintenance_dag
from persist_core.contents.batch import BatchDescription
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import location_from
from tests.airflow.fruit import NAME, START_MS, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.plain_commit import without_position

MINT, WRITE, APPEND = "mint_batch_descriptions", "write_batches", "append_batches"
STATS = {"inserts": 1, "updates": 0, "deletes": 0, "errors": 1, "stashed": 0, "records_read": 2, "late_times": 1}


def initialize_stats() -> None:
    """As Airflow's task runner does before it runs a task. 2.11 needs no call."""
    if AIRFLOW_V_3_0_PLUS:
        stats: Any = importlib.import_module("airflow.sdk.observability.stats")
        utils: Any = importlib.import_module("airflow.sdk.observability.metrics.stats_utils")
        stats.initialize(factory=utils.get_stats_factory(), export_legacy_names=True)


def commit_two_records(client: PersistClient, run: DagRunDriver, key: int) -> None:
    """A dag run; instead of the Spark job this stages a row and a record that could not be decoded."""
    minted = run.run(MINT)
    schema, description = run.dag.get_task(MINT).config.collection_schema(), BatchDescription.from_json(minted)
    wide, narrow, time = updates_schema(schema), errs_schema(schema), description.lower or START_MS
    row = dict(zip(wide.names, (key, "apple", time, 1), strict=True))
    err = dict(zip(without_position(narrow), (None, "value", "not a number", None, b"?", time, 1), strict=True))
    staged = client.open_writer(NAME).stage(
        description,
        schema,
        client.ids.uuid7(),
        pa.Table.from_pylist([row], schema=wide),
        pa.Table.from_pylist([err], schema=narrow),
        stats=STATS,
    )
    run.run(APPEND, staged={"description": minted, "manifest_key": staged})
    run.run("checkpoint_manifest")


def expect(kind: type[BaseException], call: Callable[[], Any]) -> None:
    """Call, which raises `kind`."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}")


def main() -> None:
    """The dag runs, and then one of the maintenance DAG."""
    sys.path.insert(0, sys.argv[1])
    initialize_stats()
    dag = importlib.import_module("fruit_dag").persist_upsert__fruit
    with open_location(location_from(None, None)) as opened:
        client = PersistClient(opened)
        commit_two_records(client, DagRunDriver(dag, end_of(0), "first"), key=1)
        loser = DagRunDriver(dag, end_of(2), "loser")
        loser.run(MINT)
        loser.run(WRITE)
        commit_two_records(client, DagRunDriver(dag, end_of(1), "winner"), key=2)
        expect(PersistCasConflict, lambda: loser.run(APPEND))
        assert loser.run(APPEND)["result"] == "healed"
        expect(AirflowSkipException, lambda: DagRunDriver(dag, end_of(1), "late").run(MINT))
        DagRunDriver(build_maintenance_dag(), None).run("list_shards")
        with DAG("maintenance", schedule=None) as one_shard:
            MaintainShardOperator(task_id="maintain_shard", shard=NAME)
        DagRunDriver(one_shard, None).run("maintain_shard")
    sys.stdout.flush()
    os._exit(0)  # so Airflow's task processes end: without what `atexit` would do


if __name__ == "__main__":
    main()
