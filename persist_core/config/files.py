"""Read a folder of YAML files: one mapping per file, one error per invalid file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import PydanticCustomError

from persist_core.config import checks
from persist_core.config.groups import GroupConfig, group_by_pattern, read_groups
from persist_core.config.problems import refuse, show
from persist_core.config.yaml_text import MAX_BYTES, YamlError, parse_yaml
from persist_core.errors import ConfigError

MAX_FILES = 10_000  # in one folder; more means that the folder is the wrong one
SUFFIXES = (".yaml", ".yml")
PROJECT_FILE = "persist.yaml"  # beside the folders of collections and views

C = TypeVar("C")
Loaded = tuple[list[C], list[ConfigError]]


def read_mapping(path: Path, *, first_fields: str) -> dict[str, Any]:
    """The file's fields, with its name, the absolute `base_dir`, and the project's time zone and group added.

    The project's file lies beside the file's folder; only collections have groups. The file's own `base_dir:` lies
    below its folder. Raises `ConfigError`.
    """
    body = read_fields(path, first_fields=first_fields)
    name, base = body.get("name", path.stem), body.get("base_dir", ".")
    body = {**body, "name": name}
    if "~" in path.stem:  # a name that only this package gives
        problem = refuse(path.stem, "a name without '~'", "rename the file")
        raise ConfigError(f"{path}: name: {problem.message()}")
    if isinstance(name, str) and name != path.stem:
        problem = refuse(name, f"the file's own name, {show(path.stem)}", "rename the file or remove the field")
        raise ConfigError(f"{path}: name: {problem.message()}")
    if isinstance(base, str):
        # absolute, symbolic links not resolved: a folder replaced through a link keeps its identity in the ledger
        body["base_dir"] = os.path.normpath(path.parent.absolute() / base)
    by_project: dict[str, Callable[[], Any]] = {"timezone": lambda: _fields_of_project(path.parent).get("timezone")}
    if "source" in body:
        by_project["group"] = lambda: group_by_pattern(groups_beside(path.parent), path.stem)
    for field in (each for each in by_project if each not in body):
        try:
            found = by_project[field]()
        except ConfigError as error:
            raise ConfigError(f"{path}: {field}: {error}") from None
        body |= {} if found is None else {field: found}
    return body


def groups_beside(folder: Path) -> Mapping[str, GroupConfig]:
    """The groups in the `persist.yaml` beside a folder of collections; empty without one. Raises `ConfigError`."""
    section = _fields_of_project(folder).get("groups")
    return {} if section is None else read_groups(section, beside(folder, PROJECT_FILE))


def _may_be_of(path: Path, group: str) -> bool:
    """False if a collection's file is surely not of the group, so that it need not be parsed. Raises `ConfigError`."""
    patterns = groups_beside(path.parent).get(group, GroupConfig()).collections
    try:
        return any(fnmatchcase(path.stem, each) for each in patterns) or group.encode() in path.read_bytes()
    except OSError:  # `read_fields` raises it for people
        return True


def beside(folder: Path, name: str) -> Path:
    """The absolute path of a file or folder beside `folder`, which may be a path with `..`."""
    return Path(os.path.normpath(folder.absolute())).parent / name


def _fields_of_project(folder: Path) -> Mapping[str, Any]:
    project = beside(folder, PROJECT_FILE)
    if not project.is_file():
        return {}
    facts = project.stat()
    return _fields_at(project, (facts.st_mtime_ns, facts.st_size, facts.st_ino))


@functools.lru_cache(maxsize=16)
def _fields_at(path: Path, facts: tuple[int, ...]) -> Mapping[str, Any]:  # noqa: ARG001 - a file is read again after a change
    return read_fields(path, first_fields="timezone:")


def read_fields(path: Path, *, first_fields: str) -> dict[str, Any]:
    """The file's fields, as they stand there. Raises `ConfigError`."""
    file = str(path)
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_BYTES:
            raise ConfigError(f"{file}: the file: found {size_bytes} bytes, expected at most {MAX_BYTES}; split it")
        body = parse_yaml(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: the file: found {error.strerror or error}, expected a readable file") from None
    except YamlError as error:
        raise ConfigError(f"{file}: {error}") from None
    if not isinstance(body, dict):
        raise ConfigError(f"{file}: the file: found {show(body)}, expected a mapping; start with {first_fields}")
    return body


def config_files(folder: Path) -> list[Path]:
    """The files of a folder by name; files that start with a dot are skipped. Raises `OSError`."""
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and not path.name.startswith("."))


def expanded(file: Path, name: str, value: Any) -> Any:
    """A path, or a list of paths, with the environment's variables in it. `name` is the field, for messages."""
    if not isinstance(value, str | list):
        return value
    texts = [value] if isinstance(value, str) else value
    try:
        found = [checks.expand_variables(text, os.environ) if isinstance(text, str) else text for text in texts]
    except PydanticCustomError as error:
        raise ConfigError(f"{file}: {name}: {error.message()}") from None
    return found[0] if isinstance(value, str) else found


def load_folder(
    folder: Path, load: Callable[[Path], C], *, what: str, only: str | None = None, group: str | None = None
) -> Loaded[C]:
    """Every `*.yaml` and `*.yml` in `folder`, by name, and an error for each invalid file; never raises.

    With `only`, the files of this name alone are opened; with `group`, the files that may be of this group, and its
    own are returned.

    If two files have the same name, ignoring case, the second is an error: shards are folders, and some file systems
    ignore case. `what` the files describe is for messages.
    """
    try:
        files = config_files(folder)
    except OSError as error:
        reason = error.strerror or error
        return [], [ConfigError(f"{folder}: the folder: found {reason}, expected a folder of {what} files")]
    if len(files) > MAX_FILES:
        return [], [ConfigError(f"{folder}: the folder: found {len(files)} files, expected at most {MAX_FILES}")]
    configs: list[C] = []
    errors: list[ConfigError] = []
    first: dict[str, Path] = {}
    for path in files:
        other = first.setdefault(path.stem.lower(), path)
        if only is not None and path.stem != only:
            continue
        try:
            if group is not None and not _may_be_of(path, group):
                continue
            if other != path:
                raise ConfigError(f"{path}: the file: found the name of {other.name} again; rename one of the two")
            config = load(path)
            if group in (None, getattr(config, "group", None)):
                configs.append(config)
        except ConfigError as error:
            errors.append(error)
    return configs, errors
