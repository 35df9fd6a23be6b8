"""The work of a running Airflow beside its feeds: triggers in the triggerer, `persist_watch`, and metrics.

a commit outside of Airflow -> ShardCommitTrigger -> asset -> dag run of `after_outside` -> deferred on the upper
the next one                -> ShardUpperTrigger -> the task ends
persist_watch, every 5 s    -> one message when errors appear, one when they are gone
persist_maintenance         -> metrics of the shard, to StatsD
the feeds' own tasks        -> counters of what they did, to StatsD (`check_counters`, in a test with feeds)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

from persist_airflow.embedded.home import LocalAirflow
from persist_core.handles.client import PersistClient
from persist_core.inspection.metrics import changes_of
from persist_core.inspection.summaries import commit_facts
from tests.airflow.sinks import HttpSink
from tests.airflow.statsd_sink import StatsdSink
from tests.core.world import SCHEMA
from tests.plain_commit import commit

SHARD = "fruit"
DAY_MS = 86_400_000
FIRST, SECOND = 2 * DAY_MS, 3 * DAY_MS  # uppers of the commits outside of Airflow
STARTER = "after_outside"  # the DAG that commits outside of Airflow start
PROJECT = "notify: {notifier: slack, args: {slack_webhook_conn_id: ops_slack}}\n"
DAG_FILE = f"""
# airflow DAG
from datetime import timedelta
from pathlib import Path
from airflow.sdk import DAG, Asset, AssetWatcher
from persist_airflow.maintenance import build_maintenance_dag
from persist_airflow.sensors import ShardSensor
from persist_airflow.triggers import ShardCommitTrigger
from persist_airflow.watch import build_watch_dag
watcher = AssetWatcher(name="outside", trigger=ShardCommitTrigger("{SHARD}", poll_s=1))
changed = Asset("persist://persist_default/{SHARD}-outside", watchers=[watcher])
again = {{"retries": 2, "retry_delay": timedelta(seconds=1)}}
with DAG("after_outside", schedule=[changed], default_args=again) as after:
    ShardSensor(task_id="wait", shard="{SHARD}", upper={SECOND}, deferrable=True, poke_interval=1)
watch = build_watch_dag(Path(__file__).parent, dag_args={{"schedule": timedelta(seconds=5)}})
maintenance = build_maintenance_dag(dag_args={{"schedule": [changed]}})
"""
TIMEOUT_MS = 240_000


def settings(slack: HttpSink, statsd: StatsdSink) -> dict[str, str]:
    """The environment that this needs: schedules are on, messages and metrics go to the sinks."""
    ops = {"conn_type": "slackwebhook", "host": f"{slack.url}/slack", "password": "T/B/x"}
    return {
        **statsd.settings(statsd_influxdb_enabled="True"),
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "True",
        "AIRFLOW_CONN_OPS_SLACK": json.dumps(ops),
    }


def check(airflow: LocalAirflow, client: PersistClient, slack: HttpSink, statsd: StatsdSink) -> None:
    """Commit twice beside the running Airflow, and wait for what it makes of it."""

    def wait_until(holds: Callable[[], bool], what: str) -> None:
        deadline_ms = airflow.clock.now_ms() + TIMEOUT_MS
        while not holds():
            airflow.kept.check()
            states = airflow.query("select dag_id, run_id, state from dag_run order by id desc limit 8")
            waited = "failed" not in sensors() and airflow.clock.now_ms() < deadline_ms
            assert waited, (what, states, sensors(), slack.requests, logs_of(airflow, STARTER))
            airflow.clock.sleep_ms(200)

    def sensors() -> list[str]:
        return [state for (state,) in airflow.query("select state from task_instance where dag_id = 'after_outside'")]

    def watched() -> int:
        done = "select count(*) from dag_run where dag_id = 'persist_watch' and state = 'success'"
        ((count,),) = airflow.query(done)
        return int(count)

    wait_until(lambda: bool(airflow.query("select * from asset_state_store")), "the triggerer has looked")
    wait_until(lambda: watched() > 0, "a first look of persist_watch")
    assert said(slack) == []
    commit(client, SHARD, SCHEMA, FIRST, [((1, "fig"), 1, 1)], [("value", None, b"x", 1, 1)], writer="cli/one")
    wait_until(lambda: sensors() == ["deferred"], "the commit starts a dag run, whose task waits in the triggerer")
    wait_until(lambda: bool(said(slack)), "an alert")
    commit(client, SHARD, SCHEMA, SECOND, [], [("value", None, b"x", FIRST, -1)], writer="cli/two")
    wait_until(lambda: len(sensors()) == 2 and set(sensors()) == {"success"}, "the second commit ends the task's wait")
    wait_until(lambda: len(said(slack)) == 2, "the alert's end")
    looks = watched()
    wait_until(lambda: watched() > looks, "persist_watch looks again")
    first, last = said(slack)
    assert first == f"{SHARD} holds 1 records that could not be decoded (limit 1)."
    assert last == f"{SHARD}: errors are below the limit again, 0 now."
    labels = f",location=persist_default,shard={SHARD}"
    errors = f"errors_alive{labels}"
    wait_until(lambda: statsd.values().get(errors, [""])[-1] == "0|g", "metrics by persist_maintenance")
    assert set(statsd.values()[f"rows{labels}"]) == {"1|g"}


def logs_of(airflow: LocalAirflow, dag_id: str) -> str:
    """The logs of all tasks of a DAG."""
    return "".join(path.read_text() for path in sorted((airflow.logs / f"dag_id={dag_id}").rglob("*.log")))


def said(slack: HttpSink) -> list[str]:
    """The first line of each message about our shard; the bundled collections have alerts of their own."""
    texts = (body["text"].splitlines()[0] for body in slack.bodies("/slack"))
    return [text for text in texts if text.startswith(SHARD)]


def check_counters(client: PersistClient, statsd: StatsdSink, dag_id: str) -> None:
    """The tasks of this DAG have counted exactly what the shard's commits say, and their tries."""
    made = client.state(SHARD).commits
    expected: Counter[str] = Counter()
    for facts in (commit_facts(each, client.manifest(each)) for each in made):
        changes = {f"changes,kind={kind}": number or 0 for kind, number in changes_of(facts).items()}
        read = (facts.stats or {}).get("records_read", 0)  # none in an empty commit
        expected.update({**changes, "records_read": read, "written_bytes": facts.size_bytes, "commits": 1})
    assert expected["changes,kind=insert"] > 0
    assert expected["changes,kind=delete"] > 0
    common = f",location=persist_default,shard={SHARD}"
    found: dict[str, list[str]] = {
        name.removesuffix(f",dag_id={dag_id}").replace(common, ""): values
        for name, values in statsd.values().items()
        if name.endswith(f",dag_id={dag_id}")
    }
    for stage in ("mint", "write", "append", "checkpoint"):
        assert found.pop(f"tries,stage={stage},result=success").count("1|c") >= len(made)
        assert len(found.pop(f"stage_duration,stage={stage}")) >= len(made)
    counted = {name: sum(int(value.removesuffix("|c")) for value in values) for name, values in found.items()}
    assert {name: number for name, number in counted.items() if not name.startswith("tries")} == +expected
