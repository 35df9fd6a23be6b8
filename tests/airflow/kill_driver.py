"""A worker that is killed and started again: `python -m tests.airflow.kill_driver PLAN.json`.

Like Airflow's LocalExecutor it imports everything once and forks for each try of a task. PLAN is
`{"dags": folder, "dag": [module, dag id], "points": folder, "run_id": ..., "days": [{"day": 0, "kills": {task_id:
[point, ...]}}]}`. For each point there is one try that must die there (or fail, if its Spark job is what dies); then
tries follow until one ends well. Prints one line of JSON: the tries of each task.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from persist_airflow.compat import AirflowSkipException
from persist_airflow.failures import PersistCasConflict
from tests.airflow import kill_points
from tests.airflow.fruit import end_of
from tests.airflow.task_driver import DagRunDriver

TASKS = ("mint_batch_descriptions", "write_batches", "append_batches", "checkpoint_manifest")
MAX_TRIES = 12  # per task: its kills, a conflict or two, and the good one
OUTCOMES = {0: "success", 3: "conflict", 4: "skipped", 5: "failed"}


def main(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the plan."""
    sys.path.insert(0, plan["dags"])
    module, dag_id = plan["dag"]
    dag = getattr(importlib.import_module(module), dag_id)
    points = Path(plan["points"])
    kill_points.install(points)
    log: list[dict[str, Any]] = []
    for day in plan["days"]:
        run = DagRunDriver(dag, end_of(day["day"]), f"{plan['run_id']}-{day['day']}")
        for task in TASKS:
            tries = run_task(run, task, points, day.get("kills", {}).get(task, []))
            log.append({"day": day["day"], "task": task, "tries": tries})
            if tries[-1] == "skipped":
                break
            if tries[-1] == "failed":
                return log
    return log


def run_task(run: DagRunDriver, task: str, points: Path, kills: list[str]) -> list[str]:
    """Try one task until it succeeds; how each try ended."""
    tries: list[str] = []
    pending = list(kills)
    while len(tries) < MAX_TRIES:
        is_disturbed = bool(pending)
        if pending:
            kill_points.arm(points, pending.pop(0))
        tries.append(one_try(run, task, points.with_name("xcom.json")))
        if not is_disturbed and tries[-1] in ("success", "skipped", "failed"):
            break
    return tries


def one_try(run: DagRunDriver, task: str, xcom: Path) -> str:
    """Fork, execute, and pass the result back as XCom."""
    pid = os.fork()
    if pid == 0:
        os._exit(_execute(run, task, xcom))
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    outcome = OUTCOMES[os.WEXITSTATUS(status)]
    if outcome == "success":
        run.xcoms[task] = json.loads(xcom.read_text())
    return outcome


def _execute(run: DagRunDriver, task: str, xcom: Path) -> int:
    try:
        result = run.run(task)
    except PersistCasConflict:
        return 3
    except AirflowSkipException:
        return 4
    except Exception:  # noqa: BLE001 - a child must never return into its parent's code
        traceback.print_exc()
        return 5
    xcom.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))) + "\n")
