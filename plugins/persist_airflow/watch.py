"""The DAG `persist_watch`: it alerts when a shard is not as it should be, once, and once when that is resolved.

    watch_shards (one task) : files -> rules; states -> facts; `persist_core.alerts` -> alerts and notices; notifiers

1. It reads the record of alerts, and for each shard one state, one listing and the manifests of its newest run: no
   data, no Spark.
2. It needs no dag run of the shard: a feed whose DAG is paused or gone is late as well.
3. A notifier that fails makes the task fail; the notice stays, and the next dag run sends it again.

    dag = build_watch_dag(Path(__file__).parent)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from persist_airflow.compat import DAG, AirflowException, BaseOperator, Context, interval_schedule
from persist_airflow.hook import PersistHook, task_client
from persist_airflow.notifications import NotifyBy, chosen, targets
from persist_airflow.options import TaskOptions, location_dag
from persist_core.alerts.board import CLAIM_MS, WatchBoard
from persist_core.alerts.conditions import Health
from persist_core.alerts.deliver import deliver
from persist_core.alerts.health import healths, open_alerts
from persist_core.alerts.words import show_value
from persist_core.config.alerts import WatchedShard, load_watched
from persist_core.config.collection import load_collections
from persist_core.config.files import config_files
from persist_core.config.project import KEEP_LONGEST, ProjectConfig, project_of
from persist_core.config.thresholds import DEFAULTS, FILE
from persist_core.config.view import load_views
from persist_core.errors import ConfigError, StorageError
from persist_core.inspection.inspector import Inspector

DAG_ID = "persist_watch"
FOLDERS: Mapping[str, tuple[str, Callable[[Path], Any]]] = {
    "collections": ("collection", load_collections),
    "views": ("view", load_views),
}
TIMEOUT = timedelta(milliseconds=CLAIM_MS * 8 // 10)  # a claim outlives the task, so no other one sends meanwhile
DOCUMENT = """Alerts when a shard is late, holds errors, or is damaged, and says when that is resolved.

`freshness:`, `alerts:` and `notify:` in the files of collections and views, and in `persist.yaml` for all of them, say
when and whom. `persist alerts` lists what is open, `persist ack` keeps an alert silent. See docs/alerts.md.
"""


class WatchShardsOperator(BaseOperator):
    """Evaluate the conditions of all shards of a folder's files, and send what changed.

    Returns `{"shards": ..., "open": ..., "sent": ..., "changed": [...]}`. The files are read when the task runs.

    :param folder: has `collections`, `views` and, unless `project` is given, `persist.yaml`
    :param project: what `persist.yaml` would say
    :param notify: for shards whose files have no `notify`; default: the project's
    :param persist_conn_id: the location (templated)
    """

    template_fields: Sequence[str] = ("persist_conn_id",)
    ui_color = "#f6dede"

    def __init__(
        self,
        *,
        folder: str | Path,
        project: ProjectConfig | None = None,
        notify: Sequence[NotifyBy] | NotifyBy = (),
        persist_conn_id: str = PersistHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.folder = str(folder)
        self.project = project
        self.notify = chosen(None, notify)
        self.persist_conn_id = persist_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Look once. Raises `AirflowException` if a notifier did not take a notice, which is kept; and if the store
        fails for a shard, after all the others were looked at."""
        project = self.project or project_of(self.folder)
        shards, wrong = self._files()
        rules = {shard.name: shard.rules(project) for shard in shards if shard.name not in wrong}
        broken = {name: Health(name, is_defined=False, notes={FILE: said}) for name, said in wrong.items()}
        general = self.notify or chosen(project.notify)
        by = {shard.name: targets(chosen(shard.notify, general), context) for shard in shards}
        unread: dict[str, StorageError] = {}
        with task_client(self.persist_conn_id) as client:
            board, inspector = WatchBoard(client), Inspector(client)
            notices = board.turn(
                {**rules, **dict.fromkeys(broken, DEFAULTS)},
                lambda: {**healths(inspector, rules, unread), **broken},
                watcher=self.dag_id,
                guide=project.watch.guide,
            )
            for notice in notices:
                self.log.warning("%s", notice.text)
            to_all = targets(general, context)
            done = deliver(board, lambda notice: by.get(notice.shard, to_all if notice.shard in broken else None))
            still_open = open_alerts(inspector)
        for alert in still_open:
            value, limit = (show_value(alert.alert, each) for each in (alert.value, alert.limit))
            self.log.info("open: %s %s of %s: %s (limit %s)", alert.level, alert.alert, alert.shard, value, limit)
        self.log.info("%d shards, %d open alerts, %d notices sent", len(rules), len(still_open), done.sent)
        failures = [*done.failures, "What was not taken is sent again by the next dag run"] if done.failures else []
        failures += [f"{shard} was not looked at: {error.kind}: {error}" for shard, error in sorted(unread.items())]
        if failures:
            raise AirflowException("\n".join(failures))
        return {
            "shards": len(rules),
            "open": len(still_open),
            "sent": done.sent,
            "changed": [notice.subject for notice in notices],
        }

    def _files(self) -> tuple[list[WatchedShard], dict[str, str]]:
        """The shards of the files; and why a file is wrong, by its name: other alerts of the shard stay as they are.

        A wrong file may still say whom to notify.
        """
        shards: list[WatchedShard] = []
        wrong: dict[str, str] = {}
        loaded: set[str] = set()
        for name, (what, load) in FOLDERS.items():
            folder = Path(self.folder) / name
            if not folder.is_dir():
                continue
            shards += load_watched(folder, what=what)[0]
            correct, errors = load(folder)
            for error in errors:
                self.log.warning("not watched: %s", error)
            loaded |= {config.name for config in correct}
            for path in config_files(folder):
                if path.stem not in loaded:
                    said = [str(error) for error in errors if str(error).startswith(f"{path}:")]
                    wrong[path.stem] = said[0] if said else f"{path} can't be read"
        return shards, {name: said for name, said in wrong.items() if name not in loaded}


def announced_as(folder: str | Path) -> TaskOptions:
    """The options `notify`, `guide` and `maintenance` by the folder's `persist.yaml`. A wrong file is an import error
    of the DAGs that need all of it; meanwhile files are kept as long as it could say."""
    try:
        project = project_of(folder)
    except ConfigError:
        return {"maintenance": KEEP_LONGEST}
    return {"notify": chosen(project.notify), "guide": project.watch.guide, "maintenance": project.maintenance}


def build_watch_dag(
    folder: str | Path,
    *,
    project: ProjectConfig | None = None,
    notify: Sequence[NotifyBy] | NotifyBy = (),
    persist_conn_id: str = PersistHook.default_conn_name,
    default_args: Mapping[str, Any] | None = None,
    dag_args: Mapping[str, Any] | None = None,
) -> DAG:
    """The DAG that watches the shards of `folder/collections` and `folder/views`, every 5 minutes by default.

    `folder/persist.yaml` has its schedule, and the defaults of `freshness`, `alerts` and `notify`; `project` replaces
    it, and `notify` replaces the file's. `dag_args` go over the factory's arguments for the DAG. For a second
    location build it again with another `dag_id`.
    """
    folder = Path(folder).absolute()
    config = (project or project_of(folder)).watch
    with location_dag(
        DAG_ID,
        description="Alert when shards are late, hold errors or are damaged",
        schedule=interval_schedule(config.schedule),
        max_active_runs=1,
        tag="watch",
        document=DOCUMENT,
        defaults={"retries": 0, "execution_timeout": TIMEOUT},
        default_args=default_args,
        dag_args=dag_args,
    ) as dag:
        WatchShardsOperator(
            task_id="watch_shards",
            folder=folder,
            project=project,
            notify=notify,
            persist_conn_id=persist_conn_id,
            pool=config.pool,
        )
    return dag
