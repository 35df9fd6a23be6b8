"""The extra link from a task to its shard: its page (docs/page.md), or on 2.11 the dataset in Airflow's own UI.

The events of the asset carry upper, since, counts and checkpoint of every commit, so Airflow's page of the asset shows
the shard's history too.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from persist_airflow.compat import BaseOperator, BaseOperatorLink, asset_link, framed_url
from persist_core.errors import ConfigError

PAGE_PREFIX = "persist"  # where the page is mounted, below the UI's base path
PAGE_ROUTE = "shards"  # its place in the UI's navigation: /plugin/shards


def shard_uri(persist_conn_id: str, shard: str) -> str:
    """The asset URI of a shard. It names the connection, not the location, so that no store's address is shown.

    The id of a connection may have a `/` or a `#`, at which it would end in a URI.
    """
    conn_id = persist_conn_id.replace("/", "%2F").replace("#", "%23")
    return f"persist://{conn_id}/{shard}"


def outlet_uri(persist_conn_id: str, shard: str) -> str:
    """The URI of an asset that a task declares. Raises `ConfigError` for a template: outlets are not rendered."""
    if "{{" in persist_conn_id or "{%" in persist_conn_id:
        raise ConfigError(
            f"persist_conn_id {persist_conn_id!r}: assets have it in their name, so it cannot be a template"
        )
    return shard_uri(persist_conn_id, shard)


def shard_page(persist_conn_id: str, shard: str) -> str | None:
    """The URL of the shard's page in the UI; `None` on 2.11."""
    query = urlencode({"conn_id": persist_conn_id, "shard": shard}, quote_via=quote)
    return framed_url(PAGE_ROUTE, f"{PAGE_PREFIX}/?{query}")


class ShardLink(BaseOperatorLink):
    name = "Shard"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """A URL of Airflow's UI; empty if the operator has no shard."""
        shard, conn_id = getattr(operator, "shard", None), getattr(operator, "persist_conn_id", "")
        if not shard:
            return ""
        return shard_page(conn_id, shard) or asset_link(shard_uri(conn_id, shard))
