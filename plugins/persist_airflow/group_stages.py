"""The stages of a group that start no Spark: mint, append, checkpoint. See `persist_airflow.groups`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from persist_airflow import lineage
from persist_airflow.compat import AirflowSkipException, Context, defers_by_default, interval_end_ms
from persist_airflow.failures import failed_together
from persist_airflow.groups import GroupOperator, Json, assets_of, checkpointed, for_each, in_few_words
from persist_airflow.hook import task_client
from persist_airflow.metrics import Counted, report_commit, report_shards
from persist_airflow.operators import asks_for, report_of, told, warn, with_page, writer_of
from persist_airflow.turns import wait_for_turn
from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.protocol import run, stages
from persist_core.protocol.stages import Conflict, Minted
from persist_core.shard.state import Commit, Committed


class MintGroupOperator(GroupOperator):
    """Describe the batch of each collection, as `MintBatchDescriptionsOperator` does for one.

    Returns `{"descriptions": {NAME: ...}, "failed": {NAME: ...}}`. Skips if no collection has anything to do.

    :param deferrable: wait for the turn in the triggerer; default: Airflow's `[operators] default_deferrable`
    """

    ui_color = "#cfe3f5"

    def __init__(self, *, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = defers_by_default() if deferrable is None else deferrable

    def execute(self, context: Context) -> Json:
        """Mint all. Raises `AirflowSkipException` if there is nothing to do."""
        with task_client(self.persist_conn_id, *self.batch.configs(self.batch.names)) as client:
            until = interval_end_ms(context, client.clock)
            wait_for_turn(self, context, client, deferrable=self.deferrable)
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

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Json:  # noqa: ARG002 - its name and signature are Airflow's
        """Called when the triggerer has found that the shard moved on, or after a while: look again."""
        return self.execute(context)


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
        with task_client(self.persist_conn_id, *self.batch.configs(self.staged["staged"])) as client:
            found = for_each(
                self.batch,
                self.staged["staged"],
                lambda config, staged: appended(client, config, staged, self.persist_conn_id),
            )
            conflicts = {name: each.value for name, each in found.items() if isinstance(each.value, Conflict)}
            done = {name: each.value for name, each in found.items() if isinstance(each.value, Appended)}
            for conflict in conflicts.values():
                told(self, client, conflict, self.batch.notify.get(conflict.record.shard, ()), context)
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
        return {"results": reports, "failed": {**self.staged["failed"], **failed}}


@dataclass(frozen=True)
class Appended:
    """A commit of one collection."""

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
        with task_client(self.persist_conn_id, *self.batch.configs(self.appended["results"])) as client:
            found = for_each(self.batch, self.appended["results"], lambda config, _: checkpointed(client, config))
            report_shards(self.persist_conn_id, client, list(found))
        done = {name: each.value for name, each in found.items() if each.value is not None}
        failed = self.ended(context, "checkpoint", found, {name: "; ".join(one[1]) for name, one in done.items()})
        self.asset_events(context, {name: one[0] for name, one in done.items()}, "/checkpoints")
        if failed:
            raise failed_together(f"checkpoints of group {self.batch.group}", failed, len(found))
