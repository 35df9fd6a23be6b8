"""Everything in which Airflow 2.11 and 3.x (from 3.2 on) differ, and nothing else.

`airflow.providers.common.compat.sdk` bridges most names by itself; the rest is one function per difference.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

from airflow.exceptions import AirflowClusterPolicySkipDag
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowSkipException,
    Asset,
    AssetAny,
    BaseHook,
    BaseNotifier,
    BaseOperator,
    BaseOperatorLink,
    BaseSensorOperator,
    Context,
    Param,
    Stats,
    TaskDeferred,
    TaskGroup,
    conf,
    mask_secret,
)
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS
from airflow.triggers.base import BaseTrigger, TriggerEvent

try:
    from airflow.triggers.base import BaseEventTrigger
except ImportError:  # 2.11 has no asset watchers
    BaseEventTrigger = BaseTrigger  # type: ignore[assignment, misc] # a stand-in to subclass
try:
    from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
except ImportError:  # 2.11 has it in its core
    from airflow.operators.trigger_dagrun import TriggerDagRunOperator  # type: ignore[import-not-found, no-redef]
try:
    from airflow.sdk.exceptions import AirflowRescheduleException
except ImportError:  # 2.11
    from airflow.exceptions import AirflowRescheduleException

from persist_core.clock import Clock
from persist_core.errors import ConfigError
from persist_core.time_text import UTC_ZONE

_ENDED = ("success", "skipped", "failed", "upstream_failed", "removed")
_TIMEOUTS = ("Trigger timeout", "Trigger/execution timeout")  # on 3.x, and on 2.11
_BEGUN = ("scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule")


def interval_schedule(cron: str | None, timezone: str = UTC_ZONE) -> Any:
    """A DAG's `schedule` whose runs have real data intervals, in `timezone`; `None` stays manual.

    On 3.x a bare cron string means an empty interval (start == end), so the timetable is given by name. Raises
    `ConfigError` for a cron expression that Airflow refuses, or that names no date: such a DAG never runs.
    """
    if cron is None:
        return None
    module = "airflow.sdk" if AIRFLOW_V_3_0_PLUS else "airflow.timetables.interval"
    timetable = importlib.import_module(module).CronDataIntervalTimetable(cron, timezone=timezone)
    dates: Any = importlib.import_module("croniter")  # it has no types
    try:
        timetable.validate()
        if not cron.startswith("@"):
            dates.croniter(cron).get_next()
    except dates.CroniterBadDateError:
        raise ConfigError(f'schedule: found {cron!r}, which names no date; write "0 6 * * *", @daily or null') from None
    except AirflowException as error:
        raise ConfigError(f'schedule: found {error}; write "0 6 * * *", @daily or null') from None
    return timetable


def with_newest_files() -> dict[str, bool]:
    """Arguments of a DAG whose dag runs go by the files as they are now, also ones that began before.

    By default a dag run of 3.x keeps the version of a versioned bundle (Git) that it began with, and so does a task
    that is cleared. But a definition is of the shard, not of a dag run: an older one would drop a column that a newer
    one has added, and the correction of a file would never reach the task that is cleared for it.
    """
    return {"disable_bundle_versioning": True} if AIRFLOW_V_3_0_PLUS else {}


def interval_end_ms(context: Context, clock: Clock) -> int:
    """The end of the dag run's data interval, in ms; for a run without one (manual, 3.x) `run_after`, else now."""
    end: datetime | None = context.get("data_interval_end") or getattr(context["dag_run"], "run_after", None)
    return clock.now_ms() if end is None else int(end.timestamp()) * 1000 + end.microsecond // 1000


def is_timeout(next_method: str, next_kwargs: Mapping[str, Any] | None) -> bool:
    """True if a deferred task goes on because its `timeout` or `execution_timeout` has passed.

    By itself 2.11 would count it as a failed try, and try again.
    """
    return next_method == "__fail__" and (next_kwargs or {}).get("error") in _TIMEOUTS


def run_ahead(context: Context, append: str, staging: Sequence[str]) -> str | None:
    """Why another dag run of this DAG takes its turn first, in words; `None` if none does.

    `append` is the task that ends a turn, `staging` are the tasks of a run that has begun its own. An earlier dag run
    goes first unless its append has ended, or it waits for this one, which has begun. So does any that is staging.
    Earlier runs that only wait to be started do not count: they may be waiting for this one. 2.11 starts no more dag
    runs than the DAG allows, 3.x does so for backfills.
    """
    if not AIRFLOW_V_3_0_PLUS:
        return None
    ti: Any = context["ti"]
    begun = {"dag_id": ti.dag_id, "task_ids": list(staging), "states": list(_BEGUN)}
    own = {**begun, "run_ids": [context["run_id"]]}  # they have begun if only mint was cleared
    earlier = ti.get_previous_dagrun(state="running")
    if earlier is not None:
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=list(staging), run_ids=[earlier.run_id])
        of_earlier = states.get(earlier.run_id, {})
        if of_earlier.get(append) not in _ENDED and (any(of_earlier.values()) or not ti.get_ti_count(**own)):
            return f"dag run {earlier.run_id} is earlier and still running"
    # The own tasks are counted last: until mint ends, no other can begin.
    if ti.get_ti_count(**begun) > ti.get_ti_count(**own):
        return "another dag run is writing its batch"
    return None


def tasks_of_run(context: Context) -> set[str]:
    """The ids of the tasks of this dag run, also of tasks that its DAG no longer has."""
    if not AIRFLOW_V_3_0_PLUS:
        dag_run: Any = context["dag_run"]
        return {each.task_id for each in dag_run.get_task_instances()}
    ti: Any = context["ti"]
    return set(ti.get_task_states(dag_id=ti.dag_id, run_ids=[context["run_id"]])[context["run_id"]])


def is_dag_paused(context: Context, dag_id: str) -> bool | None:
    """True if this DAG is paused; `None` if there is no such DAG.

    3.x does not tell that the file of a DAG is gone: its last facts are returned.
    """
    if not AIRFLOW_V_3_0_PLUS:
        found: Any = importlib.import_module("airflow.models.dag").DagModel.get_current(dag_id)
        return bool(found.is_paused) if found is not None and found.is_active else None
    ti: Any = context["ti"]
    try:
        return bool(ti.get_dag(dag_id).is_paused)
    except importlib.import_module("airflow.sdk.exceptions").AirflowRuntimeError as error:
        if (error.error.detail or {}).get("status_code") == HTTPStatus.NOT_FOUND:
            return None
        raise


def only_dag_id() -> str | None:
    """The DAG that this process parses files for; `None` in the DAG processor, which needs all of them."""
    name = "airflow.sdk" if AIRFLOW_V_3_0_PLUS else "airflow.utils.dag_parsing_context"
    context: Any = importlib.import_module(name).get_parsing_context()
    found: str | None = context.dag_id
    return found


def defers_by_default() -> bool:
    """Airflow's own switch: whether operators wait in the triggerer (`[operators] default_deferrable`)."""
    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


def reschedule(at_ms: int) -> NoReturn:
    """End this look of the task, and start it again at `at_ms`. Takes neither a try nor, meanwhile, a slot."""
    error: Any = AirflowRescheduleException  # Airflow's has no types
    raise error(datetime.fromtimestamp(at_ms / 1000, UTC))


def puts_off(error: BaseException) -> bool:
    """True if this only ends a look of the task, which then waits: deferred, or until it is rescheduled."""
    return isinstance(error, (TaskDeferred, AirflowRescheduleException))


def asset_link(uri: str) -> str:
    """The page of Airflow's own UI that shows the asset's events with their extra."""
    if AIRFLOW_V_3_0_PLUS:
        base = conf.get("api", "base_url", fallback="") or ""
        return f"{base.rstrip('/')}/assets?name_pattern={quote(uri, safe='')}"
    base = conf.get("webserver", "base_url", fallback="")
    return f"{base.rstrip('/')}/datasets?uri={quote(uri, safe='')}"


def framed_url(route: str, path: str) -> str | None:
    """The URL at which the UI shows the page `path` (below its base path) in the frame of a plugin's view.

    The UI takes from its own URL where the frame starts, base path included. `None` on 2.11, which has no such views.
    """
    if not AIRFLOW_V_3_0_PLUS:
        return None
    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return f"{base}/plugin/{route}{urlsplit(base).path}/{path}"


def submit_once(operator: type) -> dict[str, Any]:
    """Arguments that make SparkSubmitOperator submit again on a retry instead of looking for the job of the last try.

    A try stages under an id of its own, so a later try cannot use the job of an earlier one. Release 5 of the Spark
    provider always submits again and does not know the argument.
    """
    is_resumable = any(base.__name__ == "ResumableJobMixin" for base in operator.__mro__)
    return {"durable": False} if AIRFLOW_V_3_3_PLUS and is_resumable else {}


def triggered_by(context: Context) -> str | None:
    """The user who triggered the dag run by hand; `None` for other dag runs, and on 2.11, whose audit log knows it."""
    found: str | None = getattr(context["dag_run"], "triggering_user_name", None)
    return found or None


def file_import_error(path: Path, message: str) -> None:
    """Called while a DAG is validated: leave it out, and make Airflow show `message` as the import error of `path`.

    Airflow takes import errors per Python file, and holds one against every DAG of that file: on 3.x they all go
    stale, on 2.11 they are no longer scheduled. One wrong collection must not stop the others, so the error is put
    under the collection's own path in the bag that is just being filled: found two frames up, since Airflow passes
    it to no one. If no bag is found, this does nothing and the caller has to raise.
    """
    bag: Any = sys._getframe(2).f_locals.get("self")
    if not isinstance(bag, _bag_class()):
        return
    root = getattr(bag, "bundle_path", None)
    shown = path.relative_to(root) if root is not None and path.is_relative_to(root) else path
    bag.import_errors[str(shown)] = message
    raise AirflowClusterPolicySkipDag(message)


def _bag_class() -> Any:
    try:
        return importlib.import_module("airflow.dag_processing.dagbag").DagBag
    except ImportError:  # 2.11
        return importlib.import_module("airflow.models.dagbag").DagBag


def form_widgets(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """2.11's connection form out of 3.x's declaration of it."""
    builder, forms = importlib.import_module("flask_appbuilder.fieldwidgets"), importlib.import_module("wtforms")
    widgets = {}
    for name, form in fields.items():
        kind = "Password" if form["schema"].get("format") == "password" else "Text"
        field = forms.PasswordField if kind == "Password" else forms.StringField
        widget = getattr(builder, f"BS3{kind}FieldWidget")()
        widgets[name] = field(form["label"], widget=widget, description=form["description"])
    return widgets
