"""The demo without Airflow: `persist run customers` with a real Spark, against a plain replay of the feed.

tests/e2e/test_spark_on_s3.py runs the same days on S3, and compares with the embedded default.
"""

from __future__ import annotations

import base64
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from persist_core.cli.main import run_command
from persist_core.location.settings import PersistLocation
from persist_core.sources.natural_order import natural_key
from tests.core.make_feed import DAYS, FOLDER, HEALED, STAYS_BAD, make_feed
from tests.servers.backends import on_postgresql

COLLECTIONS = FOLDER.parents[1] / "collections"
COLUMNS = ("id", "name", "email", "city", "balance", "tier", "updated_at")
Rows = dict[int, dict[str, Any]]

pytest.importorskip("pyspark", reason="the write stage needs Spark")
if shutil.which("java") is None:
    pytest.skip("the write stage needs Java", allow_module_level=True)


def replay() -> dict[int, Rows]:
    """The rows at the end of each day: within a day, of each customer the record of the greatest (LSN, position)."""
    rows: Rows = {}
    by_day: dict[int, Rows] = {}
    files = make_feed()
    for day in range(1, DAYS + 1):
        newest: dict[int, tuple[tuple[int, str, int], dict[str, Any] | None]] = {}
        for name in (name for name in files if name.startswith(f"date=2026-01-0{day}/")):
            for number, line in enumerate(files[name].splitlines()):
                change = change_of(line)
                if change is not None:
                    key, lsn, row = change
                    order = (lsn, natural_key(name), number)
                    if key not in newest or newest[key][0] < order:
                        newest[key] = (order, row)
        for key, (_, row) in newest.items():
            rows.pop(key, None)
            if row is not None:
                rows[key] = row
        by_day[day] = dict(rows)
    return by_day


def change_of(line: bytes) -> tuple[int, int, dict[str, Any] | None] | None:
    """Key, LSN, and the row (`None` if it is deleted or can't be decoded); `None` for a record without a row change."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    event = event.get("payload", event)
    if "value" in event:
        return event["key"]["id"], -1, None
    image = event["after"] or event["before"]
    if event["op"] == "m" or "id" not in image:
        return None
    row = None if event["op"] == "d" else {**{name: image[name] for name in COLUMNS}, "balance": _balance(image)}
    return image["id"], event["source"]["lsn"], row if row is None or row["balance"] is not None else None


def _balance(image: dict[str, Any]) -> str | None:
    try:
        unscaled = int.from_bytes(base64.b64decode(image["balance"], validate=True), "big", signed=True)
    except ValueError:
        return None
    return format(Decimal(unscaled).scaleb(-2), ".2f") if abs(unscaled) < 10**12 else None


@on_postgresql
def test_the_bundled_feed_becomes_the_right_table_at_every_day(
    tmp_path: Path, consensus_uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
        (report,) = persist(
            "run", "customers", "--collections", str(COLLECTIONS), "--until", until, "--master", "local[2]"
        )
        assert (report["status"], report["conflicts"]) == ("committed", 0)
    for day, wanted in replay().items():
        found = persist("snapshot", "customers", "--as-of", f"2026-01-0{day}")
        assert {row["id"]: row for row in found} == wanted, f"day {day}"
        assert [row["id"] for row in found] == sorted(wanted)

    errors = {day: persist("errors", "customers", "--as-of", f"2026-01-0{day}") for day in range(1, DAYS + 1)}
    assert [len(errors[day]) for day in sorted(errors)] == [0, 0, 1, 2, 3, 3, 3]
    assert [row["id"] for row in errors[5] if row["_persist_err_kind"] == "value"] == [HEALED]
    assert [row["id"] for row in errors[6] if row["_persist_err_kind"] == "value"] == [STAYS_BAD]
    (check,) = persist("fsck", "customers")
    assert check["is_clean"]
    (again,) = persist("run", "customers", "--collections", str(COLLECTIONS), "--until", "2026-01-08")
    assert again["status"] == "up_to_date"
