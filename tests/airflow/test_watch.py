"""`persist_watch`: what it sends through the providers' own notifiers, once, and what a notifier that fails changes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persist_airflow.compat import AirflowException, AirflowFailException
from persist_airflow.failures import PersistStepFailed
from persist_airflow.notifications import Notify
from persist_airflow.watch import build_watch_dag
from persist_core.alerts.board import WatchBoard
from persist_core.alerts.deliver import MAX_FAILURES
from persist_core.alerts.health import MAX_UNREAD, open_alerts
from persist_core.config.project import load_project
from persist_core.errors import Determinate
from persist_core.handles.client import PersistClient
from persist_core.inspection.inspector import Inspector
from persist_core.location.settings import PersistLocation
from tests.airflow.airflow_process import run
from tests.airflow.sinks import HttpSink, MailSink, http_sink, mail_sink
from tests.airflow.task_driver import DagRunDriver
from tests.airflow.test_actions import act
from tests.core.world import SCHEMA
from tests.plain_commit import commit
from tests.servers.certificates import Authority

pytestmark = pytest.mark.airflow_2_11

HOUR = 3_600_000
COLLECTION = "source: {path: in/*.jsonl, format: debezium-json}\nkey: id\ncolumns: {id: bigint, name: string}\n"
SLACK = "{notifier: slack, args: {slack_webhook_conn_id: ops_slack}}"
PAGER = "{notifier: pagerduty, level: fail, args: {pagerduty_events_conn_id: ops_pager}}"
MAIL = "{notifier: email, args: {to: [ops@example.com], from_email: persist@example.com, smtp_conn_id: ops_mail}}"


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpSink]:
    """Slack, and the connection to it."""
    with http_sink() as sink:
        url = f"{sink.url}/slack"
        monkeypatch.setenv("AIRFLOW_CONN_OPS_SLACK", connection("slackwebhook", host=url, password="T/B/x"))
        yield sink


@pytest.fixture
def pager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpSink]:
    """PagerDuty, and the connection to it. Its client speaks TLS only."""
    import pagerduty

    certificate = Authority(tmp_path).issue("127.0.0.1")
    with http_sink(certificate) as sink:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
        monkeypatch.setenv("AIRFLOW_CONN_OPS_PAGER", connection("pagerduty_events", password="key"))
        monkeypatch.setattr(pagerduty.EventsApiV2Client, "default_base_url", sink.url)
        yield sink


@pytest.fixture
def mail(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailSink]:
    """A mail server, and the connection to it."""
    with mail_sink() as sink:
        plain = {"disable_tls": True, "disable_ssl": True}
        monkeypatch.setenv("AIRFLOW_CONN_OPS_MAIL", connection("smtp", host="127.0.0.1", port=sink.port, extra=plain))
        yield sink


def connection(conn_type: str, **fields: Any) -> str:
    return json.dumps({"conn_type": conn_type, **fields})


def folder_of(tmp_path: Path, fruit: str = "", project: str = "") -> Path:
    """A DAG folder with one collection."""
    dags = tmp_path / "dags"
    (dags / "collections").mkdir(parents=True, exist_ok=True)
    (dags / "collections" / "fruit.yaml").write_text(COLLECTION + fruit)
    (dags / "persist.yaml").write_text(project or "watch: {pool: default_pool}\n")
    return dags


def watch(folder: Path, **options: Any) -> dict[str, Any]:
    """One dag run, without a scheduler."""
    report: dict[str, Any] = DagRunDriver(build_watch_dag(folder, **options), None).run("watch_shards")
    return report


def complete_until(client: PersistClient, hours_ago: int, **options: Any) -> None:
    now_ms = client.clock.now_ms()
    commit(client, "fruit", SCHEMA, now_ms - hours_ago * HOUR, **options)


def test_each_service_gets_one_alert_and_one_end(
    tmp_path: Path, client: PersistClient, slack: HttpSink, pager: HttpSink, mail: MailSink
) -> None:
    folder = folder_of(tmp_path, "freshness: {warn: 2h, fail: 6h}\n", f"notify: [{SLACK}, {PAGER}, {MAIL}]\n")
    complete_until(client, 9)
    assert watch(folder) == {"shards": 1, "open": 1, "sent": 1, "changed": ["[fail] fruit: late"]}
    assert watch(folder) == {"shards": 1, "open": 1, "sent": 0, "changed": []}
    complete_until(client, 0)
    assert watch(folder) == {"shards": 1, "open": 0, "sent": 1, "changed": ["[resolved] fruit: late"]}
    assert watch(folder)["sent"] == 0
    first, last = slack.bodies("/slack/T/B/x")
    assert first["text"].startswith("fruit is late: it is complete up to 20")
    assert "what helps: persist describe fruit\nguide: docs/operations.md#the-data-is-late\n" in first["text"]
    assert last["text"].startswith("fruit is fresh again")
    opened, resolved = pager.bodies("/v2/enqueue")
    assert (opened["event_action"], resolved["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == resolved["dedup_key"] == "persist/fruit/freshness"
    assert (opened["payload"]["severity"], opened["payload"]["summary"]) == ("critical", "[fail] fruit: late")
    assert opened["payload"]["custom_details"].startswith("fruit is late")
    assert [message["Subject"] for message in mail.messages] == ["[fail] fruit: late", "[resolved] fruit: late"]
    assert mail.messages[0]["To"] == "ops@example.com"
    body = mail.messages[0].get_body()
    assert body is not None
    assert "fruit is late" in body.get_content()


def test_a_notifier_that_fails_fails_the_task_and_is_tried_again(
    tmp_path: Path, client: PersistClient, slack: HttpSink, mail: MailSink
) -> None:
    folder = folder_of(tmp_path, f"freshness: {{warn: 2h}}\nnotify: [{SLACK}, {MAIL}]\n")
    complete_until(client, 9)
    slack.status = 500
    with pytest.raises(AirflowException, match=r"slack did not take '\[warn\] fruit: late'"):
        watch(folder)
    assert (len(mail.messages), slack.requests) == (1, [])
    slack.status = 200
    assert watch(folder)["sent"] == 1
    assert (len(mail.messages), len(slack.requests)) == (1, 1)


def test_the_pager_gets_failures_and_text_mentions_no_channel(
    tmp_path: Path, client: PersistClient, slack: HttpSink, pager: HttpSink
) -> None:
    folder = folder_of(tmp_path, f"notify: [{SLACK}, {PAGER}]\n")
    WatchBoard(client).record_check("fruit", 0)
    complete_until(client, 0, errs=[("value", None, b"x", 1, 1)], writer="<!channel> & co")
    assert watch(folder)["changed"] == ["[warn] fruit: errors alive"]
    (body,) = slack.bodies("/slack")
    assert "by &lt;!channel&gt; &amp; co" in body["text"]
    WatchBoard(client).record_check("fruit", 2, "part: lost")
    assert watch(folder)["changed"] == ["[fail] fruit: damage found"]
    assert [body["payload"]["summary"] for body in pager.bodies("/v2")] == ["[fail] fruit: damage found"]


def test_an_acknowledged_alert_stays_silent(tmp_path: Path, client: PersistClient) -> None:
    said: list[str] = []
    folder = folder_of(tmp_path, "freshness: {warn: 2h, fail: 30h}\n")
    by = Notify(lambda context: said.append(context["persist_alert"]["state"]), name="list")
    complete_until(client, 20)
    watch(folder, notify=by)
    WatchBoard(client).acknowledge("fruit", "freshness", by="ann", reason="known")
    (folder / "collections" / "fruit.yaml").write_text(COLLECTION + "freshness: {warn: 2h, fail: 10h}\n")
    watch(folder, notify=by)
    assert [(each.level, each.acknowledged_by) for each in open_alerts(Inspector(client))] == [("fail", "ann")]
    complete_until(client, 0)
    watch(folder, notify=by)
    assert said == ["warn", "resolved"]


def test_the_dag_of_actions_acknowledges(tmp_path: Path, client: PersistClient) -> None:
    folder = folder_of(tmp_path, "freshness: {warn: 2h}\n")
    complete_until(client, 20)
    watch(folder)
    done = act("bob", action="ack", shard="fruit", alert="freshness", reason="known")
    assert (done["alert"], done["acknowledged_by"].partition(" ")[0], done["reason"]) == ("freshness", "bob", "known")
    with pytest.raises(AirflowFailException, match="no open alert 'errors'; open: freshness"):
        act("bob", action="ack", shard="fruit", alert="errors", reason="known")


def test_wrong_files_are_named_and_the_others_are_watched(
    tmp_path: Path, client: PersistClient, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, "freshness: {warn: 2h}\n")
    complete_until(client, 9)
    assert watch(folder)["open"] == 1
    (folder / "collections" / "fruit.yaml").write_text(COLLECTION + "freshness: {warn: 2 hourz}\n")
    (folder / "views").mkdir()
    (folder / "views" / "by_name.yaml").write_text("function: a.b:c\ninputs: fruit\nfreshness: {warn: 1h}\n")
    assert watch(folder) == {"shards": 1, "open": 2, "sent": 0, "changed": ["[fail] fruit: its file is wrong"]}
    assert watch(folder)["changed"] == [], "said once"
    assert "fruit.yaml: freshness.warn: found '2 hourz'" in caplog.text + capsys.readouterr().out
    (folder / "collections" / "fruit.yaml").write_text(COLLECTION + "freshness: {warn: 2h}\n")
    assert watch(folder)["changed"] == ["[resolved] fruit: its file is wrong"]
    (folder / "collections" / "fruit.yaml").unlink()
    assert watch(folder)["open"] == 0, "its file is gone"


def test_a_mistake_anywhere_in_a_file_is_an_alert(
    tmp_path: Path, client: PersistClient, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its DAG is gone, and no other alert would say it. The file still says whom to notify."""
    folder = folder_of(tmp_path, "notify: {notifier: log}\n")
    complete_until(client, 9)
    assert watch(folder)["open"] == 0
    file = folder / "collections" / "fruit.yaml"
    file.write_text(file.read_text().replace("name: string", "name: strng"))
    assert watch(folder) == {"shards": 0, "open": 1, "sent": 1, "changed": ["[fail] fruit: its file is wrong"]}
    assert [each.value for each in open_alerts(Inspector(client))] == [1]
    assert "columns.name.type: found 'strng'" in caplog.text + capsys.readouterr().out
    file.write_text(file.read_text().replace("strng", "string"))
    assert watch(folder)["changed"] == ["[resolved] fruit: its file is wrong"]


def test_an_open_alert_shows_the_value_and_the_limit_of_now(tmp_path: Path, client: PersistClient) -> None:
    """It was opened at one value and limit; the shard went on, and the file has another limit since."""
    folder = folder_of(tmp_path, "freshness: {warn: 2h}\n")
    complete_until(client, 9)
    watch(folder)
    (opened,) = open_alerts(Inspector(client))
    complete_until(client, 3)
    (shown,) = open_alerts(Inspector(client))
    assert 5 * HOUR < opened.value - shown.value < 7 * HOUR
    (folder / "collections" / "fruit.yaml").write_text(COLLECTION + "freshness: {warn: 1h}\n")
    watch(folder)
    (shown,) = open_alerts(Inspector(client))
    assert (opened.limit, shown.limit) == (2 * HOUR, HOUR)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{notifier: no_such.package.Notifier}", "no_such.package.Notifier cannot be imported"),
        ("{notifier: email}", "refuses its arguments"),
        ("{notifier: log, args: {level: LOUD}}", "level is 'LOUD', expected one of CRITICAL, FATAL"),
    ],
)
def test_a_notifier_that_cannot_be_made_says_why(tmp_path: Path, client: PersistClient, entry: str, said: str) -> None:
    folder = folder_of(tmp_path, f"freshness: {{warn: 2h}}\nnotify: {entry}\n")
    complete_until(client, 9)
    with pytest.raises(AirflowException, match=said):
        watch(folder)
    assert len(WatchBoard(client).read().unsent) == 1


@pytest.mark.parametrize("level", ["ERROR", 40])
def test_the_log_has_a_level_by_name_or_number(
    tmp_path: Path, client: PersistClient, caplog: pytest.LogCaptureFixture, level: object
) -> None:
    folder = folder_of(tmp_path, f"freshness: {{warn: 2h}}\nnotify: {{notifier: log, args: {{level: {level}}}}}\n")
    complete_until(client, 9)
    assert watch(folder)["sent"] == 1
    said = [each.levelno for each in caplog.records if "fruit is late" in each.getMessage()]
    assert logging.ERROR in said


def test_teams_have_notifiers_of_one_name_apart(tmp_path: Path, client: PersistClient, slack: HttpSink) -> None:
    """A team with a wrong connection keeps nothing from another team."""
    folder = folder_of(tmp_path, f"freshness: {{warn: 2h}}\nnotify: {SLACK}\n")
    wrong = "notify: {notifier: slack, args: {slack_webhook_conn_id: none}}\n"
    for name in ("a", "b", "c"):
        (folder / "collections" / f"{name}.yaml").write_text(f"{COLLECTION}freshness: {{warn: 2h}}\n{wrong}")
        commit(client, name, SCHEMA, client.clock.now_ms() - 9 * HOUR)
    complete_until(client, 9)
    with pytest.raises(AirflowException, match=r"slack did not take .* a: late") as found:
        watch(folder)
    assert len(slack.bodies("/slack")) == 1
    assert str(found.value).count("did not take") == MAX_FAILURES


@pytest.mark.parametrize("path", ["subprocess.Popen", "os.system", "airflow.sdk.BaseOperator"])
def test_a_class_that_is_no_notifier_is_not_called(tmp_path: Path, client: PersistClient, path: str) -> None:
    ran = tmp_path / "ran"
    name = {"subprocess.Popen": "args", "os.system": "command"}.get(path, "task_id")
    argument = json.dumps(["touch", str(ran)] if name == "args" else f"touch {ran}")
    folder = folder_of(
        tmp_path, f"freshness: {{warn: 2h}}\nnotify: {{notifier: {path}, args: {{{name}: {argument}}}}}\n"
    )
    complete_until(client, 9)
    said = rf"fruit: field notify of its file.*notifier {path} (is not a notifier; expected one of slack|cannot be imp)"
    with pytest.raises(AirflowException, match=said):
        watch(folder)
    assert not ran.exists()


@pytest.mark.parametrize("reached", ["conn.vault.password", "var.value.KEY", "ti.task_id", "dag_run.conf", "task.dag"])
def test_templates_of_a_yaml_file_do_not_reach_connections(
    tmp_path: Path, client: PersistClient, slack: HttpSink, monkeypatch: pytest.MonkeyPatch, reached: str
) -> None:
    """The right to write a collection's file is not the right to read Airflow's connections and variables."""
    monkeypatch.setenv("AIRFLOW_VAR_KEY", "sesame")
    monkeypatch.setenv("AIRFLOW_CONN_VAULT", connection("http", password="sesame"))
    text = "{{ persist_alert.shard }} of {{ run_id }} {{ %s }}"
    complete_until(client, 9)

    def run_with(text: str) -> None:
        args = json.dumps({"slack_webhook_conn_id": "ops_slack", "text": text})
        watch(folder_of(tmp_path, f"freshness: {{warn: 2h}}\nnotify: {{notifier: slack, args: {args}}}\n"))

    with pytest.raises(AirflowException, match=f"'{reached.partition('.')[0]}' is undefined"):
        run_with(text % reached)
    assert slack.bodies("/slack") == []
    run_with(text % "persist_alert.what")
    (body,) = slack.bodies("/slack")
    assert body["text"].startswith("fruit of ")


def test_the_configuration_reaches_the_dag(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, project='watch: {schedule: "*/10 * * * *", pool: slow}\n')
    dag: Any = build_watch_dag(folder, default_args={"owner": "ops"}, dag_args={"dag_id": "watch_lake"})
    task = dag.get_task("watch_shards")
    assert (dag.dag_id, dag.max_active_runs, dag.catchup) == ("watch_lake", 1, False)
    assert (task.pool, task.retries, task.owner, task.folder) == ("slow", 0, "ops", str(folder))
    assert load_project(folder / "persist.yaml").watch.pool == "slow"


def test_a_location_that_does_not_answer_fails_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIST_BLOB_URI", "nonsense://x")
    monkeypatch.setenv("PERSIST_CONSENSUS_URI", "nonsense://x")
    with pytest.raises(AirflowFailException, match="nonsense"):
        watch(folder_of(tmp_path))


@pytest.mark.parametrize("failing", [1, MAX_UNREAD + 1])
def test_a_shard_for_which_the_store_fails_hides_no_other(
    tmp_path: Path, client: PersistClient, slack: HttpSink, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    folder = folder_of(tmp_path, "freshness: {warn: 2h, fail: 6h}\n", f"notify: {SLACK}\n")
    for number in range(failing):
        (folder / "collections" / f"locked{number}.yaml").write_text(COLLECTION)
    complete_until(client, 9)
    contents = Inspector.contents

    def locked(self: Inspector, shard: str, **options: Any) -> Any:
        if shard.startswith("locked"):
            raise Determinate(f"{shard}: access denied")
        return contents(self, shard, **options)

    monkeypatch.setattr(Inspector, "contents", locked)
    with pytest.raises((AirflowException, PersistStepFailed), match=r"locked\d: access denied"):
        watch(folder)
    assert len(slack.bodies("/slack")) == (failing <= MAX_UNREAD)


DAG_FILE = """
# airflow DAG
from pathlib import Path
from persist_airflow.watch import build_watch_dag
dag = build_watch_dag(Path(__file__).parent)
"""
DRIVER = """
import importlib, json, sys, time
sys.path.insert(0, sys.argv[1])
from persist_airflow.hook import PersistHook
from tests.airflow.test_watch import SCHEMA
from tests.plain_commit import commit
dag = importlib.import_module("watch_dag").dag
client = PersistHook().get_conn()
states = []
for hours_ago in (9, None, 0):
    if hours_ago is not None:
        commit(client, "fruit", SCHEMA, int(time.time() * 1000) - hours_ago * 3_600_000)
    states.append(str(dag.test().state))
print(json.dumps(states))
"""


@pytest.mark.family("tasks")
def test_a_stale_shard_is_one_message_and_a_commit_one_more(
    tmp_path: Path, migrated: Path, location: PersistLocation, slack: HttpSink
) -> None:
    """Whole dag runs: late, still late, committed."""
    folder = folder_of(tmp_path, "freshness: {warn: 2h, fail: 6h}\n", f"notify: {SLACK}\n")
    (folder / "watch_dag.py").write_text(DAG_FILE)
    out = run(folder, migrated, location, "-c", DRIVER, str(folder))
    assert json.loads(out.splitlines()[-1]) == ["success"] * 3, out[-3000:]
    assert [body["text"].splitlines()[0].split(":")[0] for body in slack.bodies("/slack")] == [
        "fruit is late",
        "fruit is fresh again",
    ]
