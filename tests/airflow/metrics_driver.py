"""Runs real operators with Airflow's own Stats, in a process of its own: `python -m tests.airflow.metrics_driver DAGS`.

Day 0 commits a row, an error and a late record; day 1 loses to day 2 and heals; day 1 again is skipped.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from persist_airflow.compat import AirflowSkipException
from persist_airflow.exceptions import PersistCasConflict
from persist_airflow.maintenance import build_maintenance_dag
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import location_from
from persist_core.shard.batch import BatchDescription
from persist_core.shard.parts import errs_schema, updates_schema
from tests.airflow.fruit import NAME, START_MS, end_of
from tests.airflow.task_driver import DagRunDriver

MINT, WRITE, APPEND = "mint_batch_descriptions", "write_batches", "append_batches"
STATS = {"inserts": 1, "updates": 0, "deletes": 0, "errors": 1, "stashed": 0, "records_read": 2, "late_times": 1}


def initialize_stats() -> None:
    """As Airflow's task runner does before it runs a task. 2.11 needs no call."""
    if AIRFLOW_V_3_0_PLUS:
        stats: Any = importlib.import_module("airflow.sdk.observability.stats")
        utils: Any = importlib.import_module("airflow.sdk.observability.metrics.stats_utils")
        stats.initialize(factory=utils.get_stats_factory(), export_legacy_names=True)


def stage_two_records(client: PersistClient, config: Any, minted: Any) -> str:
    """What the Spark job would write for a row and a record that could not be decoded; the manifest's key."""
    wide, narrow = updates_schema(config.collection_schema()), errs_schema(config.collection_schema())
    row = pa.Table.from_pylist([dict(zip(wide.names, (1, "apple", START_MS, 1), strict=True))], schema=wide)
    err = dict(zip(narrow.names, (None, "value", "not a number", None, b"?", START_MS, 1), strict=True))
    errs = pa.Table.from_pylist([err], schema=narrow)
    description = BatchDescription.from_json(minted)
    return client.open_writer(NAME).stage(description, config.collection_schema(), client.ids.uuid7(), row, errs, stats=STATS)


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
        first = DagRunDriver(dag, end_of(0), "first")
        minted = first.run(MINT)
        key = stage_two_records(client, dag.get_task(MINT).config, minted)
        first.run(APPEND, staged={"description": minted, "manifest_key": key})
        first.run("checkpoint_manifest")
        loser = DagRunDriver(dag, end_of(2), "loser")
        loser.run(MINT)
        loser.run(WRITE)
        DagRunDriver(dag, end_of(1), "winner").run_all()
        expect(PersistCasConflict, lambda: loser.run(APPEND))
        assert loser.run(APPEND)["result"] == "healed"
        expect(AirflowSkipException, lambda: DagRunDriver(dag, end_of(1), "late").run(MINT))
        maintenance = DagRunDriver(build_maintenance_dag(), None)
        maintenance.run("list_shards")
    sys.stdout.flush()
    os._exit(0)  # so Airflow's task processes end: without what `atexit` would do


if __name__ == "__main__":
    main()
