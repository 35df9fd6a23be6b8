"""`Site`: the locations that the page shows, what each user may see of them, and what Airflow knows of their shards.

Which locations: of the connections that assets of shards name, and of the connections of type `persist` in the
database; without either the default connection.

Who sees a shard: a user who may read a DAG that writes it. If no DAG writes it (a fork, a shard of `persist run`), a
user who may read the connection. A hidden shard (`payroll~g3`) is seen with the one that it works for. Rows, changes
and payloads of errors need the right to read the DAG's XComs too. If `[persist] page_rows` is false, the page shows
them to no user. An open alert is seen with its shard.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from threading import Lock
from typing import Any, TypeVar

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.utils.session import create_session

from persist_airflow.compat import conf
from persist_airflow.hook import PersistHook
from persist_airflow.page import metadata
from persist_airflow.page.metadata import DagFacts, Writers
from persist_core.alerts.facts import AlertFacts, problems_of
from persist_core.alerts.health import open_alerts
from persist_core.clock import SystemClock
from persist_core.errors import Corruption, PersistError
from persist_core.handles.client import PersistClient
from persist_core.handles.side_by_side import side_by_side
from persist_core.inspection.days import days_of
from persist_core.inspection.facts import ShardSummary
from persist_core.inspection.inspector import Inspector
from persist_core.keys import listed_shard
from persist_core.time_text import DAY_MS

FRESH_MS = 2_000  # a list of summaries is this old at most
REOPEN_MS = 600_000  # a location is opened again: a changed connection, or credentials that expire
THREADS = 8  # of one list, each for a location
LOCATION_DAGS = ("persist_maintenance", "persist_watch")  # shown where they exist

Summary = TypeVar("Summary", bound=ShardSummary)
log = logging.getLogger(__name__)
Json = dict[str, Any]


class Forbidden(Exception):
    """The user may not see this."""


class Access:
    """The rights of one user, by Airflow's roles: its auth manager is asked."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._dags: frozenset[str] | None = None

    def readable_dags(self) -> frozenset[str]:
        if self._dags is None:
            self._dags = frozenset(get_auth_manager().get_authorized_dag_ids(user=self._user, method="GET"))
        return self._dags

    def reads_values(self, dag_id: str) -> bool:
        details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
        return get_auth_manager().is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.XCOM, details=details, user=self._user
        )

    def reads_connection(self, conn_id: str) -> bool:
        details = ConnectionDetails(conn_id=conn_id, team_name=Connection.get_team_name(conn_id))
        return get_auth_manager().is_authorized_connection(method="GET", details=details, user=self._user)


@dataclass
class _Place:
    inspector: Inspector
    addresses: tuple[str, ...]
    opened_ms: int
    listed_ms: int = -FRESH_MS
    summaries: tuple[ShardSummary, ...] = ()
    alerts: tuple[AlertFacts, ...] | None = ()


class Site:
    """Holds the open locations of one API server process. Thread-safe."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._lock = Lock()
        self._opening: defaultdict[str, Lock] = defaultdict(Lock)  # by connection: one that hangs holds up no other
        self._places: dict[str, _Place] = {}

    def shards(self, access: Access) -> Json:
        """The list: every location, with the summaries that the user may see."""
        with create_session() as session:
            writers = metadata.writers(session)
            conn_ids = _connections(session, writers)
            dags = metadata.dags(
                session, {dag for shards in writers.values() for ids in shards.values() for dag in ids}
            )
        readable = access.readable_dags()
        sees = {conn_id: access.reads_connection(conn_id) for conn_id in conn_ids}

        def listed(conn_id: str) -> Json | None:
            return self._listed(conn_id, sees[conn_id], writers.get(conn_id, {}), dags, readable)

        places = side_by_side(listed, conn_ids, threads=THREADS)  # several stores that do not answer take one's time
        return {"now_ms": self._clock.now_ms(), "locations": [place for place in places if place is not None]}

    def _listed(
        self,
        conn_id: str,
        sees_all: bool,
        writers: Mapping[str, tuple[str, ...]],
        dags: Mapping[str, DagFacts],
        readable: frozenset[str],
    ) -> Json | None:
        seen = {name for name, ids in writers.items() if readable.intersection(ids)}
        if not sees_all and not seen:
            return None
        body: Json = {"conn_id": conn_id, "location": None, "error": None, "shards": [], "alerts": []}

        def is_seen(shard: str) -> bool:
            owner = listed_shard(shard)
            return owner in seen or (sees_all and owner not in writers)

        try:
            place = self._place(conn_id)
            body["location"] = ", ".join(place.addresses) if sees_all else None
            self._refresh(place)
            body["alerts"] = _shown(place.alerts, is_seen)
            alerts = _by_shard(place.alerts)
            for summary in place.summaries:
                if is_seen(summary.shard):
                    known = _known(writers.get(summary.shard, ()), dags, readable)
                    shown = _without_address(summary, is_seen=sees_all)
                    body["shards"].append(asdict(shown) | _looked_at(summary, known, alerts[summary.shard]))
        except PersistError as error:
            log.warning("page for shards: %s: %s: %s", conn_id, error.kind, error)
            body["error"] = {"kind": error.kind, "message": str(error) if sees_all else "see the API server's log"}
        return body

    def shard(self, access: Access, conn_id: str, shard: str) -> Json:
        """One shard: `ShardDescription`, and what Airflow knows."""
        with create_session() as session:
            ids = self._allowed(session, access, conn_id, shard)
            readable = access.readable_dags()
            known = metadata.dags(session, ids)
            documents = (metadata.document(session, dag_id) for dag_id in ids if dag_id in readable)
            document = next(filter(None, documents), None)
            actions = metadata.action_dags(session, readable, conn_id, shard)
            others = readable.intersection(metadata.known_dags(session, [*ids, *LOCATION_DAGS]))
        inspector = self._place(conn_id).inspector
        description = _without_address(inspector.description(shard), is_seen=access.reads_connection(conn_id))
        alerts, shows_rows = _open_alerts(inspector, shard), self._shows_rows(access, conn_id, ids)
        if not shows_rows:
            warned = tuple(replace(each, samples=()) if each.count else each for each in description.warned)
            description = replace(description, warned=warned)
        facts = _looked_at(description, _known(ids, known, readable), alerts or ())
        return asdict(description) | {
            "conn_id": conn_id,
            "now_ms": self._clock.now_ms(),
            "shows_rows": shows_rows,
            "alerts": _shown(alerts, lambda _: True),
            "problems": facts["problems"],
            "airflow": facts["airflow"]
            | {
                "document": document,
                "limits": metadata.limits(document),
                "action_dags": [*actions, *({"dag_id": dag_id, "actions": []} for dag_id in sorted(others))],
            },
        }

    def commits(self, access: Access, conn_id: str, shard: str, *, before: int | None, limit: int) -> Json:
        """`CommitsPage`, with the seconds of each task of the dag runs that made them."""
        page = self.inspector(access, conn_id, shard).commits(shard, before=before, limit=limit)
        with create_session() as session:
            seconds = metadata.stage_seconds(session, shard, {commit.writer for commit in page.commits})
        readable = access.readable_dags()
        seen = {writer: stages for writer, stages in seconds.items() if writer.partition("/")[0] in readable}
        return asdict(page) | {"airflow": {"stage_seconds": seen}}

    def days(self, access: Access, conn_id: str, shard: str, *, limit: int, check: Callable[[], None]) -> Json:
        """The calendar: every `DayFacts` of the newest `limit` days, with the dag runs that failed.

        Names of files are values: they are shown to users who may see the shard's rows. Others see how many there are.
        """
        now_ms = self._clock.now_ms()
        with create_session() as session:
            ids = self._allowed(session, access, conn_id, shard)
            seen = access.readable_dags().intersection(ids)
            dags = metadata.dags(session, seen)
        inspector = self._place(conn_id).inspector
        state = inspector.state(shard)  # outside of a session: a slow store holds no connection of Airflow's database
        zone = state.schemas.zone
        with create_session() as session:
            failed = metadata.failed_days(session, shard, seen, after_ms=now_ms - limit * DAY_MS, zone=zone)
        expected = [dag.expected_upper for dag in dags.values() if dag.expected_upper is not None]
        due = min(expected, default=now_ms)
        loads = inspector.loads(state, check=check)
        found = days_of(loads, upper=state.upper.time, due=due, now_ms=now_ms, limit=limit, failed=failed, zone=zone)
        if not self._shows_rows(access, conn_id, ids):
            found = tuple(replace(day, files=()) for day in found)
        return {"timezone": zone, "days": [asdict(day) for day in found], "airflow": {"failed_runs": failed}}

    def inspector(self, access: Access, conn_id: str, shard: str) -> Inspector:
        """The inspector of the shard's location. Raises `Forbidden` if the user may not see the shard."""
        with create_session() as session:
            self._allowed(session, access, conn_id, shard)
        return self._place(conn_id).inspector

    def client(self, access: Access, conn_id: str, shard: str) -> PersistClient:
        """The client of the shard's location. Raises `Forbidden` if the user may not see the shard's rows."""
        with create_session() as session:
            ids = self._allowed(session, access, conn_id, shard)
        if not self._shows_rows(access, conn_id, ids):
            raise Forbidden(f"the rows of shard {shard}")
        return self._place(conn_id).inspector.client

    def without_addresses(self, access: Access, text: str) -> str:
        """A JSON text without the addresses of the stores whose connections the user may not read."""
        for conn_id, place in tuple(self._places.items()):
            if not access.reads_connection(conn_id):
                for address in place.addresses:
                    text = text.replace(json.dumps(address, ensure_ascii=False)[1:-1], f"(the store of {conn_id})")
        return text

    def _shows_rows(self, access: Access, conn_id: str, dag_ids: Iterable[str]) -> bool:
        ids = list(dag_ids)
        if not conf.getboolean("persist", "page_rows", fallback=True):
            return False
        return any(access.reads_values(dag_id) for dag_id in ids) if ids else access.reads_connection(conn_id)

    def _allowed(self, session: Any, access: Access, conn_id: str, shard: str) -> tuple[str, ...]:
        """The DAGs that write the shard, or the one it works for. Raises `Forbidden`, even if it does not exist."""
        writers = metadata.writers(session)
        ids = writers.get(conn_id, {}).get(listed_shard(shard), ())
        if ids:
            is_allowed = bool(access.readable_dags().intersection(ids))
        else:
            is_allowed = conn_id in _connections(session, writers) and access.reads_connection(conn_id)
        if not is_allowed:
            raise Forbidden(f"shard {shard!r} of connection {conn_id!r}")
        return ids

    def _place(self, conn_id: str) -> _Place:
        """The open location of a connection. One that is replaced stays open for reads that still run."""
        now_ms = self._clock.now_ms()
        with self._lock:
            opening = self._opening[conn_id]
        with opening:
            place = self._places.get(conn_id)
            if place is None or now_ms - place.opened_ms >= REOPEN_MS:
                client = PersistHook(conn_id).get_conn()
                addresses = (client.blob.uri, client.location.consensus.uri)
                place = self._places[conn_id] = _Place(Inspector(client), addresses, now_ms)
        return place

    def _refresh(self, place: _Place) -> None:
        if self._clock.now_ms() - place.listed_ms >= FRESH_MS:
            place.summaries = tuple(place.inspector.summaries())
            place.alerts = _open_alerts(place.inspector)
            place.listed_ms = self._clock.now_ms()


def _open_alerts(inspector: Inspector, shard: str | None = None) -> tuple[AlertFacts, ...] | None:
    """The open alerts of a shard or of all; `None` if their record is damaged: the next dag run of `persist_watch`
    replaces it."""
    try:
        return tuple(open_alerts(inspector, shard))
    except Corruption as error:
        log.warning("page for shards: %s: %s", error.kind, error)
        return None


def _shown(alerts: Iterable[AlertFacts] | None, is_seen: Callable[[str], bool]) -> list[Json] | None:
    return None if alerts is None else [asdict(alert) for alert in alerts if is_seen(alert.shard)]


def _by_shard(alerts: Iterable[AlertFacts] | None) -> defaultdict[str, list[AlertFacts]]:
    found: defaultdict[str, list[AlertFacts]] = defaultdict(list)
    for alert in alerts or ():
        found[alert.shard].append(alert)
    return found


def _without_address(summary: Summary, *, is_seen: bool) -> Summary:
    """The summary as it may be shown: the address that a shard was moved to is for users who may see this one."""
    return summary if is_seen or summary.moved_to is None else replace(summary, moved_to="another location")


def _looked_at(summary: ShardSummary, dags: Iterable[DagFacts], alerts: Iterable[AlertFacts]) -> Json:
    """Airflow's facts about the shard, and its problems."""
    facts = airflow_facts(summary, dags)
    found = problems_of([*summary.attention, *facts["attention"]], alerts)
    return {"airflow": facts, "problems": [asdict(each) for each in found]}


def airflow_facts(summary: ShardSummary, dags: Iterable[DagFacts]) -> Json:
    """Airflow's part of a summary: its DAGs, how far the upper is behind their schedules, and what went wrong."""
    found = list(dags)
    shown = [dag.of(summary.shard) for dag in found]
    upper = summary.upper if summary.lag_ms is not None else None  # a counter is behind no schedule
    behind = [d.expected_upper - upper for d in found if d.expected_upper is not None and upper is not None]
    words = {
        "behind": any(each > 0 for each in behind),
        "failed": any(dag["last_run_state"] == "failed" for dag in shown),
        "paused": any(dag.is_paused for dag in found),
    }
    return {
        "dags": shown,
        "behind_ms": max([0, *behind]) if behind else None,
        "attention": [word for word, holds in words.items() if holds],
    }


def _connections(session: Any, writers: Writers) -> list[str]:
    found = sorted({*writers, *metadata.connections(session)})
    return found or [PersistHook.default_conn_name]


def _known(ids: Iterable[str], dags: Mapping[str, DagFacts], readable: frozenset[str]) -> list[DagFacts]:
    return [dags[dag_id] for dag_id in ids if dag_id in dags and dag_id in readable]
