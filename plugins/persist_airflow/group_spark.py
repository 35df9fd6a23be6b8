"""The tasks of a group that start Spark: write, and the retry of what failed. See `persist_airflow.groups`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from persist_airflow import lineage
from persist_airflow.compat import AirflowSkipException, Context, interval_end_ms
from persist_airflow.failures import failed_together
from persist_airflow.groups import (
    Batch,
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
from persist_airflow.metrics import Counted, count, report_commit
from persist_airflow.operators import MAX_HEALS, asks_for, report_of, told, warn, with_page, writer_of
from persist_airflow.spark import SparkJobOperator
from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.errors import OutdatedDescription, PersistError
from persist_core.handles.client import PersistClient
from persist_core.inspection.metrics import HEALS
from persist_core.protocol import run, stages
from persist_core.protocol.run import Round, Step
from persist_core.protocol.stages import Conflict, NothingToDo
from persist_core.spark_job.launch import staged_before, write_batches

NEEDS_SPARK = ""  # instead of a manifest's key


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
        described = {name: BatchDescription.from_json(each) for name, each in self.described["descriptions"].items()}
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
            name: {"description": self.described["descriptions"][name], "manifest_key": each.value}
            for name, each in found.items()
            if each.error is None
        }
        return {"staged": staged, "failed": {**self.described["failed"], **failures}}


OUTDATED = "outdated or already committed: nothing was staged; append finds the commit, or mints again"


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
        failed: Json = dict(self.appended["failed"])
        if not failed:
            raise AirflowSkipException("no collection failed")
        ti: Any = context["ti"]
        # Airflow sets `max_tries` to the tries so far and the retries when it clears a task.
        is_cleared = ti.try_number > 1 and ti.try_number == ti.max_tries - self.retries + 1
        again = [name for name, each in failed.items() if each["may_retry"] or is_cleared]
        with task_client(self.persist_conn_id, *self.batch.configs(again)) as client:
            done = self._heal(client, context, [name for name in again if name in self.batch.members])
            reports = {name: each.value for name, each in done.items() if each.value is not None}
            commits = for_each(self.batch, reports, lambda config, _: checkpointed(client, config))
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
                told(self, client, step, self.batch.notify.get(step.record.shard, ()), context)

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
