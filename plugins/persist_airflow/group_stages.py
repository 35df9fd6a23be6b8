"""The stages of a group as tasks: mint, write, append, checkpoint, retry. See `persist_airflow.groups`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from persist_airflow import lineage
from persist_airflow.compat import AirflowSkipException, Context, interval_end_ms
from persist_airflow.failures import failed_together, result_before
from persist_airflow.groups import (
    Batch,
    GroupOperator,
    Json,
    OfBatch,
    Tried,
    assets_of,
    checkpointed,
    failure_of,
    for_each,
    in_few_words,
)
from persist_airflow.hook import task_client
from persist_airflow.metrics import Counted, count, report_commit, report_shards
from persist_airflow.operators import (
    MAX_HEALS,
    TakesTurns,
    asks_for,
    refuse_read_only,
    report_of,
    told,
    warn,
    with_page,
    writer_of,
)
from persist_airflow.spark import SparkJobOperator
from persist_airflow.turns import wait_for_turn
from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.errors import OutdatedDescription, PersistError
from persist_core.handles.client import PersistClient
from persist_core.inspection.metrics import HEALS
from persist_core.protocol import run, stages
from persist_core.protocol.run import Round, Step
from persist_core.protocol.stages import Conflict, Minted, NothingToDo
from persist_core.shard.state import Commit, Committed
from persist_core.spark_job.launch import staged_before, write_batches

NEEDS_SPARK = ""  # instead of a manifest's key
OUTDATED = "outdated or already committed: nothing was staged; append finds the commit, or says what prevents it"


class MintGroupOperator(TakesTurns, GroupOperator):
    """Describe the batch of each collection, as `MintBatchDescriptionsOperator` does for one.

    Returns `{"descriptions": {NAME: ...}, "failed": {NAME: ...}}`. Skips if no collection has anything to do.
    """

    def _mint(self, context: Context) -> Json:
        refuse_read_only(context)
        with task_client(self.persist_conn_id, *self.batch.configs(self.batch.names)) as client:
            until = interval_end_ms(context, client.clock)
            wait_for_turn(self, context, client, self.batch.names, deferrable=self.deferrable)
            writer, is_forced = writer_of(context), asks_for(context, "force")
            found = for_each(
                self.batch,
                dict.fromkeys(self.batch.names),
                lambda config, _: stages.mint(client, config, until=until, writer=writer, is_forced=is_forced),
            )
        minted = {name: each.value for name, each in found.items() if isinstance(each.value, Minted)}
        words = {}
        for name, each in found.items():
            if isinstance(each.value, Minted):
                described = each.value.description
                words[name] = f"{described.interval}: {described.input_files} files, {described.input_bytes} bytes"
            elif each.value is not None:
                words[name] = f"nothing to do: {each.value.reason}"
                if each.value.pending != 0:
                    self.log.warning("%s: %s", name, each.value.reason)
        skipped = dict.fromkeys(found.keys() - minted.keys(), "skipped")
        failed = self.ended(context, "mint", found, words, skipped)
        for name, one in minted.items():
            for notice in one.notices:
                self.log.warning("%s: %s", name, notice)
        if not minted and not failed:
            raise AirflowSkipException(f"none of {len(found)} collections has anything to do")
        return {"descriptions": {name: one.description.to_json() for name, one in minted.items()}, "failed": failed}


class AppendGroupOperator(lineage.ReportsLineage, GroupOperator):
    """Append each staged batch by compare-and-set.

    Returns `{"results": {NAME: ...}, "failed": {NAME: ...}}`: a result is as of `AppendBatchesOperator`. An append
    that lost to another writer is a failure, which `retry_failed` heals. Each commit updates its collection's asset.

    :param staged: what write returns (templated)
    :param write_task_id: the write task of the same batch
    :param retry_task_id: its last task that commits
    """

    template_fields: Sequence[str] = ("staged", *GroupOperator.template_fields)
    template_fields_renderers = {"staged": "json"}  # noqa: RUF012 - Airflow's way to say it
    ui_color = "#cdeccd"

    def __init__(self, *, staged: Any, write_task_id: str, retry_task_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.staged = staged
        self.write_task_id = write_task_id
        self.retry_task_id = retry_task_id
        self.outlets = [*self.outlets, *assets_of(self.persist_conn_id, self.batch)]

    def execute(self, context: Context) -> Json:
        given = result_before(self, self.staged)
        with task_client(self.persist_conn_id, *self.batch.configs(given["staged"])) as client:
            found = for_each(
                self.batch,
                given["staged"],
                lambda config, staged: appended(client, config, staged, self.persist_conn_id),
            )
            conflicts = {name: each.value for name, each in found.items() if isinstance(each.value, Conflict)}
            done = {name: each.value for name, each in found.items() if isinstance(each.value, Appended)}
            for conflict in conflicts.values():
                told(
                    self, client, conflict, self.batch.notify.get(conflict.record.shard, ()), context, self.batch.guide
                )
            for name, one in done.items():
                if one.is_new:
                    report_commit(Counted(self.persist_conn_id, name), context, client, one.commit)
        words = {name: str(conflict.record) for name, conflict in conflicts.items()}
        words |= {name: in_few_words(one.report) for name, one in done.items()}
        failed = self.ended(context, "append", found, words, dict.fromkeys(conflicts, "conflict"))
        failed |= {name: {"error": f"conflict: {words[name]}", "may_retry": True} for name in conflicts}
        self.lineage = lineage.joined(one.lineage for one in done.values())
        reports = {name: one.report for name, one in done.items()}
        for report in reports.values():
            warn(self.log, report)
        self.asset_events(context, reports)
        return {"results": reports, "failed": {**given["failed"], **failed}}


@dataclass(frozen=True)
class Appended:
    commit: Commit
    is_new: bool
    report: Json
    lineage: lineage.Lineage


def appended(client: PersistClient, config: CollectionConfig, staged: Json, conn_id: str) -> Appended | Conflict:
    description = BatchDescription.from_json(staged["description"])
    inputs = lineage.of_inputs(client, config, description, conn_id).inputs
    result = run.append_staged(client, config, description, staged["manifest_key"])
    if not isinstance(result, Committed):
        return result
    report = report_of(client, "committed" if result.is_new else "already committed", result.commit)
    found = lineage.of_commit(client, config, result.commit, conn_id, inputs)
    return Appended(result.commit, result.is_new, with_page(report, conn_id, config.name), found)


class CheckpointGroupOperator(GroupOperator):
    """Publish the checkpoint of each collection that was appended, as `CheckpointManifestOperator` does for one.

    :param appended: what append returns (templated)
    """

    template_fields: Sequence[str] = ("appended", *GroupOperator.template_fields)
    template_fields_renderers = {"appended": "json"}  # noqa: RUF012 - Airflow's way to say it
    ui_color = "#e5d8f3"

    def __init__(self, *, appended: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.appended = appended
        self.outlets = [*self.outlets, *assets_of(self.persist_conn_id, self.batch, "/checkpoints")]

    def execute(self, context: Context) -> None:
        results = result_before(self, self.appended)["results"]
        with task_client(self.persist_conn_id, *self.batch.configs(results)) as client:
            found = for_each(self.batch, results, lambda config, _: checkpointed(client, config, self.batch))
            report_shards(self.persist_conn_id, client, list(found))
        done = {name: each.value for name, each in found.items() if each.value is not None}
        failed = self.ended(context, "checkpoint", found, {name: "; ".join(one[1]) for name, one in done.items()})
        self.asset_events(context, {name: one[0] for name, one in done.items()}, "/checkpoints")
        if failed:
            raise failed_together(f"checkpoints of group {self.batch.group}", failed, len(found))


class _GroupSparkOperator(lineage.ReportsLineage, OfBatch, SparkJobOperator):
    ui_color = "#f7d7a8"

    def __init__(self, *, batch: Batch, **kwargs: Any) -> None:
        super().__init__(shard=batch.group, **kwargs)
        self.batch = batch

    def write_all(
        self, client: PersistClient, context: Context, asked: Mapping[str, BatchDescription]
    ) -> list[str | PersistError]:
        """Stage these with one job: the key of each manifest, or its error."""
        pairs = [(self.batch.members[name], description) for name, description in asked.items()]
        return self.run_jobs(context, lambda start: write_batches(client, start, pairs)) if pairs else []


class WriteGroupOperator(_GroupSparkOperator):
    """Stage the batch of each description, with one Spark for all that have input.

    Returns `{"staged": {NAME: {"description": ..., "manifest_key": ...}}, "failed": {NAME: ...}}`.

    :param described: what mint returns (templated)
    """

    template_fields: Sequence[str] = (*SparkJobOperator.template_fields, "described")
    template_fields_renderers = {"described": "json"}  # noqa: RUF012 - Airflow's way to say it

    def __init__(self, *, described: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.described = described

    def execute(self, context: Context) -> Any:
        """Stage all. Raises only if no job could be started."""
        given = result_before(self, self.described)
        described = {name: BatchDescription.from_json(each) for name, each in given["descriptions"].items()}
        with task_client(self.persist_conn_id, *self.batch.configs(described)) as client:
            is_again = context["ti"].try_number > 1
            found = for_each(
                self.batch,
                described,
                lambda config, description: _without_spark(client, config, description, is_again=is_again),
            )
            asked = {name: described[name] for name, each in found.items() if each.value == NEEDS_SPARK}
            self.lineage = lineage.joined(
                lineage.of_inputs(client, self.batch.members[name], each, self.persist_conn_id)
                for name, each in asked.items()
            )
            started_ms = client.clock.now_ms()
            answers = self.write_all(client, context, asked)
            took_ms = client.clock.now_ms() - started_ms
        for name, answer in zip(asked, answers, strict=True):
            is_outdated = isinstance(answer, OutdatedDescription)
            failed = answer if isinstance(answer, PersistError) and not is_outdated else None
            found[name] = Tried(answer if isinstance(answer, str) else None, failed, took_ms)
        words = {name: f"staged {described[name].interval}" if each.value else OUTDATED for name, each in found.items()}
        failures = self.ended(context, "write", found, words)
        staged = {
            name: {"description": given["descriptions"][name], "manifest_key": each.value}
            for name, each in found.items()
            if each.error is None
        }
        return {"staged": staged, "failed": {**given["failed"], **failures}}


def _without_spark(
    client: PersistClient, config: CollectionConfig, description: BatchDescription, *, is_again: bool
) -> str | None:
    """The key of a manifest that needs no Spark; `NEEDS_SPARK`; `None` for an outdated description."""
    try:
        key = stages.write_without_input(client, config, description)
        if key is None and is_again:
            key = staged_before(client, config, description)
        return key or NEEDS_SPARK
    except OutdatedDescription:
        return None


class RetryFailedOperator(_GroupSparkOperator):
    """Mint, write, append and checkpoint what failed for single collections. Skips if nothing did.

    Errors that no retry can correct are tried again only when someone has cleared the task, in its first try then.
    Returns `{"results": {NAME: ...}}`.

    :param appended: what append returns (templated)
    """

    template_fields: Sequence[str] = (*SparkJobOperator.template_fields, "appended")
    template_fields_renderers = {"appended": "json"}  # noqa: RUF012 - Airflow's way to say it

    def __init__(self, *, appended: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.appended = appended
        self.outlets = [*self.outlets, *assets_of(self.persist_conn_id, self.batch)]

    def execute(self, context: Context) -> Any:
        """Do them again. Raises the list of what fails."""
        failed: Json = dict(result_before(self, self.appended)["failed"])
        if not failed:
            raise AirflowSkipException("no collection failed")
        ti: Any = context["ti"]
        # Airflow sets `max_tries` to the tries so far and the retries when it clears a task.
        is_cleared = ti.try_number > 1 and ti.try_number == ti.max_tries - self.retries + 1
        again = [name for name, each in failed.items() if each["may_retry"] or is_cleared]
        with task_client(self.persist_conn_id, *self.batch.configs(again)) as client:
            done = self._heal(client, context, [name for name in again if name in self.batch.members])
            reports = {name: each.value for name, each in done.items() if each.value is not None}
            commits = for_each(self.batch, reports, lambda config, _: checkpointed(client, config, self.batch))
        reports = {name: with_page(report, self.persist_conn_id, name) for name, report in reports.items()}
        found = self.ended(context, "retry", done, {name: in_few_words(report) for name, report in reports.items()})
        unpublished = {name: failure_of(each.error) for name, each in commits.items() if each.error is not None}
        still = {name: each for name, each in failed.items() if name not in reports} | found | unpublished
        for report in reports.values():
            warn(self.log, report)
        self.asset_events(context, reports)
        if still:
            raise failed_together(f"collections of group {self.batch.group}", still, len(self.batch.names))
        return {"results": reports}

    def _heal(self, client: PersistClient, context: Context, names: Sequence[str]) -> dict[str, Tried[Json]]:
        """Bring each to the end of the interval, with one job for all that need Spark at a time."""
        until, writer = interval_end_ms(context, client.clock), writer_of(context)

        def on_step(step: Step) -> None:
            if isinstance(step, Conflict):
                told(self, client, step, self.batch.notify.get(step.record.shard, ()), context, self.batch.guide)

        started_ms = client.clock.now_ms()
        ended = run.all_written(
            [
                _or_error(
                    run.rounds(
                        client,
                        self.batch.members[name],
                        until=until,
                        writer=writer,
                        on_step=on_step,
                        max_conflicts=MAX_HEALS,
                        max_rounds=1,
                        is_forced=asks_for(context, "force"),
                    )
                )
                for name in names
            ],
            lambda asked: self.write_all(client, context, {names[number]: each for number, each in asked}),
        )
        took_ms = client.clock.now_ms() - started_ms
        steps = dict(zip(names, ended, strict=True))
        done = for_each(self.batch, steps, lambda config, step: self._healed(client, context, config.name, step))
        return {name: replace(each, took_ms=took_ms + each.took_ms) for name, each in done.items()}

    def _healed(self, client: PersistClient, context: Context, name: str, step: Step | Exception) -> Json:
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Round):
            counted = Counted(self.persist_conn_id, name)
            count(counted, context, HEALS)
            report_commit(counted, context, client, step.commit)
            return report_of(client, "healed", step.commit)
        if isinstance(step, NothingToDo):
            return report_of(client, "covered", client.state(name).newest_commit)
        raise RuntimeError(f"lost {MAX_HEALS} appends to other writers")


def _or_error(one: run.Run[Step]) -> run.Run[Step | Exception]:
    """A run whose result is the error that it raised, so that a bug in one collection leaves the others alone."""
    try:
        return (yield from one)
    except Exception as error:  # noqa: BLE001 - it is raised when the others have ended
        return error
