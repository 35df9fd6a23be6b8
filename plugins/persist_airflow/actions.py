"""What users do to a shard by hand: operators, and the DAG `persist_actions` that runs them one at a time.

    trigger with conf {"action": "fsck", "shard": "customers"} --checked--> shard_action --> persist_core.maintenance

1. An action does what the command of the same name does, says it in the same words, and returns its JSON, cut to be
   small. The user who triggered the dag run is in its log and its result.
2. A conf that does not fit is refused before anything is opened: an unknown action or field, one that is missing, one
   that the action does not take.
3. The right to trigger this DAG is the right to do all its actions to all shards of its connection.
   `build_actions_dag(actions=...)` makes DAGs for fewer of them, each with roles of its own.

    dag = build_actions_dag()
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

from persist_airflow.compat import DAG, AirflowFailException, BaseOperator, Context, Param, triggered_by
from persist_airflow.factory import UPSERT_PREFIX, VIEW_PREFIX
from persist_airflow.failures import fail_without_retry
from persist_airflow.hook import PersistHook, task_client
from persist_airflow.links import ShardLink
from persist_airflow.maintenance import MaintainShardOperator
from persist_airflow.operators import writer_of
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.maintenance import actions
from persist_core.maintenance.actions import Done
from persist_core.protocol.restore import MAX_UPDATES
from persist_core.sources.registry import kind_of

DAG_ID = "persist_actions"
MAX_LISTED = 20  # of each list in a result: XComs stay small, the log has more
DOCUMENT = """Actions on one shard, by hand: trigger this DAG with an action and a shard.

| action | what it does | needs | takes |
| --- | --- | --- | --- |
{rows}

The same on the command line: `persist maintain`, `fsck`, `pin`, `unpin`, `restore`, `release`.
"""

Json = dict[str, Any]


class _ShardOperator(BaseOperator):
    """What the operators of actions share: the shard, the location, the link to the shard."""

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
            return _checked(self, context, actions.check(client, self.shard, with_repair=self.repair))


class RestoreShardOperator(_ShardOperator):
    """Make a shard's contents, progress and stash those of a checkpoint, or a new shard of it, which changes nothing.

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
        return _restored(
            self, self.checkpoint_id, self.new_shard, context, is_dry_run=self.is_dry_run, max_updates=self.max_updates
        )


class RebuildShardOperator(_ShardOperator):
    """Drop a shard and begin it again, empty: its next run takes in all its input, so trigger its DAG after this task.

    What its source no longer has is lost, and so is its history. Returns `{"shard": ..., "status": "emptied"}`, or
    `"up_to_date"` if the shard was empty already.

    :param shard: its name (templated)
    :param force: also if views, readers or forks need it: views and readers then fail until they read it anew
    :param persist_conn_id: the location (templated)
    """

    def __init__(self, *, force: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.force = force

    def execute(self, context: Context) -> Json:
        """Empty the shard. Raises `AirflowFailException` if others need it."""
        with task_client(self.persist_conn_id) as client:
            return _reported(self, context, actions.rebuild(client, self.shard, is_forced=self.force))


class ShardActionOperator(MaintainShardOperator):
    """One action on one shard, as the dag run's conf asks: `{"action": ..., "shard": ..., ...}`.

    Returns the action's JSON, with `action` and `by`, the user who triggered the dag run. Further arguments are those
    of `MaintainShardOperator`.

    :param actions: names of the actions that are allowed; default: all
    """

    def __init__(self, *, actions: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**{"shard": "{{ params.shard }}", **kwargs})
        self.actions = tuple(actions) or tuple(ACTIONS)

    def execute(self, context: Context) -> Any:
        """Do it. Raises `AirflowFailException` for a conf that does not fit; else what the action raises."""
        params: Mapping[str, Any] = {**context["params"]}
        with fail_without_retry():
            name = check_conf(params, context["dag_run"].conf or {}, allowed=self.actions)
        self.log.info("%s of shard %s, by %s", name, self.shard, by(context))
        report = ACTIONS[name].do(self, context, params)
        return {"action": name, "by": by(context), **report}

    def start(self, context: Context, dag_id: str, report: Json) -> None:
        """Trigger the shard's DAG. On 3.x this does not return: Airflow ends the task with success."""
        done = {"action": context["params"]["action"], "by": by(context), **report, "dag_id": dag_id}
        self.log.info("%s: starting a run of %s", self.shard, dag_id)
        context["ti"].xcom_push(key="return_value", value=done)
        start: Any = TriggerDagRunOperator(
            task_id=self.task_id, trigger_dag_id=dag_id, trigger_run_id=f"{DAG_ID}__{context['run_id']}"
        )
        inspect.unwrap(TriggerDagRunOperator.execute)(start, context)  # undecorated: see `SparkJobOperator`


def by(context: Context) -> str:
    """Who asked for this dag run: the user, as far as Airflow knows, and the dag run."""
    user, run = triggered_by(context), writer_of(context)
    return f"{user} ({run})" if user else run


def _reported(operator: BaseOperator, context: Context, done: Done) -> Json:
    """Log what was done; what the task returns: the facts, with lists of at most `MAX_LISTED`."""
    for line in done.lines:
        operator.log.info("%s", line)
    small: Json = {"by": by(context)}
    for name, value in done.facts.items():
        is_long = isinstance(value, list | tuple) and len(value) > MAX_LISTED
        small[name] = value[:MAX_LISTED] if is_long else value
        if is_long:
            small[f"{name}_count"] = len(value)
    return small


def _checked(operator: BaseOperator, context: Context, done: Done) -> Json:
    report = _reported(operator, context, done)
    if not done.facts["is_clean"]:
        found = "; ".join(f"{each['check']}: {each['message']}" for each in done.facts["violations"][:3])
        raise AirflowFailException(f"corruption: {done.lines[0]}: {found}. See docs/operations.md, Damage")
    return report


def _restored(
    operator: RestoreShardOperator | ShardActionOperator,
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
    return _reported(operator, context, done)


@dataclass(frozen=True)
class Action:
    """One action: what it does, in words, the fields that it needs and takes beside the shard, and the function."""

    says: str
    do: Callable[[ShardActionOperator, Context, Mapping[str, Any]], Json]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


def _with_client(
    do: Callable[[PersistClient, str, Context, Mapping[str, Any]], Done],
) -> Callable[[ShardActionOperator, Context, Mapping[str, Any]], Json]:
    """An action that only needs a client."""

    def act(operator: ShardActionOperator, context: Context, params: Mapping[str, Any]) -> Json:
        with task_client(operator.persist_conn_id) as client:
            return _reported(operator, context, do(client, operator.shard, context, params))

    return act


def _run(operator: ShardActionOperator, context: Context, params: Mapping[str, Any]) -> Json:
    with task_client(operator.persist_conn_id) as client:
        dag_id = _dag_of(client, operator.shard, params)
    report = {"shard": operator.shard, "status": "started"}
    operator.start(context, dag_id, report)
    return report


def _rebuild(operator: ShardActionOperator, context: Context, params: Mapping[str, Any]) -> Json:
    with task_client(operator.persist_conn_id) as client:
        dag_id = _dag_of(client, operator.shard, params)
        report = _reported(operator, context, actions.rebuild(client, operator.shard, is_forced=params["force"]))
    operator.start(context, dag_id, report)
    return report


def _dag_of(client: PersistClient, shard: str, params: Mapping[str, Any]) -> str:
    """The DAG that `conf` names, else the one that a factory makes for a shard of this kind."""
    if params["dag_id"]:
        return str(params["dag_id"])
    kind = kind_of(client.state(shard).sources)
    prefix = {"collection": UPSERT_PREFIX, "view": VIEW_PREFIX}.get(kind)
    if prefix is None:
        raise InvalidInput(
            f"shard {shard} is empty or has no source, so its DAG is not known; give `dag_id`, for example"
            f" {UPSERT_PREFIX}{shard}"
        )
    return f"{prefix}{shard}"


def _restore(operator: ShardActionOperator, context: Context, params: Mapping[str, Any]) -> Json:
    return _restored(operator, params["checkpoint_id"], params["new_shard"], context, is_dry_run=params["dry_run"])


def _fsck(operator: ShardActionOperator, context: Context, params: Mapping[str, Any]) -> Json:
    with task_client(operator.persist_conn_id) as client:
        return _checked(operator, context, actions.check(client, operator.shard, with_repair=params["repair"]))


# What an alert's acknowledgment needs belongs here too, as one more line.
ACTIONS: dict[str, Action] = {
    "run": Action("starts a run of the shard's DAG", _run, takes=("dag_id",)),
    "maintain": Action(
        "merges batches, moves `since`, deletes what nothing needs",
        lambda operator, context, _: operator.maintain(context),
    ),
    "fsck": Action("checks every stored byte and the invariants", _fsck, takes=("repair",)),
    "pin": Action(
        "keeps a checkpoint restorable",
        _with_client(lambda client, shard, _, params: actions.pin(client, shard, params["checkpoint_id"])),
        needs=("checkpoint_id",),
    ),
    "unpin": Action(
        "leaves a pinned checkpoint to retention again",
        _with_client(lambda client, shard, _, params: actions.unpin(client, shard, params["checkpoint_id"])),
        needs=("checkpoint_id",),
    ),
    "restore": Action(
        "goes back to a checkpoint, as a new commit; with `new_shard` it makes a new shard of it instead",
        _restore,
        needs=("checkpoint_id",),
        takes=("new_shard", "dry_run"),
    ),
    "rebuild": Action(
        "drops the shard, begins it again empty, and starts a run of its DAG. Its history is lost",
        _rebuild,
        needs=("confirm",),
        takes=("dag_id", "force"),
    ),
    "release": Action(
        "ends the lease or hold of a holder whose owner is gone",
        _with_client(
            lambda client, shard, context, params: actions.release(
                client, shard, params["holder"], by=by(context), reason=params["reason"], is_forced=params["force"]
            )
        ),
        needs=("holder", "reason"),
        takes=("force",),
    ),
}

_TEXTS = {
    "checkpoint_id": "pin, unpin, restore: the checkpoint, one of `persist checkpoints`",
    "new_shard": "restore: leave the shard alone, and make this new one",
    "holder": "release: one of `persist holds`",
    "reason": "release: why; it is kept with your name, and shown to the reader",
    "confirm": "rebuild: the shard's name once more, because its history is lost",
    "dag_id": "run, rebuild: the shard's DAG, if this package's factories did not make it",
}
_SWITCHES = {
    "dry_run": "restore: only say what would change",
    "repair": "fsck: first write again what commits determine",
    "force": "rebuild, release: also if others need it",
}


def check_conf(params: Mapping[str, Any], conf: Mapping[str, Any], *, allowed: Sequence[str]) -> str:
    """The name of the action. Raises `InvalidInput` that names the field, what was found and what is expected."""
    name = str(params.get("action"))
    if name not in allowed:
        raise InvalidInput(f"action is {name!r}; expected one of {', '.join(allowed)}")
    unknown = sorted(set(conf) - {"action", "shard", *_TEXTS, *_SWITCHES})
    if unknown:
        raise InvalidInput(f"unknown fields {', '.join(unknown)}; action {name} {_fields(ACTIONS[name])}")
    action = ACTIONS[name]
    missing = [field for field in action.needs if not params.get(field)]
    if missing:
        raise InvalidInput(f"action {name} needs {', '.join(missing)}; action {name} {_fields(action)}")
    extra = [field for field in (*_TEXTS, *_SWITCHES) if params.get(field) and field not in action.needs + action.takes]
    if extra:
        raise InvalidInput(f"action {name} does not take {', '.join(extra)}; action {name} {_fields(action)}")
    if "confirm" in action.needs and params["confirm"] != params["shard"]:
        raise InvalidInput(f"confirm is {params['confirm']!r}; expected the shard's name, {params['shard']!r}")
    return name


def _fields(action: Action) -> str:
    needs, takes = ", ".join(action.needs), ", ".join(action.takes)
    said = [f"needs {needs}" if needs else "", f"takes {takes}" if takes else ""]
    return " and ".join(filter(None, said)) or "takes no field but shard"


def build_actions_dag(
    *,
    actions: Sequence[str] = (),
    persist_conn_id: str = PersistHook.default_conn_name,
    spark_conn_id: str = "spark_default",
    spark: Mapping[str, Any] | None = None,
    default_args: Mapping[str, Any] | None = None,
    dag_args: Mapping[str, Any] | None = None,
) -> DAG:
    """The DAG that does one action on one shard when it is triggered.

    `actions`: the names of those that it allows, default all. `spark` are further arguments for the provider's
    SparkSubmitOperator (a large merge starts Spark). `dag_args` go over the factory's arguments for the DAG; give a
    `dag_id` to build a second one, for another location or with fewer actions. Raises `InvalidInput` for an action that
    does not exist.
    """
    names = tuple(actions) or tuple(ACTIONS)
    wrong = [name for name in names if name not in ACTIONS]
    if wrong:
        raise InvalidInput(f"actions: found {', '.join(wrong)}, expected some of {', '.join(ACTIONS)}")
    rows = "\n".join(
        f"| `{name}` | {ACTIONS[name].says} | {', '.join(ACTIONS[name].needs)} | {', '.join(ACTIONS[name].takes)} |"
        for name in names
    )
    arguments: dict[str, Any] = {
        "dag_id": DAG_ID,
        "description": "One action on one shard, by hand",
        "schedule": None,
        "start_date": datetime(1970, 1, 1, tzinfo=UTC),
        "catchup": False,
        "tags": ["persist", "actions"],
        "doc_md": DOCUMENT.format(rows=rows),
        "params": _params(names),
        "default_args": {"retries": 0, **(default_args or {})},
    }
    with DAG(**{**arguments, **(dag_args or {})}) as dag:
        ShardActionOperator(
            task_id="shard_action",
            actions=names,
            persist_conn_id=persist_conn_id,
            spark_conn_id=spark_conn_id,
            **(spark or {}),
        )
    return dag


def _params(names: Sequence[str]) -> dict[str, Any]:
    """The fields of the trigger form, and the JSON schema by which Airflow checks a conf."""
    action = Param(type="string", enum=list(names), title="Action")
    shard = Param(type="string", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", maxLength=128, title="Shard")
    used = {field for name in names for field in ACTIONS[name].needs + ACTIONS[name].takes}
    texts = {
        name: Param(None, type=["null", "string"], description=about) for name, about in _TEXTS.items() if name in used
    }
    switches = {
        name: Param(False, type="boolean", description=about) for name, about in _SWITCHES.items() if name in used
    }
    return {"action": action, "shard": shard, **texts, **switches}
