"""The write protocol's stages as tasks: mint, write, append, checkpoint.

    mint --description (XCom)--> write --description, manifest key (XCom)--> append --> checkpoint

1. Each task may be killed at any point and tried again: the contents come out the same.
2. Mint skips a dag run that has nothing to do, with the reason.
3. A conflict fails the append's try with `PersistCasConflict` and alerts once. The next try heals: it mints what is
   still missing of the interval from the new upper, writes and appends it.
4. Only the write task imports Spark; nothing here touches a store before `execute`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from persist_airflow import lineage
from persist_airflow.announce import announce_conflict
from persist_airflow.compat import (
    AirflowFailException,
    AirflowSkipException,
    Asset,
    BaseOperator,
    Context,
    defers_by_default,
    interval_end_ms,
)
from persist_airflow.failures import PersistCasConflict, result_before
from persist_airflow.hook import PersistHook, task_client
from persist_airflow.links import ShardLink, outlet_uri, shard_page
from persist_airflow.metrics import Counted, count, measured, report_commit, report_shards
from persist_airflow.notifications import NotifyBy, chosen
from persist_airflow.spark import BEGUN_FIRST, RETRIES, RETRY_DELAY
from persist_airflow.turns import wait_for_turn
from persist_core.config.project import MaintenanceConfig
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.err_groups import lines_of
from persist_core.contents.stats import correction_notice, in_words
from persist_core.errors import NotReadable
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.inspection.metrics import CONFLICTS, HEALS
from persist_core.maintenance.maintain import maintain_inline
from persist_core.protocol import run, stages
from persist_core.protocol.stages import Conflict, Minted, NothingToDo
from persist_core.shard.state import Commit, Committed
from persist_core.time_text import show_interval

MAX_HEALS = 5  # per try: each costs a Spark job; Airflow tries a run again, later, that loses more often
APPEND_RETRIES = 6  # a conflict costs a try, and so does a worker that dies


class StageOperator(BaseOperator):
    """A stage that starts no Spark. `retries` are enough for workers that die; `default_args` go over them.

    `shard`: by it the tasks of a shard or a batch find each other (`persist_airflow.turns`).
    """

    template_fields: Sequence[str] = ("persist_conn_id",)

    def __init__(
        self,
        *,
        shard: str,
        persist_conn_id: str = PersistHook.default_conn_name,
        retries: int = RETRIES,
        retry_delay: timedelta = RETRY_DELAY,
        weight_rule: str = BEGUN_FIRST,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, weight_rule=weight_rule, **kwargs)
        self.persist_conn_id = persist_conn_id
        self.shard = shard


class _ShardOperator(StageOperator):
    template_fields: Sequence[str] = (*StageOperator.template_fields, "shard")
    operator_extra_links = (ShardLink(),)

    def __init__(self, *, config: ShardConfig, **kwargs: Any) -> None:
        super().__init__(shard=config.name, **kwargs)
        self.config = config


class TakesTurns(StageOperator):
    """The base of mint: dag runs of one DAG take turns, the earliest first (`persist_airflow.turns`).

    `_mint` is not `execute`, which Airflow lets only its task runner call.

    :param deferrable: wait for the turn in the triggerer; default: Airflow's `[operators] default_deferrable`
    """

    ui_color = "#cfe3f5"

    def __init__(self, *, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = defers_by_default() if deferrable is None else deferrable

    def execute(self, context: Context) -> dict[str, Any]:
        """Mint. Raises `AirflowSkipException` if there is nothing to do."""
        return self._mint(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - its name and signature are Airflow's
        """Called when the triggerer has found that the shard moved on, or after a while: look again."""
        return self._mint(context)

    @abstractmethod
    def _mint(self, context: Context) -> dict[str, Any]:
        """Mint when it is the dag run's turn."""


class MintBatchDescriptionsOperator(TakesTurns, _ShardOperator):
    """Describe the batch of this dag run: `[shard's upper, end of the data interval)` and all unread input that is due.

    A view that refreshes on input goes as far as its inputs, whatever the interval. `{"force": true}` in the dag run's
    conf accepts an end more than an hour from now. Returns `BatchDescription.to_json()`; of a read-only view
    (`read_only` in its file, or in the dag run's conf) `{"dry_run_as_of": ..., "description": ...}`, minting nothing.
    Skips if the interval is already in the shard, or the inputs have not advanced.

    :param config: the collection or view
    :param persist_conn_id: the location (templated)
    """

    @measured("mint")
    def _mint(self, context: Context) -> dict[str, Any]:
        with task_client(self.persist_conn_id, self.config) as client:
            until = None if self.config.follows_inputs else interval_end_ms(context, client.clock)
            if not isinstance(self.config, ViewConfig):
                refuse_read_only(context)
            elif self.config.read_only or asks_for(context, "read_only"):
                return _dry_run(client, self.config, until)
            wait_for_turn(self, context, client, [self.shard], deferrable=self.deferrable)
            is_forced = asks_for(context, "force")
            minted = stages.mint(client, self.config, until=until, writer=writer_of(context), is_forced=is_forced)
        if isinstance(minted, NothingToDo):
            if minted.pending != 0:
                self.log.warning("%s", minted.reason)
            raise AirflowSkipException(minted.reason)
        for notice in minted.notices:
            self.log.warning("%s", notice)
        description = minted.description
        self.log.info(
            "minted %s of shard %s: %d %s, %d bytes",
            show_interval(description.lower, description.upper),
            description.shard,
            description.input_files,
            self.config.input_noun,
            description.input_bytes,
        )
        return description.to_json()


class AppendBatchesOperator(lineage.ReportsLineage, _ShardOperator):
    """Append the staged batch by compare-and-set, and heal if another writer was faster.

    Returns `{"result": ..., "lower": ..., "upper": ..., "since": ..., "stats": {...}, ...}`; the shard's asset event
    carries the same. `result` is `committed`, `already committed` (an earlier try had done it), `healed` (minted and
    written again after a conflict) or `covered` (others have committed this interval).

    :param config: the collection or view
    :param staged: what write returns: the description and the manifest's key (templated)
    :param write_task_id: the write task of the same DAG, whose Spark settings a healing try uses
    :param notify: notifiers; one that takes conflicts gets one notice of each (docs/alerts.md)
    :param guide: where notices find the operations guide; default: `docs/operations.md`
    :param persist_conn_id: the location (no template: the asset's name has it)
    """

    template_fields: Sequence[str] = ("staged", *_ShardOperator.template_fields)
    template_fields_renderers = {"staged": "json"}  # noqa: RUF012 - Airflow's way to say it
    ui_color = "#cdeccd"

    def __init__(
        self,
        *,
        staged: Any,
        write_task_id: str,
        notify: Sequence[NotifyBy] | NotifyBy = (),
        guide: str = "",
        retries: int = APPEND_RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, **kwargs)
        self.staged = staged
        self.write_task_id = write_task_id
        self.notify = chosen(None, notify)
        self.guide = guide
        self.asset = Asset(uri=outlet_uri(self.persist_conn_id, self.config.name))
        self.outlets = [*self.outlets, self.asset]
        self._write: Any = None  # while it heals: the write task's operator

    def on_kill(self) -> None:
        """End the Spark job of a healing try."""
        if self._write is not None:
            self._write.on_kill()

    @measured("append")
    def execute(self, context: Context) -> dict[str, Any]:
        """Append, or heal. Raises `PersistCasConflict` if the append was lost for the first time."""
        if result_before(self, self.staged).get("dry_run") is not None:
            raise AirflowSkipException(
                f"read-only: nothing was written to {self.config.name}; the write task's log has what it would write"
            )
        description = BatchDescription.from_json(self.staged["description"])
        with task_client(self.persist_conn_id, self.config) as client:
            self.lineage = lineage.of_inputs(client, self.config, description, self.persist_conn_id)
            result = run.append_staged(client, self.config, description, self.staged["manifest_key"])
            if isinstance(result, Committed):
                commit = result.commit
                if result.is_new:
                    report_commit(self, context, client, commit)
                report = report_of(client, "committed" if result.is_new else "already committed", commit)
                self.lineage = lineage.of_commit(client, self.config, commit, self.persist_conn_id, self.lineage.inputs)
            else:
                told(self, client, result, self.notify, context, self.guide)
                if result.is_new:
                    raise PersistCasConflict(result.record)
                report = self._heal(client, description, context)
        if "lower" in report:
            interval = show_interval(report["lower"], report["upper"])
            self.log.info("%s %s: %s", report["result"], interval, in_words(self.config.name, report["stats"]))
        warn(self.log, report)
        context["outlet_events"][self.asset].extra = with_page(report, self.persist_conn_id, self.config.name)
        return report

    def _heal(self, client: PersistClient, description: BatchDescription, context: Context) -> dict[str, Any]:
        """Mint, write and append what the conflict left open of the interval, with the Spark settings of write.

        Raises `PersistCasConflict` after `MAX_HEALS` lost appends.
        """
        write: Any = context["dag"].get_task(self.write_task_id).prepare_for_execution()
        self._write = write
        write.render_template_fields(context)

        def on_step(step: run.Step) -> None:
            if isinstance(step, Conflict):
                told(self, client, step, self.notify, context, self.guide)
            elif isinstance(step, Minted):
                self.lineage = lineage.of_inputs(client, self.config, step.description, self.persist_conn_id)
                interval = show_interval(step.description.lower, step.description.upper)
                self.log.info("after the conflict: minted %s from the new upper", interval)

        healing = run.rounds(
            client,
            self.config,
            until=description.upper,
            writer=description.writer,
            on_step=on_step,
            max_conflicts=MAX_HEALS,
            max_rounds=1,
            is_forced=True,  # the mint before the conflict has checked its end
        )
        healed = run.written(healing, write.writer(client, context))
        if isinstance(healed, Conflict):
            raise PersistCasConflict(healed.record)
        if isinstance(healed, NothingToDo):
            self.log.info("nothing left to append: %s", healed.reason)
            return report_of(client, "covered", client.state(self.config.name).newest_commit)
        assert isinstance(healed, run.Round)
        self.lineage = lineage.of_commit(client, self.config, healed.commit, self.persist_conn_id, self.lineage.inputs)
        count(self, context, HEALS)
        report_commit(self, context, client, healed.commit)
        return report_of(client, "healed", healed.commit)


class CheckpointManifestOperator(_ShardOperator):
    """Publish the checkpoint of the newest commit, move `_latest`, apply retention. Safe to do again at any time.

    Then do a small part of the shard's maintenance if much of it is due, so that a shard stays fast without
    `persist_maintenance`.

    :param config: the collection or view
    :param appended: what append returns (templated): without it nothing says that this dag run has committed
    :param maintenance: what `persist.yaml` says of it; default: its defaults
    :param persist_conn_id: the location (no template: the asset's name has it)
    """

    template_fields: Sequence[str] = ("appended", *_ShardOperator.template_fields)
    template_fields_renderers = {"appended": "json"}  # noqa: RUF012 - Airflow's way to say it
    ui_color = "#e5d8f3"

    def __init__(self, *, appended: Any, maintenance: MaintenanceConfig | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.appended = appended
        self.maintenance = maintenance
        self.asset = Asset(uri=f"{outlet_uri(self.persist_conn_id, self.config.name)}/checkpoints")
        self.outlets = [*self.outlets, self.asset]

    @measured("checkpoint")
    def execute(self, context: Context) -> dict[str, Any] | None:
        """Publish. Returns what was published, `None` before the first commit."""
        result_before(self, self.appended)
        with task_client(self.persist_conn_id, self.config) as client:
            published = stages.checkpoint(client, self.config)
            if published is None:
                self.log.info("shard %s has no commit yet: no checkpoint", self.config.name)
                return None
            report = report_of(client, "published", client.state(self.config.name).newest_commit)
            maintained = maintain_inline(client, self.config.name, self.maintenance)
            report_shards(self.persist_conn_id, client, [self.config.name])
        self.log.info("%s", published)
        if maintained is not None:
            self.log.info("%s", maintained)
        for warning in published.warnings:
            self.log.warning("%s", warning)
        context["outlet_events"][self.asset].extra = report
        return report


def asks_for(context: Context, name: str) -> bool:
    """True if the dag run's conf has `name`: true. Raises `AirflowFailException` unless it is true, false or null."""
    asked: Any = context["dag_run"].conf or {}
    found = asked.get(name)
    if not isinstance(found, bool | None):
        raise AirflowFailException(f"conf: {name} is {found!r}; expected true or false, without quotes")
    return bool(found)


def refuse_read_only(context: Context) -> None:
    """Raise `AirflowFailException` if the dag run of collections is asked to write nothing: it would write."""
    if asks_for(context, "read_only"):
        raise AirflowFailException(
            "conf: read_only is true, which only a view has; this dag run of a collection would write, so nothing was "
            "done. `persist preview NAME` shows what a run would make of its input"
        )


def _dry_run(client: PersistClient, config: ViewConfig, until: int | None) -> dict[str, Any]:
    """The write task's description of a view's dry run. Raises `AirflowSkipException` before there is any input."""
    try:
        as_of, description = run.describe_dry_run(client, config, until)
    except NotReadable as error:
        raise AirflowSkipException(str(error)) from error
    return {"dry_run_as_of": as_of, "description": description.to_json()}


def writer_of(context: Context) -> str:
    """The writer that mints: the dag run, never the try."""
    return f"{context['dag_run'].dag_id}/{context['run_id']}"


def report_of(client: PersistClient, result: str, commit: Commit | None) -> dict[str, Any]:
    """The result of tasks and the extra of asset events: plain JSON, times in ms, a closed frontier as `None`."""
    if commit is None:
        return {"result": result}
    manifest = client.manifest(commit)
    state = client.state(manifest.shard)
    return {
        "result": result,
        "shard": state.shard,
        "lower": commit.lower,
        "upper": commit.upper,
        "since": state.since.time,
        "shard_upper": state.upper.time,
        "is_newest": state.upper == Frontier(commit.upper),
        "checkpoint_id": commit.checkpoint_id,
        "epoch": commit.epoch,
        "writer": commit.writer,
        "stats": dict(manifest.stats),
        "warnings": [each.counted for each in manifest.warnings],
        "errors": lines_of(manifest.err_groups, has_payloads=False),
    }


def with_page(report: dict[str, Any], conn_id: str, shard: str) -> dict[str, Any]:
    page = shard_page(conn_id, shard)
    return report if page is None else {**report, "page": page}


def warn(log: Any, report: Mapping[str, Any]) -> None:
    shard = str(report.get("shard"))
    corrected = correction_notice(shard, report.get("stats", {}))
    for line in (*report.get("errors", ()), *filter(None, [corrected]), *report.get("warnings", ())):
        log.warning("%s: %s", shard, line)


def told(
    operator: Any,
    client: PersistClient,
    conflict: Conflict,
    notify: Sequence[NotifyBy],
    context: Context,
    guide: str,
) -> None:
    """Log both sides of a conflict, and alert once. It is an error only the first time."""
    operator.log.log(logging.ERROR if conflict.is_new else logging.INFO, "%s", conflict.record)
    if announce_conflict(client, conflict.record, notify, context, guide=guide):
        count(Counted(operator.persist_conn_id, conflict.record.shard), context, CONFLICTS)
