"""One DAG for every file in `dags/collections/`: `persist_upsert__<name>`. See docs/ for what a file may say."""

from pathlib import Path

from persist_airflow.factory import build_dags

globals().update(build_dags(Path(__file__).parent / "collections"))
