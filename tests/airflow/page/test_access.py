"""Who sees what: without a session, by role, without rights on the DAG; and what every answer carries."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import insert, select, update

from persist_airflow.page.answers import READS
from persist_core.alerts import health
from persist_core.alerts.health import open_alerts
from persist_core.alerts.record import RECORD_KEY
from persist_core.handles.client import PersistClient
from persist_core.inspection import summaries
from persist_core.inspection.days import Loaded
from persist_core.inspection.inspector import Inspector
from persist_core.location.consensus import VersionedData
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.sources.source import ConsumedInput
from tests.airflow.page.conftest import Browse
from tests.airflow.page.roles import NO_VALUES
from tests.airflow.page.shop import SCRIPT

ENDPOINTS = [
    *("shards", "shard", "commits", "days", "batches", "storage", "checkpoints", "conflicts"),
    *("rows", "errors", "changes", "differences"),
]
ARGUMENTS = {"after": "0", "a": "4", "b": "4"}  # what some of them need
PLACE = {"conn_id": "persist_default"}
CUSTOMERS, MENACE = ({**PLACE, "shard": shard} for shard in ("customers", "menace"))
FORK = {**PLACE, "shard": "customers-before-the-sale"}


def shards_of(body: dict[str, Any]) -> list[str]:
    return [shard["shard"] for place in body["locations"] for shard in place["shards"]]


def test_without_a_session_there_are_no_facts(browse: Browse) -> None:
    stranger = browse(None)
    for endpoint in ENDPOINTS:
        answer = stranger.get(f"/persist/api/{endpoint}", params={**CUSTOMERS, **ARGUMENTS})
        assert (answer.status_code, answer.json()) == (401, {"detail": "Not authenticated"})
    stranger.cookies.set("_token", "forged")
    assert stranger.get("/persist/api/shards").status_code in (401, 403)
    stranger.cookies.clear()
    page = stranger.get("/persist/?conn_id=c&shard=s")
    assert page.status_code == 307
    login = urlsplit(page.headers["location"])
    assert login.path == "../api/v2/auth/login"
    assert parse_qs(login.query)["next"] == ["/persist/?conn_id=c&shard=s"]


def test_a_bearer_token_will_do(browse: Browse) -> None:
    token = browse("VIEWER").cookies["_token"]
    answer = browse(None).get("/persist/api/shards", headers={"Authorization": f"Bearer {token}"})
    assert shards_of(answer.json()) == ["customers"]


def alerts_of(body: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((alert["shard"], alert["alert"]) for place in body["locations"] for alert in place["alerts"])


def test_an_alert_is_seen_with_its_shard(browse: Browse, shop_location: PersistLocation) -> None:
    late = ("customers", "freshness")
    viewer, admin = browse("VIEWER"), browse("ADMIN")
    assert alerts_of(viewer.get("/persist/api/shards").json()) == [("customers", "errors"), late]
    everything = [("customers", "errors"), late, ("menace", "errors"), ("not-there-yet", "freshness")]
    assert alerts_of(admin.get("/persist/api/shards").json()) == everything
    (first, second) = viewer.get("/persist/api/shard", params=CUSTOMERS).json()["alerts"]
    assert (first["alert"], first["level"], first["name"]) == ("freshness", "fail", "late")
    assert second["command"] == "persist errors customers"
    (menace,) = admin.get("/persist/api/shard", params=MENACE).json()["alerts"]
    with open_location(shop_location) as opened:
        assert [menace] == [asdict(alert) for alert in open_alerts(Inspector(PersistClient(opened)), "menace")]


def test_the_page_of_a_shard_looks_at_no_other_alerts(browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a state and a listing."""
    looked: list[list[str]] = []
    healths = health.healths

    def counted(inspector: Inspector, shards: Iterable[str], unread: Any) -> Any:
        looked.append(sorted(shards))
        return healths(inspector, shards, unread)

    monkeypatch.setattr(health, "healths", counted)
    assert browse("ADMIN").get("/persist/api/shard", params=CUSTOMERS).status_code == 200
    assert looked == [["customers"]]


def test_a_damaged_record_of_alerts_hides_nothing_else(browse: Browse, shop_location: PersistLocation) -> None:
    with open_location(shop_location) as opened:
        head = opened.consensus.head(RECORD_KEY)
        assert head is not None
        opened.consensus.compare_and_set(RECORD_KEY, head.seqno, VersionedData(head.seqno + 1, b"damaged"))
        try:
            shard = browse("VIEWER").get("/persist/api/shard", params=CUSTOMERS).json()
            assert (shard["alerts"], shard["shard"]) == (None, "customers")
        finally:
            whole = VersionedData(head.seqno + 2, head.data)
            opened.consensus.compare_and_set(RECORD_KEY, head.seqno + 1, whole)


def test_a_viewer_sees_the_shards_of_readable_dags(browse: Browse) -> None:
    viewer = browse("VIEWER")
    body = viewer.get("/persist/api/shards").json()
    assert shards_of(body) == ["customers"]
    assert body["locations"][0]["location"] is None  # who may read the connection may know the store's address
    assert viewer.get("/persist/").status_code == 200
    shard = viewer.get("/persist/api/shard", params=CUSTOMERS).json()
    everything, own = shard["airflow"]["action_dags"]
    assert own == {"dag_id": "persist_upsert__customers", "actions": []}
    assert (everything["dag_id"], {"run", "ack"} - {*everything["actions"]}) == ("persist_actions", set())
    assert "| key | `id` |" in shard["airflow"]["document"]
    for endpoint in ENDPOINTS:
        answer = viewer.get(f"/persist/api/{endpoint}", params={**CUSTOMERS, **ARGUMENTS})
        assert answer.status_code == 200, answer.text


def test_a_moved_shards_place_needs_rights_on_its_connection(browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    summary_of = summaries.summary_of

    def moved(*arguments: Any, **named: Any) -> Any:
        return replace(summary_of(*arguments, **named), moved_to="blob s3://elsewhere, consensus s3://elsewhere")

    monkeypatch.setattr("persist_airflow.page.site.FRESH_MS", 0)
    monkeypatch.setattr("persist_airflow.page.site.REOPEN_MS", 0)
    with monkeypatch.context() as patched:
        patched.setattr(summaries, "summary_of", moved)
        for role, shown in (("VIEWER", "another location"), ("ADMIN", "blob s3://elsewhere, consensus s3://elsewhere")):
            listed = browse(role).get("/persist/api/shards")
            found = {shard["shard"]: shard["moved_to"] for shard in listed.json()["locations"][0]["shards"]}
            assert found["customers"] == shown
            answer = browse(role).get("/persist/api/shard", params=CUSTOMERS)
            assert answer.json()["moved_to"] == shown
            assert ("s3://elsewhere" in answer.text + listed.text) == (role == "ADMIN")
    (place,) = browse("ADMIN").get("/persist/api/shards").json()["locations"]  # opens the location again
    assert {shard["moved_to"] for shard in place["shards"]} == {None}


def test_a_teams_dag_of_actions_names_its_shards_and_rights(browse: Browse) -> None:
    shard = browse("ADMIN").get("/persist/api/shard", params={**CUSTOMERS, "shard": "just-made"}).json()
    everything, team = shard["airflow"]["action_dags"]
    assert everything["dag_id"] == "persist_actions"
    assert team == {"dag_id": "team_actions", "actions": ["fsck", "pin"]}


def test_an_admin_sees_everything(browse: Browse) -> None:
    admin = browse("ADMIN")
    body = admin.get("/persist/api/shards").json()
    assert shards_of(body) == ["customers", "customers-before-the-sale", "just-made", "menace"]
    assert body["locations"][0]["location"].startswith("file:///")
    for shard in (MENACE, FORK):
        assert admin.get("/persist/api/rows", params=shard).status_code == 200


@pytest.mark.parametrize("endpoint", ENDPOINTS[1:])
def test_a_shard_is_hidden_without_rights_on_its_dag(browse: Browse, endpoint: str) -> None:
    for role, shards in {
        "OP": ("menace", None),
        "VIEWER": ("menace", "customers-before-the-sale", "no-such-shard"),
    }.items():
        for shard in filter(None, shards):
            answer = browse(role).get(f"/persist/api/{endpoint}", params={**PLACE, "shard": shard, **ARGUMENTS})
            assert (answer.status_code, answer.json()["error"]["kind"]) == (403, "forbidden"), (role, shard)
            assert "Oslo" not in answer.text


@pytest.mark.parametrize("endpoint", ENDPOINTS[1:])
@pytest.mark.parametrize("purpose", ["g3", "reprocess", "rebuild"])
def test_a_hidden_shard_is_seen_with_the_one_it_works_for(browse: Browse, endpoint: str, purpose: str) -> None:
    facts, contents = 400, 404  # only contents are shown of a hidden shard; this one is missing
    seen = contents if endpoint in READS else facts
    for role, shard, status in (("OP", "menace", 403), ("VIEWER", "menace", 403), ("VIEWER", "customers", seen)):
        given = {**PLACE, "shard": f"{shard}~{purpose}", **ARGUMENTS}
        answer = browse(role).get(f"/persist/api/{endpoint}", params=given)
        assert answer.status_code == status, (role, shard, answer.text)


def test_an_operator_sees_shards_without_a_dag(browse: Browse) -> None:
    operator = browse("OP")
    assert shards_of(operator.get("/persist/api/shards").json()) == [
        "customers",
        "customers-before-the-sale",
        "just-made",
    ]
    assert operator.get("/persist/api/rows", params=FORK).status_code == 200
    answer = operator.get("/persist/api/shard", params={**PLACE, "shard": "no-such-shard"})
    assert (answer.status_code, answer.json()["error"]["kind"]) == (404, "shard_not_found")
    assert operator.get("/persist/api/shard", params={"conn_id": "other", "shard": "x"}).status_code == 403


def test_rows_need_the_right_to_read_xcoms(browse: Browse, airflow_api: Any) -> None:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    user = browse(None)
    user.cookies.set(
        "_token", airflow_api.state.auth_manager.generate_jwt(SimpleAuthManagerUser(username=NO_VALUES, role="VIEWER"))
    )
    assert user.get("/persist/api/shard", params=CUSTOMERS).json()["shows_rows"] is False
    for endpoint in ("rows", "errors", "changes", "differences"):
        assert user.get(f"/persist/api/{endpoint}", params={**CUSTOMERS, **ARGUMENTS}).status_code == 403


def test_differences_are_with_shards_that_a_user_may_see(browse: Browse) -> None:
    for other in ("menace", "customers-before-the-sale", "no-such-shard"):
        given = {**CUSTOMERS, "a": other, "b": "now"}
        answer = browse("VIEWER").get("/persist/api/differences", params=given)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (403, "forbidden"), other
        answer = browse("VIEWER").get("/persist/api/differences", params={**given, "a": "0", "b": other})
        assert answer.status_code == 403
    fork = browse("ADMIN").get("/persist/api/differences", params={**CUSTOMERS, "a": FORK["shard"], "b": FORK["shard"]})
    assert "0 rows added, 0 removed, 0 changed" in fork.json()["said"]


def test_names_of_files_need_the_right_to_see_rows(browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shop's commits have no files, so each gets one here."""
    known = Inspector.loads

    def with_files(*given: Any, **options: Any) -> list[Loaded]:
        return [replace(load, inputs=(ConsumedInput("ann@example.com.jsonl"),)) for load in known(*given, **options)]

    monkeypatch.setattr(Inspector, "loads", with_files)
    admin = browse("ADMIN")
    assert "ann@example.com" in admin.get("/persist/api/days", params=CUSTOMERS).text
    monkeypatch.setenv("AIRFLOW__PERSIST__PAGE_ROWS", "False")
    answer = admin.get("/persist/api/days", params=CUSTOMERS)
    assert "ann@example.com" not in answer.text
    assert sum(day["files_total"] for day in answer.json()["days"]) == 12


def test_rows_can_be_switched_off(browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__PERSIST__PAGE_ROWS", "False")
    admin = browse("ADMIN")
    assert admin.get("/persist/api/shard", params=CUSTOMERS).json()["shows_rows"] is False
    assert admin.get("/persist/api/rows", params=CUSTOMERS).status_code == 403


def test_nothing_but_get_is_answered(browse: Browse) -> None:
    admin = browse("ADMIN")
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert admin.request(method, "/persist/api/shards").status_code == 405


@pytest.mark.parametrize(
    ("endpoint", "given", "status"),
    [
        ("nothing", {}, 404),
        ("shard", {}, 400),
        ("rows", {"as_of": "some time"}, 400),
        ("rows", {"as_of": "9999-01-01"}, 404),
        ("rows", {"as_of": "9" * 30}, 400),
        ("rows", {"limit": "100000"}, 400),
        ("rows", {"offset": "-1"}, 400),
        ("rows", {"key": "one"}, 400),
        ("commits", {"before": "x"}, 400),
        ("changes", {}, 400),
    ],
)
def test_wrong_arguments_are_named(browse: Browse, endpoint: str, given: dict[str, str], status: int) -> None:
    base = CUSTOMERS if given or endpoint == "changes" else {}
    answer = browse("VIEWER").get(f"/persist/api/{endpoint}", params={**base, **given})
    assert answer.status_code == status, answer.text


def test_every_answer_forbids_foreign_scripts(browse: Browse) -> None:
    for path in (
        "/persist/",
        "/persist/static/page.js",
        "/persist/api/shards",
        "/persist/api/nothing",
        "/persist/nothing",
    ):
        headers = browse("ADMIN").get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert policy["frame-ancestors"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] in ("no-cache", "no-store")


def test_hostile_content_comes_as_json_only(browse: Browse) -> None:
    admin = browse("ADMIN")
    for endpoint in ENDPOINTS[1:]:
        answer = admin.get(f"/persist/api/{endpoint}", params={**MENACE, **ARGUMENTS})
        assert answer.headers["content-type"] == "application/json", endpoint
        json.loads(answer.text)
    assert SCRIPT in admin.get("/persist/api/commits", params=MENACE).json()["commits"][0]["writer"]
    assert SCRIPT not in admin.get(f"/persist/?shard={SCRIPT}&conn_id={SCRIPT}").text


def test_behind_a_base_path(browse: Browse) -> None:
    answer = browse(None, root_path="/airflow").get("/airflow/persist/?text=x")
    assert parse_qs(urlsplit(answer.headers["location"]).query)["next"] == ["/airflow/persist/?text=x"]
    page = browse("VIEWER", root_path="/airflow").get("/airflow/persist/").text
    assert 'src="/' not in page
    assert 'href="/' not in page
    assert "http" not in page


def test_a_dag_that_is_gone_counts_if_it_is_the_only_one(airflow_api: Any) -> None:
    """As one that wrote the collection before it came into a group."""
    from airflow.models.asset import TaskOutletAssetReference
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    from persist_airflow.page.metadata import writers

    assert airflow_api is not None
    before, now = "persist_group__before", "persist_upsert__customers"
    dags = DagModel.__table__
    with create_session() as session:
        try:
            for table in (dags, TaskOutletAssetReference.__table__):
                rows = session.execute(select(table).where(table.c.dag_id == now)).mappings()
                session.execute(insert(table), [{**row, "dag_id": before} for row in rows])
            for gone, counting in (((), (before, now)), ((before,), (now,)), ((before, now), (before, now))):
                session.execute(update(dags).where(dags.c.dag_id.in_(gone)).values(is_stale=True))
                assert writers(session)["persist_default"]["customers"] == counting
        finally:
            session.rollback()
