"""The Airflow plugin (entry point group `airflow.plugins`).

Every process of Airflow loads plugins, tasks too, so nothing of the page is imported before the API server or the
webserver asks for it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from persist_airflow.links import PAGE_PREFIX, PAGE_ROUTE


class PersistPlugin(AirflowPlugin):
    """Mounts the page, and puts it into the navigation."""

    name = "persist"
    external_views = [  # noqa: RUF012 - Airflow's way to say it
        {
            "name": "Shards",
            "href": f"{PAGE_PREFIX}/",  # relative: the UI resolves it against its own base path
            "destination": "nav",
            "url_route": PAGE_ROUTE,
            "icon": f"{PAGE_PREFIX}/static/icon.svg",
            "icon_dark_mode": f"{PAGE_PREFIX}/static/icon-dark.svg",
            "nav_top_level": True,
        }
    ]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override] # Airflow declares a class attribute
        """The app of Airflow 3; the API server asks for it, once."""
        from persist_airflow.page.app import make_app

        return [{"app": make_app(), "url_prefix": f"/{PAGE_PREFIX}", "name": "persist-shards"}]
