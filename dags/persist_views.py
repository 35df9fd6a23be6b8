"""One DAG for every file in `dags/views/`: `persist_view__<name>`. See docs/views.md for what a file may say."""

from pathlib import Path

from persist_airflow.factory import build_view_dags

globals().update(build_view_dags(Path(__file__).parent / "views"))
