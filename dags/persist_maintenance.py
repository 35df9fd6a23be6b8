"""The DAG `persist_maintenance`: it merges batches and deletes what nothing needs. See docs/storage.md, section 5."""

from pathlib import Path

from persist_airflow.maintenance import build_maintenance_dag

dag = build_maintenance_dag(Path(__file__).parent / "persist.yaml")
