"""From a folder of YAML files to configs: one mapping per file, one error per invalid file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import PydanticCustomError

from persist_core.config import checks
from persist_core.config.problems import refuse, show
from persist_core.config.yaml_text import MAX_BYTES, YamlError, parse_yaml
from persist_core.errors import ConfigError

MAX_FILES = 10_000  # in one folder; more means that the folder is the wrong one
SUFFIXES = (".yaml", ".yml")
PROJECT_FILE = "persist.yaml"  # beside the folders of collections and views

C = TypeVar("C")


def read_mapping(path: Path, base_dir: Path | None, *, first_fields: str) -> dict[str, Any]:
    """The file's fields, with its name, the absolute `base_dir`, and the time zone of the project added.

    The project's file lies beside the file's folder. `base_dir` is what the file's own `base_dir:` lies below (default:
    the file's folder). Raises `ConfigError`.
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
        body["base_dir"] = os.path.normpath((base_dir or path.parent).absolute() / base)
    project = path.absolute().parent.parent / PROJECT_FILE
    if "timezone" not in body and project.is_file():
        try:
            zone = _zone_of_project(project, project.stat().st_mtime_ns)
        except ConfigError as error:
            raise ConfigError(f"{path}: timezone: {error}") from None
        body |= {} if zone is None else {"timezone": zone}
    return body


@functools.lru_cache(maxsize=16)
def _zone_of_project(path: Path, mtime_ns: int) -> Any:  # noqa: ARG001 - a file is read again after a change
    return read_fields(path, first_fields="timezone:").get("timezone")


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
    folder: Path, load: Callable[[Path], C], *, what: str, only: str | None = None
) -> tuple[list[C], list[ConfigError]]:
    """Every `*.yaml` and `*.yml` in `folder`, by name, and an error for each invalid file; never raises.

    With `only`, the files of this name alone are opened.

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
            if other != path:
                raise ConfigError(f"{path}: the file: found the name of {other.name} again; rename one of the two")
            configs.append(load(path))
        except ConfigError as error:
            errors.append(error)
    return configs, errors
