"""The DAG `persist_watch`: it alerts when a shard is late, holds errors or is damaged. See docs/alerts.md."""

from pathlib import Path

from persist_airflow.watch import build_watch_dag

dag = build_watch_dag(Path(__file__).parent)
