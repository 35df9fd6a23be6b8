"""Runs single tasks of a DAG as a worker would, without a scheduler: real operators and templates, XComs in a dict."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from tests.airflow.fruit import DAY

RETURNED = "return_value"


@dataclass
class DagRunDriver:
    """One dag run: `run("append_batches")` renders and executes that task; its result becomes its XCom."""

    dag: Any
    interval_end: datetime | None
    run_id: str = "test"
    run_after: datetime | None = None
    conf: dict[str, Any] = field(default_factory=dict)
    earlier_run: str | None = None  # that is running
    append_states: dict[str, str] = field(default_factory=dict)  # of dag runs
    started: datetime | None = None
    try_number: int = 1
    max_tries: int = 3
    staging: int = 0  # tasks of other dag runs that write or append now
    own_staging: int = 0  # the same of this dag run
    xcoms: dict[str, Any] = field(default_factory=dict)
    pushed: dict[tuple[str, str], Any] = field(default_factory=dict)  # more XComs, by task and key
    running: str = ""  # the task
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    executed: dict[str, Any] = field(default_factory=dict)  # the newest operator of each task, after its execution

    def context(self) -> dict[str, Any]:
        """The dag run as a task sees it."""
        events: defaultdict[Any, SimpleNamespace] = defaultdict(lambda: SimpleNamespace(extra={}))
        return {
            "dag": self.dag,
            "dag_run": SimpleNamespace(
                dag_id=self.dag.dag_id,
                run_id=self.run_id,
                run_after=self.run_after,
                conf=self.conf,
                start_date=self.started,
                get_task_instances=lambda: [SimpleNamespace(task_id=task) for task in self.executed],  # 2.11 asks
            ),
            "run_id": self.run_id,
            "data_interval_end": self.interval_end,
            "data_interval_start": None if self.interval_end is None else self.interval_end - DAY,
            "outlet_events": events,
            "ti": SimpleNamespace(
                try_number=self.try_number,
                max_tries=self.max_tries,
                dag_id=self.dag.dag_id,
                xcom_pull=lambda task_ids, key=RETURNED, **_: (
                    self.xcoms.get(task_ids) if key == RETURNED else self.pushed.get((task_ids, key))
                ),
                xcom_push=lambda key, value: self.pushed.update({(self.running, key): value}),
                get_previous_dagrun=lambda state=None: self._earlier() if state == "running" else None,
                get_task_states=lambda run_ids, task_ids=(), **_: {
                    run_id: {task: self.append_states.get(run_id) for task in task_ids or self.executed}
                    for run_id in run_ids
                },
                get_ti_count=lambda **wanted: (
                    self.own_staging if "run_ids" in wanted else self.staging + self.own_staging
                ),
                get_relevant_upstream_map_indexes=lambda *_, **__: None,  # 2.11 asks; nothing here is mapped
            ),
            "expanded_ti_count": None,
            "params": {},
        }

    def _earlier(self) -> Any:
        return None if self.earlier_run is None else SimpleNamespace(run_id=self.earlier_run)

    def run(self, task_id: str, **changed: Any) -> Any:
        """Execute one task; `changed` are attributes to overrule before its templates are rendered."""
        task = self.dag.get_task(task_id).prepare_for_execution()
        for name, value in changed.items():
            setattr(task, name, value)
        context = self.context()
        task.render_template_fields(context)
        self.executed[task_id] = task
        self.running = task_id
        result = task.execute(context)
        self.xcoms[task_id] = result
        self.events[task_id] = {asset.uri: event.extra for asset, event in context["outlet_events"].items()}
        return result

    def run_all(self) -> Any:
        """All four tasks, in order; the append's report."""
        for task_id in ("mint_batch_descriptions", "write_batches"):
            self.run(task_id)
        report = self.run("append_batches")
        self.run("checkpoint_manifest")
        return report
