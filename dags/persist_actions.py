"""The DAG `persist_actions`: one action on one shard, by hand. See docs/reference/airflow.md, Actions."""

from pathlib import Path

from persist_airflow.actions import build_actions_dag

dag = build_actions_dag(collections=Path(__file__).parent / "collections")
