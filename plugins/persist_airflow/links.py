"""The extra link from a task to its shard: the asset's page in Airflow's own UI.

The events on that page carry upper, since, counts and checkpoint of every commit, so it shows the shard's history
without a page and a login of this project.
"""

from __future__ import annotations

from typing import Any

from persist_airflow.compat import BaseOperator, BaseOperatorLink, asset_link


def shard_uri(persist_conn_id: str, shard: str) -> str:
    """The asset URI of a shard. It names the connection, not the location, so that no store's address is shown."""
    return f"persist://{persist_conn_id}/{shard}"


class ShardLink(BaseOperatorLink):
    """The button "Shard" on a task's page."""

    name = "Shard"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """A URL of Airflow's UI; empty if the operator has no shard."""
        shard = getattr(operator, "shard", None)
        return asset_link(shard_uri(getattr(operator, "persist_conn_id", ""), shard)) if shard else ""
