"""The demo without Airflow: `persist run customers` with a real Spark, against a plain replay of the feed.

tests/e2e/test_spark_on_s3.py runs the same days on S3.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from persist_core.cli.main import run_command
from persist_core.location.settings import PersistLocation
from tests.core.feed_replay import check_days
from tests.core.make_feed import DAYS, FOLDER
from tests.sampling import is_long
from tests.servers.backends import on_postgresql

COLLECTIONS = FOLDER.parents[1] / "collections"

pytest.importorskip("pyspark", reason="the write stage needs Spark")
if shutil.which("java") is None:
    pytest.skip("the write stage needs Java", allow_module_level=True)


@pytest.fixture(params=["Spark Connect", *(["local[2]"] if is_long() else [])])
def master(request: pytest.FixtureRequest) -> str:
    """In a server Spark starts once for all jobs. A Spark for each job is at night, and in tests/e2e on S3."""
    is_server = request.param == "Spark Connect"
    return str(request.getfixturevalue("connect_server").url if is_server else request.param)


@on_postgresql
@pytest.mark.family("days of a source")
def test_the_bundled_feed_becomes_the_right_table_at_every_day(
    tmp_path: Path,
    consensus_uri: str,
    master: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    location = PersistLocation(f"file://{tmp_path}/blobs", consensus_uri)
    for name, value in location.to_env().items():
        monkeypatch.setenv(name, value)

    def persist(*arguments: str) -> list[dict[str, Any]]:
        code = run_command([*arguments, "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return [json.loads(line) for line in captured.out.splitlines()]

    for until in ("2026-01-04", "2026-01-08"):
        (report,) = persist("run", "customers", "--collections", str(COLLECTIONS), "--until", until, "--master", master)
        assert (report["status"], report["conflicts"]) == ("committed", 0)
    by_day = {day: persist("snapshot", "customers", "--as-of", f"2026-01-0{day}") for day in range(1, DAYS + 1)}
    errors = {day: persist("errors", "customers", "--as-of", f"2026-01-0{day}") for day in by_day}
    check_days(by_day, errors)
    assert all([row["id"] for row in rows] == sorted(row["id"] for row in rows) for rows in by_day.values())
    (check,) = persist("fsck", "customers")
    assert check["is_clean"]
    (again,) = persist("run", "customers", "--collections", str(COLLECTIONS), "--until", "2026-01-08")
    assert again["status"] == "up_to_date"
