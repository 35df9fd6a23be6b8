"""The metadata of this package for Airflow (entry point group `apache_airflow_provider`).

Airflow calls `get_provider_info` while it is still reading its own configuration, so nothing of Airflow may be
imported here: every class is named by its path and loaded when it is first needed.
"""

from __future__ import annotations

from typing import Any

CONNECTION_TYPE = "persist"
HOOK_CLASS = "persist_airflow.hook.PersistHook"

FORM_FIELDS: dict[str, dict[str, Any]] = {
    "blob_uri": {
        "label": "Blob URI",
        "description": "Where parts, manifests and checkpoints are kept: file:///var/lib/persist/blob (a folder that"
        " all workers share), s3://bucket/prefix, or mem:name (memory of one process, for tests)",
        "schema": {"type": ["string", "null"]},
    },
    "consensus_uri": {
        "label": "Consensus URI",
        "description": "Where the state of the shards is kept: postgresql://host/database (user and password go into"
        " fields of their own), sqlite:////var/lib/persist/consensus.db (one machine), s3://bucket/prefix,"
        " or mem:name (memory of one process, for tests)",
        "schema": {"type": ["string", "null"]},
    },
    "aws_conn_id": {
        "label": "AWS connection",
        "description": "The Airflow AWS connection with the credentials for s3:// URIs; empty: AWS's default"
        " credential chain",
        "schema": {"type": ["string", "null"]},
    },
}
# Not the port, which has no other use: Airflow 3.3.2 tests a stored connection only with its stored port, and the Test
# button sends 0 for none.
HIDDEN_FIELDS = ["host", "schema", "extra"]
RELABELED = {
    "login": "Database user",
    "password": "Database password",
    "port": "Port (always 0: the Test button needs it)",
}
PLACEHOLDERS = {
    "blob_uri": "file:///var/lib/persist/blob",
    "consensus_uri": "sqlite:////var/lib/persist/consensus.db",
    "port": "0",
}


def get_provider_info() -> dict[str, Any]:
    """The provider's metadata, in the form of Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "airflow-persist",
        "name": "Persist",
        "description": "Correct, incremental, replayable tables from change feeds.",
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": HOOK_CLASS,
                "hook-name": "Persist",
                "ui-field-behaviour": {
                    "hidden-fields": HIDDEN_FIELDS,
                    "relabeling": RELABELED,
                    "placeholders": PLACEHOLDERS,
                },
                "conn-fields": FORM_FIELDS,
            }
        ],
        "hooks": [{"integration-name": "Persist", "python-modules": ["persist_airflow.hook"]}],
        "operators": [
            {
                "integration-name": "Persist",
                "python-modules": [
                    "persist_airflow.operators",
                    "persist_airflow.maintenance",
                    "persist_airflow.watch",
                    "persist_airflow.actions",
                ],
            }
        ],
        "sensors": [{"integration-name": "Persist", "python-modules": ["persist_airflow.sensors"]}],
        "triggers": [{"integration-name": "Persist", "python-modules": ["persist_airflow.triggers"]}],
        "integrations": [{"integration-name": "Persist", "external-doc-url": "", "tags": ["software"]}],
        "extra-links": ["persist_airflow.links.ShardLink"],
        "notifications": ["persist_airflow.notifications.LogNotifier"],
    }
