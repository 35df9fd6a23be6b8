"""The common part of the DAGs that look after a whole location: maintenance, watch, actions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from persist_airflow.compat import DAG


def location_dag(
    dag_id: str,
    *,
    tag: str,
    document: str,
    defaults: Mapping[str, Any],
    default_args: Mapping[str, Any] | None,
    dag_args: Mapping[str, Any] | None,
    **arguments: Any,
) -> DAG:
    """A DAG whose runs have no data of an interval, so that there is nothing to catch up on.

    `default_args`, the user's, go over `defaults`; `dag_args`, the user's, go over all arguments of the DAG.
    """
    arguments |= {
        "dag_id": dag_id,
        "start_date": datetime(1970, 1, 1, tzinfo=UTC),
        "catchup": False,
        "tags": ["persist", tag],
        "doc_md": document,
        "default_args": {**defaults, **(default_args or {})},
    }
    return DAG(**{**arguments, **(dag_args or {})})
