"""Feeds on S3: through a real scheduler, while their objects change; and the commands of docs/feeds-on-s3.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from persist_airflow.embedded.home import LocalAirflow
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.time_text import parse_time
from tests.core.sources.bucket import Bucket
from tests.e2e.test_airflow_scheduler import QUICK_RETRIES, ROOT, follow
from tests.sampling import is_long
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY
from tests.spark.s3_store import s3_server

DAYS = ("01", "02", "03", "04")
# Before the write task of a day does anything: what `meddling` says for the collection and the day, once.
DAG_FILE = f"""
# airflow DAG
from datetime import timedelta
from pathlib import Path
from persist_airflow.factory import build_dags
from tests.e2e.test_feeds_on_s3 import meddle
meddle(Path(__file__).parents[1] / "meddling")
globals().update(build_dags(Path(__file__).parent / "collections"{QUICK_RETRIES}))
"""


def rows(*values: tuple[int, str]) -> bytes:
    return b"".join(json.dumps({"id": key, "v": v}).encode() + b"\n" for key, v in values)


def meddle(folder: Path) -> None:
    """Let the write tasks of this process change objects first."""
    import boto3

    from persist_core.protocol import run

    inner = run.write_staged

    def changed_first(client: Any, config: Any, description: Any, write: Any) -> Any:
        todo = folder / f"{config.name}-{description.lower}.json"
        if todo.exists():
            body = json.loads(todo.read_text())
            todo.unlink()
            s3 = boto3.client("s3", endpoint_url=body["endpoint"], region_name="us-east-1",
                              aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)  # fmt: skip
            if body["data"] is None:
                s3.delete_object(Bucket=body["bucket"], Key=body["name"])
            else:
                s3.put_object(Bucket=body["bucket"], Key=body["name"], Body=body["data"].encode())
            s3.close()
        return inner(client, config, description, write)

    run.write_staged = changed_first


class Vendors:
    """Two buckets, one with versions, each with two objects a day, and an Airflow home that reads them."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path, home: Path) -> None:
        server = s3_server(request)
        self.buckets = {"plain": Bucket(server), "versioned": Bucket(server, is_versioned=True)}
        collections = folder / "dags" / "collections"
        collections.mkdir(parents=True)
        (folder / "meddling").mkdir()
        (folder / "dags" / "dags.py").write_text(DAG_FILE)
        location = PersistLocation(f"file://{folder}/blob", f"sqlite:///{folder}/consensus.db")
        settings = {
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
            "PYTHONPATH": str(ROOT),
        }
        for name, bucket in self.buckets.items():
            settings[f"PERSIST_CONNECTION_{name.upper()}"] = bucket.connection
            (collections / f"{name}.yaml").write_text(
                f"source: {{path: 's3://{bucket.name}/feed/{{date:%Y/%m/%d}}/*.jsonl', format: json,"
                f" connection: {name}}}\nkey: id\ncolumns: {{id: bigint, v: string}}\ndelete: none\ntime: path\n"
                "start_date: 2026-01-01\n"
            )
            for day in DAYS:
                for number, letter in enumerate("ab"):
                    bucket.put(f"2026/01/{day}/{letter}.jsonl", rows((int(day) * 10 + number, f"{letter}{day}")))
            changes = {
                "01": ("late.jsonl", rows((12, "late"))),
                "02": ("a.jsonl", rows((20, "xxx"))),
                "03": ("b.jsonl", None),
            }
            for day, (file, data) in changes.items():
                body = {"endpoint": server.endpoint, "bucket": bucket.name, "name": f"feed/2026/01/{day}/{file}",
                        "data": data and data.decode()}  # fmt: skip
                path = folder / "meddling" / f"{name}-{parse_time(f'2026-01-{day}')}.json"
                # The first batch of a shard starts at 0. The plain feed's day 3 starts at day 2, which failed.
                (path.with_name(f"{name}-0.json") if day == "01" else path).write_text(json.dumps(body))
        self.airflow = LocalAirflow(home, folder / "dags", location, settings)


@pytest.fixture
def vendors(request: pytest.FixtureRequest, tmp_path: Path, home: Path) -> Iterator[Vendors]:
    made = Vendors(request, tmp_path, home)
    yield made
    made.airflow.stop()


@pytest.mark.skipif(not is_long(), reason="takes minutes (PERSIST_PROFILE=nightly)")
def test_objects_that_come_late_change_and_vanish_after_minting(vendors: Vendors) -> None:
    """Day 1: one comes late. Day 2: one is replaced. Day 3, with versions: one is deleted. Each between mint and write.

    Without versions the dag run of day 2 fails, and the next one reads what is there then.
    """
    airflow, ids = vendors.airflow, {name: f"persist_upsert__{name}" for name in vendors.buckets}
    airflow.prepare()
    for dag_id in ids.values():
        airflow.command(
            "backfill", "create", "--dag-id", dag_id, "--from-date", "2026-01-01", "--to-date", "2026-01-04"
        )
    with airflow.running(), watched_processes() as told:
        assert follow(airflow, *ids.values()) == {
            ids["plain"]: ["success", "failed", "success", "success"],
            ids["versioned"]: ["success"] * 4,
        }
        tables = {"xcom": "value", "rendered_task_instance_fields": "rendered_fields", "serialized_dag": "data"}
        kept = [str(row) for table, column in tables.items() for row in airflow.query(f"select {column} from {table}")]
    assert len(kept) > len(DAYS), "XCom, and what templates made"
    assert any("persist_spark" in command for command in told), "a job was seen"
    assert not [command for command in told if SECRET_KEY in command]
    common = {10: "a01", 11: "b01", 12: "late", 21: "b02", 30: "a03", 31: "b03", 40: "a04", 41: "b04"}
    expected = {"plain": common | {20: "xxx"}, "versioned": common | {20: "a02"}}
    with open_location(airflow.location) as opened:
        client = PersistClient(opened)
        for name, contents in expected.items():
            assert {row["id"]: row["v"] for row in client.open_reader(name).snapshot().to_pylist()} == contents
            assert fsck(client, name).is_clean
    logs = [path.read_text(errors="replace") for path in airflow.home.rglob("*.log")]
    assert logs
    assert not [text for text in (*logs, *kept) if SECRET_KEY in text]


@contextmanager
def watched_processes() -> Iterator[set[str]]:
    """The command lines of all processes that run meanwhile (Linux)."""
    told, is_over = set[str](), Event()

    def look() -> None:
        while not is_over.wait(0.2):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    told.add(path.read_text(errors="replace"))

    watcher = Thread(target=look)
    watcher.start()
    try:
        yield told
    finally:
        is_over.set()
        watcher.join()


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "feeds-on-s3.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.family("days of a source")
def test_the_commands_of_the_page_run_and_show_no_secret(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """As they are written, in a shell, but for the address of the bucket; with Spark's event log, and a verbose log."""
    server = s3_server(request)
    server.raw.create_bucket(Bucket="vendor-bucket")
    for day in ("01", "02"):
        body = f'{{"id": {int(day)}, "status": "new"}}\n'.encode()
        server.raw.put_object(Bucket="vendor-bucket", Key=f"feed/orders/2026/01/{day}/a.jsonl", Body=body)
    (tmp_path / "dags" / "collections").mkdir(parents=True)
    (tmp_path / "dags" / "collections" / "orders.yaml").write_text(blocks("yaml")[0])
    (tmp_path / "events").mkdir()
    (tmp_path / "persist.toml").write_text(
        f"blob_uri = 'file://{tmp_path}/blob'\nconsensus_uri = 'sqlite:///{tmp_path}/consensus.db'\n"
    )
    address = f"endpoint={server.endpoint}&access_key_id={ACCESS_KEY}&secret_access_key={SECRET_KEY}"
    script = "\n".join(line.removeprefix("$ ") for line in blocks("console")[0].splitlines())
    assert script.count("region=eu-west-1&profile=vendor") == 1
    script = script.replace("region=eu-west-1&profile=vendor", address)
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{tmp_path}/events",
            "spark.log.level": "INFO"}  # fmt: skip
    options = " ".join(f"--conf {shlex.quote(f'{name}={value}')}" for name, value in conf.items())
    script = re.sub(r"(persist run .*)", rf"\1 --logs {tmp_path}/logs {options}", script)
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PERSIST_", "AWS_ACCESS", "AWS_S"))
    }
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, env={**clean, "PATH": path}, text=True, timeout=300,
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 files" in done.stdout
    assert re.search(r"1 │ new .*\n.*2 │ new", done.stdout)
    seen = [
        each.read_bytes()
        for name in ("logs", "events", "blob")
        for each in (tmp_path / name).rglob("*")
        if each.is_file()
    ]
    assert len(seen) > 3
    assert not [text for text in seen if SECRET_KEY.encode() in text]
    assert SECRET_KEY not in done.stdout + done.stderr
