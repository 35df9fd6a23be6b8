"""Facts about shards in Airflow's metadata database: which DAGs write them, when they run, how long stages took.

A DAG writes a shard if one of its tasks has the shard's asset as an outlet (`links.shard_uri`).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.parse import unquote

from airflow.models.asset import AssetModel, TaskOutletAssetReference
from airflow.models.connection import Connection
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.xcom import XComModel
from pydantic import ValidationError
from sqlalchemy import func, select

from persist_airflow.metrics import SECONDS_XCOM
from persist_airflow.options import GROUP_PREFIX
from persist_airflow.provider import CONNECTION_TYPE
from persist_core.config.alerts import DurationThreshold
from persist_core.config.yaml_text import YamlError, parse_yaml
from persist_core.time_text import day_of

_YAML = re.compile(r"```yaml\n(.*?)\n```", re.DOTALL)
_SHARD_URI = re.compile(r"persist://([^/?#]+)/([A-Za-z0-9][A-Za-z0-9._-]*)")
MAX_RUNS = 5_000  # dag runs of one shard that the calendar looks at
MAX_ASSETS = 20_000  # rows that are read; more shards than that need more than one page
MAX_DOCUMENT_CHARS = 20_000
ACTIONS_TAG, MAX_ACTION_DAGS = "actions", 100  # the tag that `build_actions_dag` gives


@dataclass(frozen=True)
class GroupResult:
    """A shard in a dag run of its group: whether nothing more is to be committed, and the seconds of its stages."""

    is_done: bool
    seconds: float


@dataclass(frozen=True)
class DagFacts:
    """A DAG that writes a shard. Times are in ms.

    `expected_upper` is where the upper is after the last run that was due; `None` without a schedule. Of a group's DAG,
    `results` has what its last run did, by shard.
    """

    dag_id: str
    is_paused: bool
    expected_upper: int | None
    next_run_ms: int | None
    last_run_id: str | None = None
    last_run_state: str | None = None
    group: str | None = None
    results: Mapping[str, GroupResult] = field(default_factory=dict)

    def of(self, shard: str) -> dict[str, Any]:
        """The facts about the shard. A run that failed for other shards of its group did not fail for this one."""
        result = self.results.get(shard)
        state = self.last_run_state
        if state == "failed" and result is not None and result.is_done:
            state = "success"
        seconds = None if result is None else result.seconds
        return {**asdict(replace(self, results={}, last_run_state=state)), "seconds": seconds}


Writers = dict[str, dict[str, tuple[str, ...]]]  # connection -> shard -> ids of the DAGs that write it


def writers(session: Any) -> Writers:
    """The DAGs that write each shard of each connection. One that is gone counts only if no other one writes the shard.

    Airflow keeps what it knows of a DAG that is gone, for example of the group that a collection was in before.
    """
    outlet = TaskOutletAssetReference
    statement = (
        select(AssetModel.uri, DagModel.is_stale, outlet.dag_id)
        .join(outlet, outlet.asset_id == AssetModel.id)
        .join(DagModel, DagModel.dag_id == outlet.dag_id)
        .where(AssetModel.uri.like("persist://%"), AssetModel.uri.not_like("persist://%/%/%"))  # not of checkpoints
        .distinct()
        .order_by(AssetModel.uri, DagModel.is_stale, outlet.dag_id)
        .limit(MAX_ASSETS)
    )
    found: Writers = defaultdict(dict)
    for (uri, _), rows in groupby(session.execute(statement), key=itemgetter(0, 1)):
        shard = _SHARD_URI.fullmatch(uri)
        if shard is not None:
            found[unquote(shard[1])].setdefault(shard[2], tuple(dag_id for _, _, dag_id in rows))
    return dict(found)


def connections(session: Any) -> list[str]:
    """Ids of the connections of our type that the database has; other backends cannot be listed."""
    statement = select(Connection.conn_id).where(Connection.conn_type == CONNECTION_TYPE).order_by(Connection.conn_id)
    return [str(conn_id) for conn_id in session.scalars(statement)]


def dags(session: Any, dag_ids: Collection[str]) -> dict[str, DagFacts]:
    """Facts about these DAGs, with each one's newest dag run."""
    newest = select(func.max(DagRun.id)).where(DagRun.dag_id.in_(dag_ids)).group_by(DagRun.dag_id)
    runs = {
        dag_id: (str(run_id), str(getattr(state, "value", state)))
        for dag_id, run_id, state in session.execute(
            select(DagRun.dag_id, DagRun.run_id, DagRun.state).where(DagRun.id.in_(newest))
        )
    }
    statement = select(
        DagModel.dag_id, DagModel.is_paused, DagModel.next_dagrun_data_interval_start, DagModel.next_dagrun_create_after
    ).where(DagModel.dag_id.in_(dag_ids))
    groups = {dag_id: dag_id.removeprefix(GROUP_PREFIX) for dag_id in dag_ids if dag_id.startswith(GROUP_PREFIX)}
    results = group_results(session, [(dag_id, run_id) for dag_id, (run_id, _) in runs.items() if dag_id in groups])
    found = {}
    for dag_id, is_paused, start, after in session.execute(statement):
        run_id, state = runs.get(dag_id, (None, None))
        of_shards = results.get((dag_id, str(run_id)), {})
        times = (_ms(start), _ms(after))
        found[dag_id] = DagFacts(dag_id, bool(is_paused), *times, run_id, state, groups.get(dag_id), of_shards)
    return found


def group_results(session: Any, runs: Collection[tuple[str, str]]) -> dict[tuple[str, str], dict[str, GroupResult]]:
    """The results of these dag runs (DAG id, run id) of groups, by shard, if they came to it."""
    statement = select(XComModel.dag_id, XComModel.run_id, XComModel.value).where(
        XComModel.dag_id.in_({dag_id for dag_id, _ in runs}),
        XComModel.run_id.in_({run_id for _, run_id in runs}),
        XComModel.key == SECONDS_XCOM,
    )
    found: dict[tuple[str, str], dict[str, GroupResult]] = defaultdict(dict)
    for dag_id, run_id, value in session.execute(statement) if runs else ():
        results = found[dag_id, run_id]
        by_shard = _measured(value)
        for shard, each in by_shard.items() if isinstance(by_shard, dict) else ():
            before = results.get(shard, GroupResult(is_done=False, seconds=0.0))
            results[shard] = GroupResult(before.is_done or each["is_done"], before.seconds + each["seconds"])
    return dict(found)


def _measured(value: Any) -> float | dict[str, Any] | None:
    """Seconds that a task has measured, or an object by shard; `None` if the database does not have it.

    The database has it as JSON. Of an XCom backend that keeps values elsewhere it has only where they are.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if isinstance(value, dict):
        return value if all(isinstance(each, dict) and "seconds" in each for each in value.values()) else None
    return float(value) if isinstance(value, int | float) else None


def known_dags(session: Any, dag_ids: Collection[str]) -> list[str]:
    """The DAGs among these that exist."""
    return sorted(session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(dag_ids))))


def stage_seconds(session: Any, shard: str, commit_writers: Iterable[str]) -> dict[str, dict[str, float]]:
    """Seconds of each task of the dag runs that these writers (`dag_id/run_id`) name, by writer and task.

    They are what the tasks have measured (`metrics.measured`), without the time for which a task was put off.
    """
    runs: dict[str, set[str]] = defaultdict(set)
    for writer in commit_writers:
        dag_id, slash, run_id = writer.partition("/")
        if slash:
            runs[dag_id].add(run_id)
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for dag_id, run_ids in runs.items():
        statement = select(XComModel.run_id, XComModel.task_id, XComModel.value).where(
            XComModel.dag_id == dag_id, XComModel.run_id.in_(run_ids), XComModel.key == SECONDS_XCOM
        )
        for run_id, task_id, seconds in session.execute(statement):
            name = task_id.rpartition(".")[2]  # in a task group the id starts with the group's
            measured = _measured(seconds)
            if isinstance(measured, dict):
                measured = measured[shard]["seconds"] if shard in measured else None
            if measured is not None:
                stages = found[f"{dag_id}/{run_id}"]
                stages[name] = stages.get(name, 0.0) + measured
    return dict(found)


def failed_days(
    session: Any, shard: str, dag_ids: Collection[str], *, after_ms: int, zone: str
) -> dict[int, tuple[str, str]]:
    """The days of `zone` (first instant, ms) for which a DAG's newest run failed for the shard: DAG id and run id.

    A dag run is of the day in which its data interval ends, or of the day before if it ends at midnight.
    """
    after = datetime.fromtimestamp(after_ms / 1000, UTC)
    statement = (
        select(DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.data_interval_end)
        .where(DagRun.dag_id.in_(dag_ids), DagRun.data_interval_end > after)
        .order_by(DagRun.id.desc())
        .limit(MAX_RUNS)
    )
    newest: dict[tuple[int, str], tuple[str, str]] = {}
    for dag_id, run_id, state, end in session.execute(statement):
        last_ms = (_ms(end) or 1) - 1
        newest.setdefault((day_of(last_ms, zone), dag_id), (run_id, str(getattr(state, "value", state))))
    failed = [(day, (dag_id, run_id)) for (day, dag_id), (run_id, state) in newest.items() if state == "failed"]
    results = group_results(session, [run for _, run in failed if run[0].startswith(GROUP_PREFIX)])
    done = {run for run, shards in results.items() if shard in shards and shards[shard].is_done}
    return {day: run for day, run in reversed(failed) if run not in done}


def document(session: Any, dag_id: str) -> str | None:
    """The DAG's own documentation, which holds the definition of a collection or view."""
    text = _serialized(session, dag_id).get("doc_md")
    return str(text)[:MAX_DOCUMENT_CHARS] if text else None


def action_dags(session: Any, readable: Collection[str], conn_id: str, shard: str) -> list[dict[str, Any]]:
    """The DAGs that may do actions on the shard (`build_actions_dag`), by id, each with the names of these actions."""
    statement = (
        select(DagTag.dag_id)
        .join(DagModel, DagModel.dag_id == DagTag.dag_id)
        .where(DagTag.name == ACTIONS_TAG, ~DagModel.is_stale)
    )
    found = []
    for dag_id in sorted(set(session.scalars(statement)).intersection(readable))[:MAX_ACTION_DAGS]:
        for task in _serialized(session, dag_id).get("tasks", ()):
            given = task.get("__var", {})
            patterns = given.get("shards", ())  # a text if it is long: cut by Airflow; the DAG itself decides
            may_act = isinstance(patterns, str) or any(fnmatchcase(shard, pattern) for pattern in patterns)
            if may_act and given.get("persist_conn_id") == conn_id:
                found.append({"dag_id": dag_id, "actions": given.get("actions", [])})
    return found


def _serialized(session: Any, dag_id: str) -> dict[str, Any]:
    """The newest version of the DAG, as Airflow stores it."""
    stored = session.scalar(
        select(SerializedDagModel)
        .where(SerializedDagModel.dag_id == dag_id)
        .order_by(SerializedDagModel.last_updated.desc())
        .limit(1)
    )
    found: dict[str, Any] = ((stored.data if stored is not None else None) or {}).get("dag", {})
    return found


def limits(text: str | None) -> dict[str, Any]:
    """The `freshness` thresholds (ms) of the definition that a DAG's document has; empty without them.

    A user's own document may have a block with other meanings of the word.
    """
    block = _YAML.search(text or "")
    try:
        fields = parse_yaml(block[1].encode()) if block else None
    except YamlError:  # cut at MAX_DOCUMENT_CHARS
        return {}
    freshness = fields.get("freshness") if isinstance(fields, dict) else None
    try:
        return {"freshness": asdict(DurationThreshold.model_validate(freshness).threshold)} if freshness else {}
    except ValidationError:
        return {}


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)
