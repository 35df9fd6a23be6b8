"""`persist doctor` on S3: harmful rules, a server with wrong answers, and that it leaves nothing behind."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from persist_core.clock import SystemClock
from persist_core.ids import RandomIds
from persist_core.location import S3Blob, S3Consensus, open_blob, open_consensus
from persist_core.location.finding import Finding, Grade
from persist_core.location.s3.diagnosis import transport
from persist_core.maintenance.doctor import Examiner
from tests.core.location.s3_wire import Answer, Wire
from tests.servers.s3 import S3Server

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "locations-s3.md"


def findings(store: S3Blob | S3Consensus, **answers: Any) -> dict[str, Finding]:
    """The diagnosis, by check; settings of the bucket as `answers` says (by operation), whatever the server has."""

    def answer(operation: str) -> Any:
        return lambda **_: (_Response(), answers[operation])

    client = store._client if isinstance(store, S3Blob) else store._logs.client
    for operation in answers:
        client.api.meta.events.register_first(f"before-call.s3.{operation}", answer(operation))
    return {finding.check: finding for finding in store.diagnose(SystemClock())}


class _Response:
    status_code = 200


@pytest.fixture
def blob(versitygw: S3Server) -> Any:
    made = open_blob(versitygw.new_uri("persist"))
    yield made
    made.close()


def rule(**parts: Any) -> dict[str, Any]:
    return {"Rules": [{"ID": "r1", "Status": "Enabled", "Filter": {"Prefix": ""}, **parts}]}


def test_a_plain_bucket(blob: S3Blob) -> None:
    found = findings(blob)
    assert found["clock"].grade is Grade.OK
    assert found["transport"].grade is Grade.OK
    assert all(finding.grade is not Grade.PROBLEM for finding in found.values())


@pytest.mark.parametrize(
    ("lifecycle", "check", "grade"),
    [
        (rule(Expiration={"Days": 30}), "lifecycle", Grade.PROBLEM),
        (rule(Expiration={"Days": 30}, Filter={"Prefix": "persist/customers"}), "lifecycle", Grade.PROBLEM),
        (rule(Expiration={"Days": 30}, Filter={"And": {"Prefix": "per"}}), "lifecycle", Grade.PROBLEM),
        (rule(Expiration={"Days": 30}, Filter={"Prefix": "other/"}), "lifecycle", Grade.OK),
        (rule(Expiration={"Days": 30}, Status="Disabled"), "lifecycle", Grade.OK),
        (rule(Expiration={"ExpiredObjectDeleteMarker": True}), "lifecycle", Grade.OK),
        (rule(Transitions=[{"Days": 1, "StorageClass": "DEEP_ARCHIVE"}]), "archiving", Grade.PROBLEM),
        (rule(Transitions=[{"Days": 1, "StorageClass": "STANDARD_IA"}]), "archiving", Grade.OK),
        ({}, "unfinished_uploads", Grade.WARNING),
        (rule(), "unfinished_uploads", Grade.WARNING),
        (rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 7}), "unfinished_uploads", Grade.OK),
        (rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1}), "unfinished_uploads", Grade.WARNING),
        (
            rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 7}, Filter={"Prefix": "persist/customers/"}),
            "unfinished_uploads",
            Grade.WARNING,
        ),
    ],
)
def test_lifecycle_rules(blob: S3Blob, lifecycle: dict[str, Any], check: str, grade: Grade) -> None:
    found = findings(blob, GetBucketLifecycleConfiguration=lifecycle)[check]
    assert found.grade is grade
    assert (found.remedy != "") == (grade is not Grade.OK)


def test_uploads_that_are_aborted_early_are_named(blob: S3Blob) -> None:
    hasty = rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1})
    found = findings(blob, GetBucketLifecycleConfiguration=hasty)["unfinished_uploads"]
    assert "r1 (after 1 d)" in found.found
    assert "DaysAfterInitiation" in found.remedy


def test_the_documented_rule_passes(blob: S3Blob) -> None:
    text = DOCUMENT.read_text()
    found = re.search(r"<!-- lifecycle -->\s*```json\n(.*?)```", text, re.DOTALL)
    assert found is not None
    findings_of = findings(blob, GetBucketLifecycleConfiguration=json.loads(found[1]))
    assert {name: findings_of[name].grade for name in ("lifecycle", "archiving", "unfinished_uploads")} == {
        "lifecycle": Grade.OK, "archiving": Grade.OK, "unfinished_uploads": Grade.OK
    }  # fmt: skip


def test_consensus_makes_no_uploads(versitygw: S3Server) -> None:
    with closing(open_consensus(versitygw.new_uri("persist"))) as consensus:
        assert isinstance(consensus, S3Consensus)
        found = findings(consensus, GetBucketLifecycleConfiguration=rule(Expiration={"Days": 30}))
    assert found["lifecycle"].grade is Grade.PROBLEM
    assert "unfinished_uploads" not in found


def test_versioning_and_object_lock(blob: S3Blob) -> None:
    lock = {"ObjectLockConfiguration": {"Rule": {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 9}}}}
    found = findings(blob, GetBucketVersioning={"Status": "Enabled"}, GetObjectLockConfiguration=lock)
    assert found["versioning"].grade is Grade.WARNING
    assert found["object_lock"].grade is Grade.WARNING


def test_settings_that_may_not_be_seen(blob: S3Blob) -> None:
    Wire(blob).script("GetBucketVersioning", Answer(403))
    found = findings(blob)["versioning"]
    assert found.grade is Grade.WARNING
    assert "docs/locations-s3.md" in found.remedy


@pytest.mark.parametrize(
    ("endpoint", "grade"),
    [
        ("http://s3.example.org", Grade.WARNING),
        ("https://s3.example.org", Grade.OK),
        ("http://localhost:9000", Grade.OK),
        (None, Grade.OK),
    ],
)
def test_plain_http_to_another_machine_is_warned_of(endpoint: str | None, grade: Grade) -> None:
    assert transport(endpoint).grade is grade


def test_the_doctor_examines_both_and_leaves_nothing(versitygw: S3Server) -> None:
    uri = versitygw.new_uri("persist")
    examiner = Examiner(SystemClock(), RandomIds(), commits=10)
    consensus, blob = open_consensus(uri), open_blob(uri)
    for found in (examiner.consensus(consensus), examiner.blob(blob)):
        assert [finding for finding in found if finding.grade is Grade.PROBLEM] == []
        assert len(found) > 5
    bucket = uri.removeprefix("s3://").partition("/")[0]
    assert "Contents" not in versitygw.raw.list_objects_v2(Bucket=bucket)
    consensus.close()
    blob.close()
