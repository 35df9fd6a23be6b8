"""Everything in which Airflow 2.11 and 3.x differ, and nothing else.

`airflow.providers.common.compat.sdk` bridges most names by itself; the rest is one function per difference.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.exceptions import AirflowClusterPolicySkipDag
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    Asset,
    BaseHook,
    BaseNotifier,
    BaseOperator,
    BaseOperatorLink,
    Context,
    Stats,
    TaskGroup,
    conf,
    mask_secret,
)
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS

from persist_core.clock import Clock
from persist_core.errors import ConfigError

__all__ = [
    "DAG",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "Asset",
    "BaseHook",
    "BaseNotifier",
    "BaseOperator",
    "BaseOperatorLink",
    "Context",
    "Stats",
    "TaskGroup",
    "after_earlier_runs",
    "any_asset",
    "asset_link",
    "file_import_error",
    "form_widgets",
    "interval_end_ms",
    "interval_schedule",
    "make_asset",
    "mask_secret",
    "set_event_extra",
    "submit_once",
]

_EARLIER_RUNS_POLL = timedelta(seconds=20)  # each look is a task of its own, and costs a second of one core
_EARLIER_RUNS_PATIENCE = timedelta(days=1)  # an earlier run that takes longer is stuck


def interval_schedule(cron: str | None) -> Any:
    """A DAG's `schedule` whose runs have real data intervals, in UTC; `None` stays manual.

    On 3.x a bare cron string means an empty interval (start == end), so the timetable is given by name. Raises
    `ConfigError` for a cron expression that Airflow refuses.
    """
    if cron is None:
        return None
    module = "airflow.sdk" if AIRFLOW_V_3_0_PLUS else "airflow.timetables.interval"
    timetable = importlib.import_module(module).CronDataIntervalTimetable(cron, timezone="UTC")
    try:
        timetable.validate()
    except AirflowException as error:
        raise ConfigError(f'schedule: found {error}; write "0 6 * * *", @daily or null') from None
    return timetable


def interval_end_ms(context: Context, clock: Clock) -> int:
    """The end of the dag run's data interval, in ms; for a run without one (manual, 3.x) `run_after`, else now."""
    end: datetime | None = context.get("data_interval_end") or getattr(context["dag_run"], "run_after", None)
    return clock.now_ms() if end is None else int(end.timestamp()) * 1000 + end.microsecond // 1000


def after_earlier_runs(context: Context, clock: Clock, log: Any) -> None:
    """Reschedule the task, without using up a try, while an earlier dag run of its DAG is running.

    A backfill on 3.x has a limit of its own, by default 10 dag runs at the same time, and ignores the DAG's
    `max_active_runs`, which 2.11 respects. Earlier runs that only wait to be started do not count: they may be waiting
    for this one.
    """
    ti: Any = context["ti"]
    earlier: Any = ti.get_previous_dagrun(state="running") if AIRFLOW_V_3_0_PLUS else None
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    started: datetime | None = getattr(context["dag_run"], "start_date", None)
    if earlier is None or (started is not None and now - started > _EARLIER_RUNS_PATIENCE):
        return
    log.info(
        "dag run %s is earlier and still running; looking again in %s. A backfill with --max-active-runs 1 avoids this",
        earlier.run_id,
        _EARLIER_RUNS_POLL,
    )
    error: Any = importlib.import_module("airflow.sdk.exceptions").AirflowRescheduleException
    raise error(now + _EARLIER_RUNS_POLL)


def make_asset(uri: str) -> Asset:
    """An asset named like its URI; on 2.11 a dataset, which has no name."""
    return Asset(uri=uri)


def any_asset(assets: Sequence[Asset]) -> Any:
    """A DAG's `schedule`: run when any of these was updated (a bare list would wait for all of them)."""
    joined: Any = assets[0]
    for asset in assets[1:]:
        joined = joined | asset
    return [joined] if len(assets) == 1 else joined


def set_event_extra(context: Context, asset: Asset, extra: dict[str, Any]) -> None:
    """Let the asset event of this task carry `extra` (plain JSON data)."""
    events: Any = context.get("outlet_events")
    if events is not None:
        events[asset].extra = extra


def asset_link(uri: str) -> str:
    """The page of Airflow's own UI that shows the asset's events with their extra."""
    if AIRFLOW_V_3_0_PLUS:
        base = conf.get("api", "base_url", fallback="") or ""
        return f"{base.rstrip('/')}/assets?name_pattern={quote(uri, safe='')}"
    base = conf.get("webserver", "base_url", fallback="")
    return f"{base.rstrip('/')}/datasets?uri={quote(uri, safe='')}"


def submit_once() -> dict[str, Any]:
    """Arguments that make SparkSubmitOperator submit again on a retry instead of looking for the job of the last try.

    A try stages under an id of its own, so a later try cannot use the job of an earlier one.
    """
    return {"durable": False} if AIRFLOW_V_3_3_PLUS else {}


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
