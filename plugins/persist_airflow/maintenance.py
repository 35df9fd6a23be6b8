"""The DAG `persist_maintenance`: it keeps every shard of a location small and fast, whichever program writes it.

    list_shards --names of shards with debt--> maintain_shard (one mapped task for each) : `persist_core.maintenance`

1. It takes no lock, and no task of another DAG waits for it: maintenance and commits never make each other fail.
2. A dag run is bounded, and starts where the last one stopped. One shard's failure does not stop the others.
3. Forks, and shards whose file was deleted, are maintained too: the location is asked, not the folder of files.

    dag = build_maintenance_dag(Path(__file__).parent / "persist.yaml")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from persist_airflow.compat import DAG, BaseOperator, Context, conf, interval_schedule
from persist_airflow.hook import PersistHook, task_client
from persist_airflow.metrics import count, export, measured, report_shards
from persist_airflow.options import location_dag
from persist_airflow.spark import DEFAULT_SPARK, SparkJobOperator
from persist_core.alerts.health import MAX_UNREAD
from persist_core.compaction.steps import BUDGET_BYTES
from persist_core.config.project import MaintenanceConfig, ProjectConfig, load_project
from persist_core.errors import Corruption, StorageError
from persist_core.gc.collect import GRACE_MS, INTENT_MS
from persist_core.handles.client import PersistClient
from persist_core.inspection.metrics import MERGES
from persist_core.maintenance.maintain import MAX_MERGES, MAX_ROWS, maintain, whole_debt_of
from persist_core.spark_job.launch import merge_by_job

DAG_ID = "persist_maintenance"
LOWEST_PRIORITY = 0  # Airflow's default is 1, and more for tasks that others wait for
RETRIES = 1  # the next dag run tries again anyway
RETRY_DELAY = timedelta(minutes=1)
DOCUMENT = """Merges batches of shards and deletes what nothing needs: reads and commits stay fast, and shards small.

`list_shards` finds the shards for which something is due. `maintain_shard` is mapped: one task for each of them.
`persist describe NAME` prints what is due, `persist maintain NAME` does the same without Airflow.
"""


class ListShardsToMaintainOperator(BaseOperator):
    """The names of the shards for which enough is due, the largest merge first.

    Reads the newest state of each shard, and the names of its lists of garbage. A shard for which this fails is listed
    first, so that its own task fails and says why. If metrics are on, it sets the gauges of all shards.

    :param max_shards: at most so many; the others wait for the next dag run
    :param grace_ms: GC is due so long after it last marked
    :param persist_conn_id: the location (templated)
    """

    template_fields: Sequence[str] = ("persist_conn_id",)
    ui_color = "#eeeeee"

    def __init__(
        self,
        *,
        max_shards: int = 200,
        grace_ms: int = GRACE_MS,
        persist_conn_id: str = PersistHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.grace_ms = grace_ms
        self.max_shards = max_shards
        self.persist_conn_id = persist_conn_id

    def execute(self, context: Context) -> list[str]:  # noqa: ARG002 - Airflow's signature
        """List. Changes nothing. Raises `StorageError` if the store fails for more than `MAX_UNREAD` shards."""
        debts: dict[str, float] = {}
        unread = 0
        with task_client(self.persist_conn_id) as client:
            shards = client.shards()
            for shard in shards:
                try:
                    debt = self._debt_of(client, shard)
                except (Corruption, StorageError) as error:
                    unread += isinstance(error, StorageError)
                    if unread > MAX_UNREAD:
                        raise
                    self.log.warning("%s: %s: %s", shard, error.kind, error)
                    debt = float("inf")
                if debt is not None:
                    debts[shard] = debt
            report_shards(self.persist_conn_id, client, shards)
        export()
        due = sorted(debts, key=lambda shard: debts[shard], reverse=True)
        # Airflow refuses a longer list, and then no shard would be maintained.
        most = min(self.max_shards, conf.getint("core", "max_map_length", fallback=self.max_shards))
        left = len(due) - most
        more = f"; {left} of them wait for the next dag run" if left > 0 else ""
        self.log.info("maintenance is due for %d of %d shards%s", len(due), len(shards), more)
        return due[:most]

    def _debt_of(self, client: PersistClient, shard: str) -> float | None:
        """How urgent it is: the rows to merge; `None` if too little is due."""
        debt = whole_debt_of(client, client.state(shard), grace_ms=self.grace_ms)
        if not debt.is_worth_a_task:
            return None
        self.log.info("%s: %s", shard, debt)
        return debt.merge.rows if debt.merge else 0


class MaintainShardOperator(SparkJobOperator):
    """Do what is due for one shard, within bounds. Returns what was done and what is still due, as JSON.

    Safe at any time, beside runs of the shard and beside another maintenance of it; what a killed try did stays done.
    Spark starts only for a merge of more than `max_rows` rows. Further arguments: as for `SparkJobOperator`.

    :param shard: its name (templated)
    :param max_rows: of one merge in this process
    :param max_merges: of one task
    :param max_merge_bytes: that one merge rewrites; one of more, and of more than a 20th of the shard, is done in steps
    :param grace_ms: the least time that a file stays after nothing needs it
    :param intent_ms: longer than the longest dag run: a batch that was described earlier may be refused
    """

    ui_color = "#dddddd"

    def __init__(
        self,
        *,
        max_rows: int = MAX_ROWS,
        max_merges: int = MAX_MERGES,
        max_merge_bytes: int = BUDGET_BYTES,
        grace_ms: int = GRACE_MS,
        intent_ms: int = INTENT_MS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_rows = max_rows
        self.max_merges = max_merges
        self.max_merge_bytes = max_merge_bytes
        self.grace_ms = grace_ms
        self.intent_ms = intent_ms

    @measured("maintain")
    def execute(self, context: Context) -> Any:
        """Maintain. Raises `AirflowFailException` if another try would fail as well."""
        with task_client(self.persist_conn_id) as client:
            return self.maintain(client, context)

    def maintain(self, client: PersistClient, context: Context) -> dict[str, Any]:
        done = maintain(
            client,
            self.shard,
            max_rows=self.max_rows,
            max_merges=self.max_merges,
            budget_bytes=self.max_merge_bytes,
            merge_elsewhere=lambda merge: self.run_jobs(context, lambda start: merge_by_job(client, start, merge)),
            grace_ms=self.grace_ms,
            intent_ms=self.intent_ms,
        )
        report_shards(self.persist_conn_id, client, [self.shard])
        count(self, context, MERGES, done.merges)
        self.log.info("%s", done)
        return {**asdict(done), "summary": str(done)}


def bounds_of(config: MaintenanceConfig) -> dict[str, int]:
    """The arguments of `MaintainShardOperator` that `persist.yaml` says."""
    return {
        "max_rows": config.max_rows,
        "max_merges": config.max_merges,
        "max_merge_bytes": config.max_merge_bytes,
        "grace_ms": config.grace_ms,
        "intent_ms": config.intent_ms,
    }


def build_maintenance_dag(
    project: ProjectConfig | str | Path | None = None,
    *,
    persist_conn_id: str = PersistHook.default_conn_name,
    spark_conn_id: str = DEFAULT_SPARK,
    spark: Mapping[str, Any] | None = None,
    default_args: Mapping[str, Any] | None = None,
    dag_args: Mapping[str, Any] | None = None,
) -> DAG:
    """The DAG that maintains every shard of a location, every hour unless `project` says otherwise.

    `project` is a `persist.yaml` or what `load_project` made of it; without it the defaults count. `spark` are further
    arguments for the provider's SparkSubmitOperator. `dag_args` go over the factory's arguments for the DAG. For a
    second location build it again with another `dag_id`.
    """
    if not isinstance(project, ProjectConfig):
        project = ProjectConfig() if project is None else load_project(Path(project))
    config = project.maintenance
    with location_dag(
        DAG_ID,
        description="Merge batches and collect garbage of all shards",
        schedule=interval_schedule(config.schedule),
        max_active_runs=1,
        tag="maintenance",
        document=DOCUMENT,
        defaults={
            "retries": RETRIES,
            "retry_delay": RETRY_DELAY,
            "priority_weight": LOWEST_PRIORITY,
            "weight_rule": "absolute",
        },
        default_args=default_args,
        dag_args=dag_args,
    ) as dag:
        shards = ListShardsToMaintainOperator(
            task_id="list_shards",
            max_shards=config.max_shards,
            grace_ms=config.grace_ms,
            persist_conn_id=persist_conn_id,
        )
        MaintainShardOperator.partial(
            task_id="maintain_shard",
            persist_conn_id=persist_conn_id,
            spark_conn_id=spark_conn_id,
            pool=config.pool,
            max_active_tis_per_dag=config.max_tasks,
            map_index_template="{{ task.shard }}",
            **bounds_of(config),
            **(spark or {}),
        ).expand(shard=shards.output)
    return dag
