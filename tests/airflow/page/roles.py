"""An auth manager with the roles of Airflow's simple one, and one DAG that only an admin may read."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

SECRET_DAG = "persist_upsert__menace"
NO_VALUES = "NO_VALUES"  # a user name: may read DAGs, but not their XComs


class Roles(SimpleAuthManager):
    """`is_authorized_dag` is what every DAG of Airflow's own pages is checked with, too."""

    def is_authorized_dag(
        self, *, method: Any, user: Any, access_entity: DagAccessEntity | None = None, details: DagDetails | None = None
    ) -> bool:
        if details is not None and details.id == SECRET_DAG and user.role != "ADMIN":
            return False
        if access_entity is DagAccessEntity.XCOM and user.username == NO_VALUES:
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
