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
        "description": "Where parts, manifests and checkpoints are kept, e.g. file:///var/lib/persist/blob",
        "schema": {"type": ["string", "null"]},
    },
    "consensus_uri": {
        "label": "Consensus URI",
        "description": "Where the state of the shards is kept, e.g. sqlite:////var/lib/persist/consensus.db or"
        " postgresql://host/database (user and password go into the fields above)",
        "schema": {"type": ["string", "null"]},
    },
    "aws_conn_id": {
        "label": "AWS connection",
        "description": "The Airflow AWS connection with the credentials for s3:// URIs; empty: AWS's default"
        " credential chain",
        "schema": {"type": ["string", "null"]},
    },
}
HIDDEN_FIELDS = ["host", "schema", "port", "extra"]
RELABELED = {"login": "Database user", "password": "Database password"}
PLACEHOLDERS = {
    "blob_uri": "file:///var/lib/persist/blob",
    "consensus_uri": "sqlite:////var/lib/persist/consensus.db",
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
                ],
            }
        ],
        "sensors": [{"integration-name": "Persist", "python-modules": ["persist_airflow.sensors"]}],
        "triggers": [{"integration-name": "Persist", "python-modules": ["persist_airflow.triggers"]}],
        "integrations": [{"integration-name": "Persist", "external-doc-url": "", "tags": ["software"]}],
        "extra-links": ["persist_airflow.links.ShardLink"],
        "notifications": ["persist_airflow.notifications.LogNotifier"],
        "cli": ["persist_airflow.cli.get_cli_commands"],
    }
