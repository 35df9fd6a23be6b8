"""Operators for what users do to one shard: fsck, restore, recreate, reprocess, rebuild.

An operator does what the command of the same name does, logs the same words, and returns the same JSON, cut to be
small, with the user who triggered the dag run.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from persist_airflow.compat import (
    AirflowFailException,
    BaseOperator,
    Context,
    make_asset,
    set_event_extra,
    triggered_by,
)
from persist_airflow.hook import PersistHook, task_client
from persist_airflow.lineage import ReportsLineage, of_correction, of_restore
from persist_airflow.links import ShardLink, shard_uri
from persist_airflow.operators import writer_of
from persist_core.config.collection import CollectionConfig
from persist_core.handles.client import PersistClient
from persist_core.maintenance import actions
from persist_core.maintenance.actions import Done
from persist_core.maintenance.differences import report_of
from persist_core.maintenance.erase_action import erase
from persist_core.maintenance.rebuild import Rebuilt, rebuild
from persist_core.maintenance.rebuild import Request as Rebuild
from persist_core.maintenance.reprocess import Reprocessed, Request, reprocess, request_of
from persist_core.protocol.delta import MAX_UPDATES
from persist_core.spark_job.launch import Start, write_batch

MAX_LISTED = 20  # of each list in a result: XComs stay small, the log has more
COMMITTED = ("restored", "corrected", "swapped", "resolved", "erased", "waiting")
EVENT_FACTS = ("by", "shard", "status", "upper", "checkpoint_id")

Json = dict[str, Any]


class _ShardOperator(BaseOperator):
    """The base of the operators of actions: the shard, the location, the link to the shard."""

    template_fields: Sequence[str] = ("shard", "persist_conn_id")
    operator_extra_links = (ShardLink(),)
    ui_color = "#f3e3d3"

    def __init__(self, *, shard: str, persist_conn_id: str = PersistHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shard = shard
        self.persist_conn_id = persist_conn_id


class FsckShardOperator(_ShardOperator):
    """Check every stored byte of a shard, and its invariants. Fails, without a retry, if it finds something.

    Returns `persist fsck --json`.

    :param shard: its name (templated)
    :param repair: first write again what commits determine: checkpoints, copies of operator state, `_latest`
    :param persist_conn_id: the location (templated)
    """

    def __init__(self, *, repair: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.repair = repair

    def execute(self, context: Context) -> Json:
        """Check. Raises `AirflowFailException` with the number of violations and the first of them."""
        with task_client(self.persist_conn_id) as client:
            return checked(self, context, actions.check(client, self.shard, with_repair=self.repair))


class RestoreShardOperator(ReportsLineage, _ShardOperator):
    """Restore a shard's contents, progress and stash from a checkpoint, or fork it, which changes nothing.

    Returns `persist restore --json`.

    :param shard: its name (templated)
    :param checkpoint_id: one of `persist checkpoints` (templated)
    :param new_shard: leave `shard` alone, and make this new one of the checkpoint (templated)
    :param dry_run: only say what would change
    :param max_updates: refuse to undo more updates than this in the task's process
    :param persist_conn_id: the location (templated)
    """

    template_fields: Sequence[str] = ("checkpoint_id", "new_shard", *_ShardOperator.template_fields)

    def __init__(
        self,
        *,
        checkpoint_id: str,
        new_shard: str | None = None,
        dry_run: bool = False,
        max_updates: int = MAX_UPDATES,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint_id = checkpoint_id
        self.new_shard = new_shard
        self.is_dry_run = dry_run  # an operator has a method `dry_run`
        self.max_updates = max_updates

    def execute(self, context: Context) -> Json:
        """Restore or fork. Raises `RunFailed` if another writer was faster: another try may succeed."""
        return restored(
            self, self.checkpoint_id, self.new_shard, context, is_dry_run=self.is_dry_run, max_updates=self.max_updates
        )


class RecreateShardOperator(_ShardOperator):
    """Drop a shard and begin it again, empty: its next run takes in all its input, so trigger its DAG after this task.

    What its source no longer has is lost, and so is its history. Returns `{"shard": ..., "status": "emptied"}`, or
    `"up_to_date"` if the shard was empty already.

    :param shard: its name (templated)
    :param force: also if views, readers or forks need it: views and readers then fail until they read it again
    :param persist_conn_id: the location (templated)
    """

    def __init__(self, *, force: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.force = force

    def execute(self, context: Context) -> Json:
        """Empty the shard. Raises `AirflowFailException` if others need it."""
        with task_client(self.persist_conn_id) as client:
            return reported(self, context, actions.recreate(client, self.shard, is_forced=self.force))


def by(context: Context) -> str:
    """Who asked for this dag run: the user, as far as Airflow knows, and the dag run."""
    user, run = triggered_by(context), writer_of(context)
    return f"{user} ({run})" if user else run


def reported(operator: Any, context: Context, done: Done) -> Json:
    """Log what was done; what the task returns: the facts, with lists of at most `MAX_LISTED`. A commit updates the
    shard's asset, as a run's does, so that views follow."""
    for line in done.lines:
        operator.log.info("%s", line)
    small: Json = {"by": by(context)}
    for name, value in done.facts.items():
        is_long = isinstance(value, list | tuple) and len(value) > MAX_LISTED
        small[name] = value[:MAX_LISTED] if is_long else value
        if is_long:
            small[f"{name}_count"] = len(value)
    if small.get("status") in COMMITTED:
        asset = make_asset(shard_uri(operator.persist_conn_id, operator.shard))
        operator.outlets = [asset]
        set_event_extra(context, asset, {name: small[name] for name in EVENT_FACTS if name in small})
    return small


def checked(operator: BaseOperator, context: Context, done: Done) -> Json:
    report = reported(operator, context, done)
    if not done.facts["is_clean"]:
        found = "; ".join(f"{each['check']}: {each['message']}" for each in done.facts["violations"][:3])
        raise AirflowFailException(f"corruption: {done.lines[0]}: {found}. See docs/operations.md, Damage")
    return report


def erased(operator: Any, context: Context, params: Mapping[str, Any]) -> Json:
    """Erase the keys in the field `key`, a JSON array of texts or one text."""
    key = params["key"]
    try:
        texts = json.loads(key) if key.startswith("[") else [key]
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise AirflowFailException("key begins with [; expected a JSON array of texts")
    with task_client(operator.persist_conn_id) as client:
        done = erase(
            client,
            operator.shard,
            texts,
            by=by(context),
            reason=params["reason"],
            is_dry_run=params["dry_run"],
            with_verify=params["verify"],
        )
    report = reported(operator, context, done)
    if not done.facts["is_clean"]:
        raise AirflowFailException(f"{len(report['holding'])} objects still hold a key; the log names them")
    return report


def restored(
    operator: Any,
    checkpoint_id: str,
    new_shard: str | None,
    context: Context,
    *,
    is_dry_run: bool,
    max_updates: int = MAX_UPDATES,
) -> Json:
    if new_shard and is_dry_run:
        raise AirflowFailException("dry_run says what a restore would change; a fork (new_shard) changes nothing")
    shard, writer = operator.shard, writer_of(context)
    with task_client(operator.persist_conn_id) as client:
        if new_shard:
            done = actions.fork(client, shard, checkpoint_id, new_shard, writer=writer)
        else:
            done = actions.restore(
                client, shard, checkpoint_id, writer=writer, is_dry_run=is_dry_run, max_updates=max_updates
            )
        if done.facts["status"] in ("restored", "forked"):
            operator.lineage = of_restore(client, shard, new_shard, operator.persist_conn_id)
    return reported(operator, context, done)


def rebuilt(operator: Any, config: CollectionConfig, context: Context, params: Mapping[str, Any]) -> Json:
    """Build another generation, or swap one back, by an operator that can start Spark; what the task returns."""
    request = Rebuild(
        back_to=-1 if params["swap_back"] else None, max_changed=config.limits.max_changed, **_wishes(params)
    )
    with task_client(operator.persist_conn_id, config) as client:
        return _carried_out(operator, client, rebuild, config, request, context)


def reprocessed(operator: Any, config: CollectionConfig, context: Context, params: Mapping[str, Any]) -> Json:
    """Correct the collection by an operator that can start Spark; what the task returns."""
    with task_client(operator.persist_conn_id, config) as client:
        days = {"begin": params["from"], "through": params["through"], "now_ms": client.clock.now_ms()}
        request = request_of(config, **days, reason=params["reason"] or "", **_wishes(params))
        return _carried_out(operator, client, reprocess, config, request, context)


def _wishes(params: Mapping[str, Any]) -> Json:
    return {
        "takes_back_gone": params["take_back_gone"],
        "is_dry_run": params["dry_run"],
        "is_confirmed": bool(params["confirm"]),
        "max_updates": params["max_updates"] or MAX_UPDATES,
    }


def _carried_out(
    operator: Any,
    client: PersistClient,
    do: Callable[..., Reprocessed | Rebuilt],
    config: CollectionConfig,
    request: Request | Rebuild,
    context: Context,
) -> Json:
    shown: list[str] = []

    def show(found: Reprocessed | Rebuilt) -> None:
        shown[:] = report_of(found).lines
        operator.log.info("%s", "; ".join(shown))

    def run(start: Start) -> Reprocessed | Rebuilt:
        write, writer = functools.partial(write_batch, client, start), writer_of(context)
        return do(client, config, request, write=write, writer=writer, say=operator.log.info, report=show)

    found = operator.run_jobs(context, run)
    if found.commit is not None:
        operator.lineage = of_correction(client, config, found.commit, operator.persist_conn_id)
    report = report_of(found)
    for facts in (report.facts, report.facts.get("differences") or {}):
        facts.pop("samples", None)  # whole rows: the right to see this DAG's results is not the right to see them
    lines = [line for line in (*report.lines, report.done) if line not in shown]
    return reported(operator, context, Done(report.facts, tuple(lines)))
