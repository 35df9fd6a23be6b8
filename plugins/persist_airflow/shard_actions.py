"""Actions of users on one shard, by a task: fsck, restore, erase, reprocess, rebuild.

Each does what the command of the same name does, logs the same words, and returns the same JSON, cut to be small, with
the user who triggered the dag run.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from persist_airflow.compat import (
    AirflowFailException,
    Asset,
    Context,
    is_dag_paused,
    triggered_by,
)
from persist_airflow.factory import UPSERT_PREFIX, VIEW_PREFIX
from persist_airflow.lineage import of_correction, of_restore
from persist_airflow.links import shard_uri
from persist_airflow.operators import writer_of
from persist_airflow.options import GROUP_PREFIX
from persist_core.config.collection import CollectionConfig, load_collections
from persist_core.errors import InvalidInput, StorageError
from persist_core.handles.client import PersistClient
from persist_core.maintenance import actions
from persist_core.maintenance.actions import Done, erase
from persist_core.maintenance.differences import report_of
from persist_core.maintenance.fill import Filled, Wishes, fill
from persist_core.maintenance.rebuild import Rebuilt, rebuild
from persist_core.maintenance.rebuild import Request as Rebuild
from persist_core.maintenance.reprocess import Reprocessed, reprocess, request_of
from persist_core.protocol.delta import MAX_UPDATES
from persist_core.sources.registry import kind_of
from persist_core.spark_job.launch import Start, write_batch

MAX_LISTED = 20  # of each list in a result: XComs stay small, the log has more
COMMITTED = ("restored", "forked", "corrected", "filled", "swapped", "resolved", "erased", "waiting")
EVENT_FACTS = ("by", "shard", "status", "upper", "checkpoint_id")

Json = dict[str, Any]


def typed(params: Mapping[str, Any], *, switches: Iterable[str], numbers: Iterable[str]) -> Json:
    """The parameters in the types of their fields: a template makes texts of booleans, numbers and `None`.

    Raises `InvalidInput` that names the field.
    """
    found = {name: None if value in ("", "None") else value for name, value in params.items()}
    words = {"true": True, "false": False, "none": False}
    for name in switches:
        if (text := str(found.get(name)).lower()) not in words:
            raise InvalidInput(f"{name} is {found[name]!r}; expected true or false")
        found[name] = words[text]
    for name in numbers:
        if not re.fullmatch(r"none|\d{1,18}", text := str(found.get(name)).lower()):
            raise InvalidInput(f"{name} is {found[name]!r}; expected a whole number")
        found[name] = None if text == "none" else int(text)
    return found


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
        shard = small["shard"] if small["status"] == "forked" else operator.shard
        asset = Asset(uri=shard_uri(operator.persist_conn_id, shard))
        operator.outlets = [asset]
        context["outlet_events"][asset].extra = {name: small[name] for name in EVENT_FACTS if name in small}
    return small


def checked(operator: Any, client: PersistClient, context: Context, params: Mapping[str, Any]) -> Json:
    """Check every stored byte, and fail with the first violations. Raises `StorageError` if there is no damage, but not
    all could be read."""
    done = actions.check(client, operator.shard, with_repair=params["repair"])
    report = reported(operator, context, done)
    if not done.facts["is_clean"]:
        found = "; ".join(f"{each['check']}: {each['message']}" for each in done.facts["violations"][:3])
        if not done.facts["is_damaged"]:
            raise StorageError(f"{done.lines[0]}: {found}")
        raise AirflowFailException(f"corruption: {done.lines[0]}: {found}. See docs/operations.md, Damage")
    return report


def erased(operator: Any, client: PersistClient, context: Context, params: Mapping[str, Any]) -> Json:
    """Erase the keys in the field `key`, a JSON array of texts or one text."""
    key = params["key"]
    try:
        texts = json.loads(key) if key.startswith("[") else [key]
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise AirflowFailException("key begins with [; expected a JSON array of texts")
    done = erase(
        client,
        operator.shard,
        texts,
        by=by(context),
        reason=params["reason"],
        writer=writer_of(context),
        is_dry_run=params["dry_run"],
        with_verify=params["verify"],
    )
    report = reported(operator, context, done)
    if not done.facts["is_clean"]:
        raise AirflowFailException(f"{len(done.facts['holding'])} objects still hold a key; the log names them")
    return report


def dag_of(
    client: PersistClient, operator: Any, context: Context, params: Mapping[str, Any], *, needs_file: bool = False
) -> Json:
    """The DAG that a factory makes for a shard of this kind, or another that the conf names and `dags` allows.

    Returns `dag_id` and `dag_is_paused`. `needs_file`: a collection's DAG is guessed only if its file is in the folder.
    Raises `ConfigError` if that file is invalid, `InvalidInput` if the DAG is not known or not allowed.
    """
    shard, folder, given = operator.shard, operator.collections, params["dag_id"]
    configs, errors = load_collections(folder, only=shard) if folder else ([], [])
    kind = kind_of(client.state(shard).sources)
    if errors and kind != "view" and given not in operator.dags:  # no factory makes the DAG of this file
        raise errors[0]
    group = next((config.group for config in configs), None)
    dags = {"collection": f"{GROUP_PREFIX}{group}" if group else f"{UPSERT_PREFIX}{shard}", "view": VIEW_PREFIX + shard}
    made = [dag_id for each, dag_id in dags.items() if kind not in dags or each == kind]
    if given and given not in (*made, *operator.dags):
        raise InvalidInput(
            f"dag_id is {given!r}; expected {' or '.join((*made, *operator.dags))}. This DAG starts only DAGs that"
            " write the shard; name others in `build_actions_dag(dags=[...])`"
        )
    if not given and len(made) > 1:
        raise InvalidInput(
            f"shard {shard} is empty or has no source, so its DAG is not known; give `dag_id`, for example {made[0]}"
        )
    if needs_file and folder and kind == "collection" and not (given or configs):  # its DAG may be a stale one
        raise InvalidInput(
            f"no collection file of {shard} in {folder}: no DAG may write it any more. If one does, give `dag_id`."
            " Nothing was changed"
        )
    dag_id = str(given or made[0])
    is_paused = is_dag_paused(context, dag_id)
    if is_paused is None:
        raise InvalidInput(f"Airflow has no DAG {dag_id}: no DAG writes shard {shard}. Nothing was changed")
    return {"dag_id": dag_id, "dag_is_paused": is_paused}


def restored(operator: Any, client: PersistClient, context: Context, params: Mapping[str, Any]) -> Done:
    shard, checkpoint_id, new_shard = operator.shard, params["checkpoint_id"], params["new_shard"]
    is_dry_run, max_updates, writer = params["dry_run"], params["max_updates"] or MAX_UPDATES, writer_of(context)
    if new_shard and is_dry_run:
        raise AirflowFailException("dry_run says what a restore would change; a fork (new_shard) changes nothing")
    if new_shard:
        done = actions.fork(client, shard, checkpoint_id, new_shard, writer=writer)
    else:
        bounds = {"is_dry_run": is_dry_run, "max_updates": max_updates}
        done = actions.restore(client, shard, checkpoint_id, writer=writer, once=True, **bounds)
    if done.facts["status"] in ("restored", "forked"):
        operator.lineage = of_restore(client, shard, new_shard, operator.persist_conn_id)
    return done


def rebuilt(
    operator: Any, client: PersistClient, context: Context, params: Mapping[str, Any], config: CollectionConfig
) -> Done:
    back_to = -1 if params["swap_back"] else None
    request = Rebuild(back_to=back_to, max_changed=config.limits.max_changed, **_wishes(params))
    return _carried_out(operator, client, rebuild, config, request, context)


def reprocessed(
    operator: Any, client: PersistClient, context: Context, params: Mapping[str, Any], config: CollectionConfig
) -> Done:
    days = {"begin": params["from"], "through": params["through"], "now_ms": client.clock.now_ms()}
    request = request_of(config, **days, reason=params["reason"] or "", **_wishes(params))
    return _carried_out(operator, client, reprocess, config, request, context)


def filled(
    operator: Any, client: PersistClient, context: Context, params: Mapping[str, Any], config: CollectionConfig
) -> Done:
    dry_run, confirm = params["dry_run"], bool(params["confirm"])
    wishes = Wishes(is_dry_run=dry_run, is_confirmed=confirm, max_changed=config.limits.max_changed)
    return _carried_out(operator, client, fill, config, wishes, context)


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
    do: Callable[..., Reprocessed | Rebuilt | Filled],
    config: CollectionConfig,
    wishes: Wishes,
    context: Context,
) -> Done:
    """Do it by an operator that can start Spark."""
    shown: list[str] = []

    def show(found: Reprocessed | Rebuilt | Filled) -> None:
        shown[:] = report_of(found).lines
        operator.log.info("%s", "; ".join(shown))

    def run(start: Start) -> Reprocessed | Rebuilt | Filled:
        write, writer = functools.partial(write_batch, client, start), writer_of(context)
        return do(client, config, wishes, write=write, writer=writer, say=operator.log.info, report=show)

    found = operator.run_jobs(context, run)
    if found.commit is not None:
        operator.lineage = of_correction(client, config, found.commit, operator.persist_conn_id)
    report = report_of(found)
    for facts in (report.facts, report.facts.get("differences") or {}):
        facts.pop("samples", None)  # whole rows: the right to see this DAG's results is not the right to see them
    lines = [line for line in (*report.lines, report.done) if line not in shown]
    return Done(report.facts, tuple(lines))
