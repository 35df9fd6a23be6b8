"""The write protocol's stages as tasks of a group: each does its stage for up to a batch of collections.

    mint --descriptions--> write --manifest keys--> append --results--> checkpoint
      '-----------failed-----'-----------------------'-----failed-----> retry_failed

1. A collection keeps its own description, token, attempt, commit, errors, alerts, metrics and asset. What fails for one
   is passed on under its name, and fails no task, so that the others commit and their assets start views.
2. `retry_failed` mints, writes and appends the failed ones again. It fails with the list of what still fails, so
   Airflow tries again, and alerts. The ones that it has committed cost no Spark then: mint finds their commits.
3. What needs Spark is written by one job, several at a time. A collection without input needs none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from persist_airflow.compat import Asset, Context
from persist_airflow.failures import HOPELESS
from persist_airflow.links import outlet_uri, shard_page, shard_uri
from persist_airflow.metrics import report_tries
from persist_airflow.notifications import NotifyBy
from persist_airflow.operators import StageOperator, report_of
from persist_core.clock import SystemClock
from persist_core.config.collection import CollectionConfig
from persist_core.config.project import MaintenanceConfig
from persist_core.errors import ConfigError, PersistError
from persist_core.handles.client import PersistClient
from persist_core.handles.side_by_side import side_by_side
from persist_core.maintenance.maintain import maintain_inline
from persist_core.protocol import stages

THREADS = 8  # of stages that wait for stores

_Given = TypeVar("_Given")
_Value = TypeVar("_Value")
Json = dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """Some collections of a group: their `names`. `members` are all of the group: a file that is new since the dag run
    began may have moved one into another batch. `notify`: the notifiers of each; `guide`: what their notices name.
    `maintenance`: as `CheckpointManifestOperator` takes it."""

    group: str
    names: tuple[str, ...]
    members: Mapping[str, CollectionConfig]
    notify: Mapping[str, Sequence[NotifyBy]]
    guide: str = ""
    maintenance: MaintenanceConfig | None = None

    def configs(self, names: Iterable[str]) -> list[CollectionConfig]:
        """These collections, for their sources' connections, without the ones whose files are gone."""
        return [self.members[name] for name in names if name in self.members]


@dataclass(frozen=True)
class Tried(Generic[_Value]):
    """A stage of one collection: its value, or its error; and how long it took."""

    value: _Value | None
    error: Exception | None
    took_ms: int


def for_each(
    batch: Batch, given: Mapping[str, _Given], do: Callable[[CollectionConfig, _Given], _Value]
) -> dict[str, Tried[_Value]]:
    """Do it for each collection, several at a time. Never raises what it raises."""
    clock = SystemClock()

    def tried(name: str) -> Tried[_Value]:
        started_ms = clock.now_ms()
        value: _Value | None = None
        error: Exception | None = None
        try:
            if name not in batch.members:
                raise ConfigError(
                    f"{name}: since this dag run began, its file is gone or wrong, or it has left the group. Put it"
                    " back, or leave its input to the DAG that it has now"
                )
            value = do(batch.members[name], given[name])
        except Exception as raised:  # noqa: BLE001 - the others are done
            error = raised
        return Tried(value, error, clock.now_ms() - started_ms)

    return dict(zip(given, side_by_side(tried, given, threads=THREADS), strict=True))


def failure_of(error: Exception) -> Json:
    """An error as it is passed on: its text, and whether another try may succeed."""
    kind = error.kind if isinstance(error, PersistError) else type(error).__name__
    return {"error": f"{kind}: {error}", "may_retry": not isinstance(error, HOPELESS)}


class OfBatch:
    """Base of the operators, of both kinds: logs, metrics and asset events for each collection."""

    batch: Batch
    persist_conn_id: str
    log: Any
    outlets: list[Any]

    def ended(
        self,
        context: Context,
        stage: str,
        rows: Mapping[str, Tried[Any]],
        words: Mapping[str, str],
        results: Mapping[str, str] = MappingProxyType({}),
    ) -> Json:
        """Log a line for each collection, and report its try; the failures among them, to be passed on.

        `results` of tries are `success` unless given here.
        """
        failed: Json = {}
        for name, each in rows.items():
            if each.error is not None:
                failed[name] = failure_of(each.error)
                if not isinstance(each.error, PersistError):
                    self.log.error("%s", name, exc_info=each.error)
        wide = max(map(len, rows), default=0)
        for name, each in rows.items():
            said = failed[name]["error"] if name in failed else words[name]
            level = logging.ERROR if name in failed else logging.INFO
            page = "" if name in failed else shard_page(self.persist_conn_id, name) or ""
            self.log.log(level, "%-*s  %7.1f s  %s  %s", wide, name, each.took_ms / 1000, said, page)
        results = dict.fromkeys(rows, "success") | {**results} | dict.fromkeys(failed, "failed")
        tries = {name: (results[name], each.took_ms) for name, each in rows.items()}
        report_tries(self.persist_conn_id, context, stage, tries)
        return failed

    def asset_events(self, context: Context, reports: Mapping[str, Json], suffix: str = "") -> None:
        """Let this try update the assets of these collections, and no others of its outlets."""
        self.outlets = []
        for name, report in reports.items():
            asset = Asset(uri=f"{shard_uri(self.persist_conn_id, name)}{suffix}")
            self.outlets.append(asset)
            context["outlet_events"][asset].extra = report


class GroupOperator(OfBatch, StageOperator):
    """The base of the operators that start no Spark.

    :param batch: the collections
    :param persist_conn_id: the location (no template: assets have it in their name)
    """

    def __init__(self, *, batch: Batch, **kwargs: Any) -> None:
        super().__init__(shard=batch.names[0], **kwargs)
        self.batch = batch


def in_few_words(report: Json) -> str:
    """A result in a few words, for the log."""
    stats = report.get("stats", {})
    return f"{report['result']}, {stats.get('records_read', 0)} records, {stats.get('errors', 0)} errors"


def assets_of(conn_id: str, batch: Batch, suffix: str = "") -> list[Any]:
    return [Asset(uri=f"{outlet_uri(conn_id, name)}{suffix}") for name in batch.names]


def checkpointed(client: PersistClient, config: CollectionConfig, batch: Batch) -> tuple[Json, list[str]]:
    """The checkpoint of one collection, and a part of its maintenance: the report, and what was done."""
    published = stages.checkpoint(client, config)
    maintained = maintain_inline(client, config.name, batch.maintenance)
    report = report_of(client, "published", client.state(config.name).newest_commit)
    lines = [] if published is None else [str(published), *published.warnings]
    return report, [*lines, *filter(None, [maintained])]
