"""The DAG `persist_actions`: what users do to a shard by hand, one action at a time.

    trigger with conf {"action": "fsck", "shard": "customers"} --checked--> shard_action --> persist_core.maintenance

1. An action does what the operator and the command of the same name do. The user who triggered the dag run is in its
   log and its result.
2. A conf that does not fit is refused before anything is opened: an unknown action or field, one that is missing, one
   that the action does not take.
3. The right to trigger this DAG is the right to do all its actions to all its shards: all of its
   connection, or what `build_actions_dag(actions=..., shards=...)` names. Each such DAG has roles of its own.
4. It starts only DAGs that write the shard: the factories' DAG for a shard of its kind, or one of
   `build_actions_dag(dags=...)`.

    dag = build_actions_dag()
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from persist_airflow.compat import DAG, Context, Param, TriggerDagRunOperator
from persist_airflow.failures import fail_without_retry
from persist_airflow.hook import PersistHook, task_client
from persist_airflow.lineage import ReportsLineage
from persist_airflow.maintenance import MaintainShardOperator, bounds_of
from persist_airflow.operators import writer_of
from persist_airflow.options import location_dag
from persist_airflow.shard_actions import (
    Json,
    by,
    checked,
    dag_of,
    erased,
    filled,
    rebuilt,
    reported,
    reprocessed,
    restored,
    typed,
)
from persist_airflow.spark import DEFAULT_SPARK
from persist_core.config.collection import CollectionConfig, load_collections
from persist_core.config.project import project_of
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.maintenance import actions
from persist_core.maintenance.actions import Done
from persist_core.protocol.delta import MAX_UPDATES

DAG_ID = "persist_actions"
LOOK = "To see first what a run would make of new input, and what does not fit: persist preview SHARD (command line)"
DOCUMENT = """Actions on one shard, by hand: trigger this DAG with an action and a shard.

| action | what it does | needs | takes |
| --- | --- | --- | --- |
{rows}

The same on the command line: `persist maintain`, `fsck`, `reprocess`, `fill`, `rebuild`, `resolve`, `pin`, `unpin`,
`restore`, `release`, `ack`, `erase`.
"""


class ShardActionOperator(ReportsLineage, MaintainShardOperator):
    """One action on one shard, as the dag run's conf asks: `{"action": ..., "shard": ..., ...}`; or as the DAG says.

    Returns the action's JSON, with `action` and `by`, the user who triggered the dag run. Further arguments: as for
    `MaintainShardOperator`. The page for shards reads from the template fields what the DAG may do.

    :param action: the action, for a task of your own DAG; default: the conf's
    :param fields: the fields of that action (templated)
    :param actions: names of the actions that are allowed; default: all
    :param shards: names or patterns (`sales_*`) of the shards that are allowed; default: all
    :param dags: ids of further DAGs that may be started, beside the factories' for the shard
    """

    template_fields: Sequence[str] = (*MaintainShardOperator.template_fields, "actions", "shards", "fields")

    def __init__(
        self,
        *,
        action: str | None = None,
        fields: Mapping[str, Any] | None = None,
        actions: Sequence[str] = (),
        shards: Sequence[str] = ("*",),
        dags: Sequence[str] = (),
        collections: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        for name, given in (("actions", actions), ("shards", shards), ("dags", dags)):
            if isinstance(given, str):  # its characters would be names, and a `*` among them all shards
                raise InvalidInput(f"{name}: found the text {given!r}, expected a list; write [{given!r}]")
        super().__init__(**{"shard": "{{ params.shard }}", **kwargs})
        self.action, self.fields = action, dict(fields or {})
        self.actions = tuple(actions) or tuple(ACTIONS)
        self.shards, self.dags = tuple(shards), tuple(dags)
        self.collections = None if collections is None else Path(collections)

    def execute(self, context: Context) -> Any:
        """Do it. Raises `AirflowFailException` for a conf that does not fit; else what the action raises."""
        given: Mapping[str, Any] = self.fields
        params = {"action": self.action, "shard": self.shard, **DEFAULTS, **given}
        if self.action is None:
            given, params = context["dag_run"].conf or {}, {**context["params"]}
        with fail_without_retry():
            params = typed(params, switches=_SWITCHES, numbers=_NUMBERS)
            name = check_conf(params, given, allowed=self.actions)
            check_shards((self.shard, params.get("new_shard")), allowed=self.shards)
        self.log.info("%s of shard %s, by %s", name, self.shard, by(context))
        configs = [self.collection()] if ACTIONS[name].of_file else []
        with task_client(self.persist_conn_id, *configs) as client:
            done = ACTIONS[name].do(self, client, context, params, *configs)
            report = reported(self, context, done) if isinstance(done, Done) else done
        return {"action": name, "by": by(context), **report}

    def collection(self) -> CollectionConfig:
        """The collection whose shard it is. Raises `AirflowFailException` if its file is not known, or wrong."""
        with fail_without_retry():
            if self.collections is None:
                raise InvalidInput("no folder of collection files is named: `build_actions_dag(collections=FOLDER)`")
            found, errors = load_collections(self.collections, only=self.shard)
            for error in errors:
                raise error
            if not found:
                raise InvalidInput(
                    f"no collection file of {self.shard} in {self.collections}. A view has none, and a fork only after"
                    " you have written one"
                )
            return found[0]

    @staticmethod
    def run_id(context: Context) -> str:
        return f"{DAG_ID}__{context['run_id']}"

    def start(self, context: Context, report: Json) -> None:
        """Trigger the report's DAG, once for each dag run. On 3.x this does not return: Airflow ends the task."""
        dag_id = report["dag_id"]
        done = {"action": self.action or context["params"]["action"], "by": by(context), **report}
        self.log.info("%s: starting a run of %s", self.shard, dag_id)
        if report["dag_is_paused"]:
            self.log.warning("%s is paused: the run waits until you unpause it", dag_id)
        context["ti"].xcom_push(key="return_value", value=done)
        run: dict[str, Any] = {
            "trigger_dag_id": dag_id,
            "trigger_run_id": self.run_id(context),
            "skip_when_already_exists": True,
        }
        start: Any = TriggerDagRunOperator(task_id=self.task_id, **run)
        inspect.unwrap(TriggerDagRunOperator.execute)(start, context)  # undecorated: see `SparkJobOperator`


@dataclass(frozen=True)
class Action:
    """One action: what it does, in words, the function, and the fields that it needs and takes beside the shard.

    `do` gets the operator, a client, the context and the fields; and, if it is `of_file`, the collection.
    """

    says: str
    do: Callable[..., Done | Json]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    of_file: bool = False


def _run(operator: Any, client: PersistClient, context: Context, params: Mapping[str, Any]) -> Json:
    report = {"shard": operator.shard, "status": "started", **dag_of(client, operator, context, params)}
    operator.start(context, report)
    return report


def _recreate(operator: Any, client: PersistClient, context: Context, params: Mapping[str, Any]) -> Json:
    found = dag_of(client, operator, context, params, needs_file=True)
    run = f"{found['dag_id']}/{operator.run_id(context)}"
    done = actions.recreate(client, operator.shard, is_forced=params["force"], next_writer=run)
    report = {**reported(operator, context, done), **found}
    operator.start(context, report)
    return report


def _maintain(operator: Any, client: PersistClient, context: Context, _: Mapping[str, Any]) -> Json:
    """By the `persist.yaml` beside the collections, as the DAG `persist_maintenance`."""
    if operator.action is None and operator.collections is not None:
        vars(operator).update(bounds_of(project_of(operator.collections.parent).maintenance))
    done: Json = operator.maintain(client, context)
    return done


def _resolve(operator: Any, client: PersistClient, context: Context, params: Mapping[str, Any]) -> Done:
    wishes = {"at": params["at"], "is_dry_run": params["dry_run"]}
    return actions.resolve(client, operator.shard, **wishes, writer=writer_of(context), has_payloads=False)


ACTIONS: dict[str, Action] = {
    "run": Action("starts a run of the shard's DAG", _run, takes=("dag_id",)),
    "maintain": Action(
        "merges batches, moves `since`, deletes what nothing needs",
        _maintain,
    ),
    "fsck": Action("checks every stored byte and the invariants", checked, takes=("repair",)),
    "pin": Action(
        "keeps a checkpoint restorable",
        lambda operator, client, _, params: actions.pin(client, operator.shard, params["checkpoint_id"]),
        needs=("checkpoint_id",),
    ),
    "unpin": Action(
        "leaves a pinned checkpoint to retention again",
        lambda operator, client, _, params: actions.unpin(client, operator.shard, params["checkpoint_id"]),
        needs=("checkpoint_id",),
    ),
    "restore": Action(
        "goes back to a checkpoint, as a new commit; with `new_shard` it makes a new shard of it instead",
        restored,
        needs=("checkpoint_id",),
        takes=("new_shard", "dry_run", "max_updates"),
    ),
    "reprocess": Action(
        "corrects a collection by its files as they are now, from a day on: the difference becomes one commit",
        reprocessed,
        needs=("from",),
        takes=("through", "dry_run", "confirm", "take_back_gone", "max_updates", "reason"),
        of_file=True,
    ),
    "fill": Action("fills new columns from `source.rest`", filled, takes=("dry_run", "confirm"), of_file=True),
    "resolve": Action(
        "removes errors of kind missing_order, which no record removes", _resolve, needs=("at",), takes=("dry_run",)
    ),
    "erase": Action("forgets a key, history included", erased, ("key", "reason", "confirm"), ("dry_run", "verify")),
    "rebuild": Action(
        "builds a collection again by its file, and swaps it in; with `swap_back` the generation before",
        rebuilt,
        takes=("swap_back", "dry_run", "confirm", "take_back_gone", "max_updates"),
        of_file=True,
    ),
    "recreate": Action(
        "drops the shard, begins it again empty, and starts a run of its DAG. Its history is lost",
        _recreate,
        needs=("confirm",),
        takes=("dag_id", "force"),
    ),
    "release": Action(
        "ends the lease or hold of a holder whose owner is gone",
        lambda operator, client, context, params: actions.release(
            client, operator.shard, params["holder"], by=by(context), reason=params["reason"], is_forced=params["force"]
        ),
        needs=("holder", "reason"),
        takes=("force",),
    ),
    "ack": Action(
        "keeps an alert silent until it is resolved",
        lambda operator, client, context, params: actions.acknowledge(
            client, operator.shard, params["alert"], by=by(context), reason=params["reason"]
        ),
        needs=("alert", "reason"),
    ),
}

_TEXTS = {
    "checkpoint_id": "pin, unpin, restore: the checkpoint, one of `persist checkpoints`",
    "new_shard": "restore: leave the shard alone, and make this new one",
    "key": "erase: the key; or a JSON array of texts. Airflow's database keeps it until the dag run is deleted",
    "at": "resolve: the positions of the errors that you have looked at, as a glob; * for all",
    "holder": "release: one of `persist holds`",
    "alert": "ack: one of `persist alerts`",
    "reason": "release, ack, reprocess, erase: why; it is kept with your name, and shown to others",
    "confirm": "recreate, erase: the shard's name again; reprocess, fill, rebuild: it too, if the message asks for it",
    "from": "reprocess: the first day whose files are read again",
    "through": "reprocess: the last day whose files may differ",
    "dag_id": "run, recreate: the shard's DAG, if the factories did not make it; one that the DAG file allows",
}
_NUMBERS = {"max_updates": f"restore, reprocess, rebuild: refuse more updates than this, {MAX_UPDATES} by default"}
_SWITCHES = {
    "dry_run": "restore, resolve, reprocess, fill, rebuild, erase: only say what would change",
    "take_back_gone": "reprocess, rebuild: do without the records of files that are gone",
    "swap_back": "rebuild: go back to the generation before",
    "verify": "erase: then read every stored object",
    "repair": "fsck: first write again what commits determine",
    "force": "recreate, release: also if others need it",
}
_FIELDS = (*_TEXTS, *_NUMBERS, *_SWITCHES)
DEFAULTS: dict[str, Any] = {**dict.fromkeys((*_TEXTS, *_NUMBERS)), **dict.fromkeys(_SWITCHES, False)}


def check_conf(params: Mapping[str, Any], conf: Mapping[str, Any], *, allowed: Sequence[str]) -> str:
    """The name of the action. Raises `InvalidInput` that names the field, what was found and what is expected."""
    name = str(params.get("action"))
    if name not in allowed:
        raise InvalidInput(f"action is {name!r}; expected one of {', '.join(allowed)}")
    unknown = sorted(set(conf) - {"action", "shard", *_FIELDS})
    if unknown:
        raise InvalidInput(f"unknown fields {', '.join(unknown)}; action {name} {_fields(ACTIONS[name])}")
    action = ACTIONS[name]
    missing = [field for field in action.needs if not params.get(field)]
    if missing:
        raise InvalidInput(f"action {name} needs {', '.join(missing)}; action {name} {_fields(action)}")
    extra = [field for field in _FIELDS if params.get(field) and field not in action.needs + action.takes]
    if extra:
        raise InvalidInput(f"action {name} does not take {', '.join(extra)}; action {name} {_fields(action)}")
    confirm = params.get("confirm")
    if (confirm or "confirm" in action.needs) and confirm != params["shard"]:
        raise InvalidInput(f"confirm is {confirm!r}; expected the shard's name, {params['shard']!r}")
    return name


def check_shards(names: Iterable[str | None], *, allowed: Sequence[str]) -> None:
    """Raise `InvalidInput` for a shard that matches none of the names and patterns in `allowed`."""
    for name in filter(None, names):
        if not any(fnmatchcase(name, pattern) for pattern in allowed):
            raise InvalidInput(f"shard is {name!r}; this DAG acts on {', '.join(allowed)}")


def _fields(action: Action) -> str:
    needs, takes = ", ".join(action.needs), ", ".join(action.takes)
    said = [f"needs {needs}" if needs else "", f"takes {takes}" if takes else ""]
    return " and ".join(filter(None, said)) or "takes no field but shard"


def build_actions_dag(
    *,
    actions: Sequence[str] = (),
    shards: Sequence[str] = ("*",),
    dags: Sequence[str] = (),
    collections: str | Path | None = None,
    persist_conn_id: str = PersistHook.default_conn_name,
    spark_conn_id: str = DEFAULT_SPARK,
    spark: Mapping[str, Any] | None = None,
    default_args: Mapping[str, Any] | None = None,
    dag_args: Mapping[str, Any] | None = None,
) -> DAG:
    """The DAG that does one action on one shard when it is triggered.

    `actions`: the names of the allowed ones, default all. `shards`: names or patterns (`sales_*`) of the shards
    that it allows, default all of the connection. `dags`: DAGs that write the shards and were not made by this
    package's factories: `run` and `recreate` may start them too, and no others. `collections`: the folder of collection
    files, which `reprocess`, `fill` and `rebuild` need, and `run` and `recreate` look at; `maintain` goes by the
    `persist.yaml` beside it. `spark`: more arguments for
    the provider's SparkSubmitOperator. `dag_args` go over the factory's arguments for the DAG; give a `dag_id` to build
    a second one, for another location or team, or with fewer actions. Raises `InvalidInput` for an action that does not
    exist.
    """
    names = tuple(actions) or tuple(ACTIONS)
    wrong = [name for name in names if name not in ACTIONS]
    if wrong:
        raise InvalidInput(f"actions: found {', '.join(wrong)}, expected some of {', '.join(ACTIONS)}")
    rows = "\n".join(
        f"| `{name}` | {ACTIONS[name].says} | {', '.join(ACTIONS[name].needs)} | {', '.join(ACTIONS[name].takes)} |"
        for name in names
    )
    with location_dag(
        DAG_ID,
        description="One action on one shard, by hand",
        schedule=None,
        params=_params(names),
        tag="actions",
        document=DOCUMENT.format(rows=rows),
        defaults={"retries": 0},
        default_args=default_args,
        dag_args=dag_args,
    ) as dag:
        ShardActionOperator(
            task_id="shard_action",
            actions=names,
            shards=shards,
            dags=dags,
            collections=collections,
            persist_conn_id=persist_conn_id,
            spark_conn_id=spark_conn_id,
            **(spark or {}),
        )
    return dag


def _params(names: Sequence[str]) -> dict[str, Any]:
    """The fields of the trigger form, and the JSON schema by which Airflow checks a conf."""
    action = Param(type="string", enum=list(names), title="Action")
    name = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
    shard = Param(type="string", pattern=name, maxLength=128, title="Shard", description=LOOK)
    used = {field for name in names for field in ACTIONS[name].needs + ACTIONS[name].takes}
    texts = {name: Param(None, type=["null", "string"], description=about) for name, about in _TEXTS.items()}
    numbers = {
        name: Param(None, type=["null", "integer"], minimum=1, description=about) for name, about in _NUMBERS.items()
    }
    switches = {name: Param(False, type="boolean", description=about) for name, about in _SWITCHES.items()}
    fields = {**texts, **numbers, **switches}
    return {"action": action, "shard": shard, **{name: fields[name] for name in _FIELDS if name in used}}
