"""Where the command line finds collection files, view files and `persist.yaml`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from persist_core.config.collection import CollectionConfig, load_collection, load_collections
from persist_core.config.files import PROJECT_FILE, SUFFIXES, beside, read_mapping
from persist_core.config.project import ProjectConfig, project_of
from persist_core.config.shard import ShardConfig
from persist_core.config.view import load_view, load_views
from persist_core.errors import InvalidInput, PersistError
from persist_core.keys import check_shard_name

ENV_COLLECTIONS = "PERSIST_COLLECTIONS"
ENV_VIEWS = "PERSIST_VIEWS"
DEFAULT_COLLECTIONS = Path("dags") / "collections"
VIEWS_FOLDER = "views"  # beside the folder of collections

collections_option = click.option(
    "--collections",
    type=click.Path(path_type=Path),
    help=f"Folder of collection files (default: {ENV_COLLECTIONS}, or {DEFAULT_COLLECTIONS}).",
)
views_option = click.option(
    "--views",
    type=click.Path(path_type=Path),
    help=f"Folder of view files (default: {ENV_VIEWS}, or `{VIEWS_FOLDER}` beside --collections).",
)


def all_of(
    collections: Path | None, views: Path | None, group: str | None
) -> tuple[list[ShardConfig], list[PersistError]]:
    """All collections and views of the folders, or all collections of a group, and an error for each wrong file."""
    collections, views = _folders(collections, views)
    if not collections.is_dir():
        raise InvalidInput(f"no folder {collections}; give --collections FOLDER, or set {ENV_COLLECTIONS}")
    found: list[ShardConfig] = []
    loaded, errors = load_collections(collections, group=group)
    found += loaded
    if views.is_dir() and group is None:
        loaded_views, of_views = load_views(views, collections=collections)
        found += loaded_views
        errors = [*errors, *of_views]
    if not found and not errors:
        of_group = "" if group is None else f" of group {group}"
        raise InvalidInput(f"no collection file{of_group} in {collections} and no view file in {views}")
    return found, list(errors)


def _folders(collections: Path | None, views: Path | None) -> tuple[Path, Path]:
    collections = collections or Path(os.environ.get(ENV_COLLECTIONS) or DEFAULT_COLLECTIONS)
    return collections, views or Path(os.environ.get(ENV_VIEWS) or beside(collections, VIEWS_FOLDER))


def project_here(collections: Path | None = None) -> ProjectConfig:
    """`persist.yaml` beside the folder of collections; the defaults if there is no such file. Raises `ConfigError`."""
    return project_of(beside(_folders(collections, None)[0], PROJECT_FILE).parent)


def find_config(name: str, collections: Path | None, views: Path | None) -> ShardConfig:
    """The collection or view meant by a name or a path. A file with a query or a function is a view's."""
    given = collections or (Path(folder) if (folder := os.environ.get(ENV_COLLECTIONS)) else None)
    collections, views = _folders(collections, views)
    if is_path(name):
        fields = read_mapping(Path(name), first_fields="source: or query:")
        is_view = "query" in fields or "function" in fields
        return load_view(Path(name), collections=given) if is_view else load_collection(Path(name))
    check_shard_name(name)
    for suffix in SUFFIXES:
        if (path := collections / f"{name}{suffix}").is_file():
            return load_collection(path)
        if (path := views / f"{name}{suffix}").is_file():
            return load_view(path, collections=collections)
    raise InvalidInput(
        f"no collection file {collections / name}.yaml and no view file {views / name}.yaml; give --collections FOLDER"
        f" or --views FOLDER, set {ENV_COLLECTIONS} or {ENV_VIEWS}, or name the file itself"
    )


def is_path(name: str) -> bool:
    """True if it is the path of a file, not the name of a shard."""
    return name.endswith(SUFFIXES) or "/" in name


def find_collection(name: str, collections: Path | None, of_view: str) -> CollectionConfig:
    """Like `find_config`; refuses a view, and says `of_view` of it."""
    config = find_config(name, collections, None)
    if not isinstance(config, CollectionConfig):
        raise InvalidInput(f"{name} is a view; expected a collection: {of_view}")
    return config
