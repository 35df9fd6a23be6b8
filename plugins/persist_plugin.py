"""The plugin of an Airflow whose plugins folder is this one. An installed package has its own, which replaces it.

Without the package, Airflow also lacks what only a provider adds: the connection type `persist`.
"""

from importlib.metadata import entry_points

if "persist" not in entry_points(group="airflow.plugins").names:
    from persist_airflow.links import ShardLink
    from persist_airflow.page import plugin

    class FolderPlugin(plugin.PersistPlugin):
        """The base class, with the link that a provider would register."""

        operator_extra_links = [ShardLink()]  # noqa: RUF012 - Airflow's way to say it
