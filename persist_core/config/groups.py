"""Groups: collections that one DAG writes. `group: crm` in a collection's file, or patterns of names in `persist.yaml`.

    groups:
      crm: {collections: [crm_*], batch_of: 200}

A file's own `group` goes over the patterns, and `group: null` keeps the collection out of them. What the tasks of a
group share must be the same in all its files: `AGREED`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from persist_core.config.model import AirflowName, ConfigModel, Whole
from persist_core.config.problems import show, validated
from persist_core.errors import ConfigError

GroupName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)]
AGREED = ("schedule", "timezone", "start_date", "airflow")
"""The fields of the DAG and its tasks, of which a group has one each."""


class GroupConfig(ConfigModel):
    """A group in `persist.yaml`: patterns of names (`crm_*`), and how many collections a task handles at most."""

    collections: tuple[AirflowName, ...] = ()
    batch_of: Annotated[Whole, Field(ge=1, le=1000)] = 200


class GroupsConfig(ConfigModel):
    """The section `groups:` alone."""

    groups: dict[GroupName, GroupConfig] = {}  # noqa: RUF012 - pydantic copies defaults


def read_groups(section: Any, file: Path) -> Mapping[str, GroupConfig]:
    """The groups of `persist.yaml`, from its section. Raises `ConfigError`."""
    return validated(GroupsConfig, {"groups": section}, file).groups


def group_by_pattern(groups: Mapping[str, GroupConfig], name: str) -> str | None:
    """The group whose patterns have the name. Raises `ConfigError` if two have it."""
    found = [group for group, each in groups.items() if any(fnmatchcase(name, one) for one in each.collections)]
    if len(found) > 1:
        raise ConfigError(
            f"found the patterns of {' and '.join(found)} in groups of persist.yaml, expected one group at most;"
            " write group: in this file, or correct the patterns"
        )
    return found[0] if found else None


C = TypeVar("C")


def agreed(members: Sequence[tuple[Path, C]]) -> tuple[list[C], list[ConfigError]]:
    """The members, of the files with these paths, that agree with most of their group, and an error for each other.

    One that differs is left out of its group, which goes on without it.
    """
    wanted: dict[str, tuple[str, Path, C]] = {}
    for field in AGREED:
        texts = [_text(config, field) for _, config in members]
        (most, _), *_ = Counter(texts).most_common(1)
        wanted[field] = (most, *members[texts.index(most)])
    agreeing, errors = [], []
    for file, config in members:
        wrong = [field for field in AGREED if _text(config, field) != wanted[field][0]]
        for field in wrong[:1]:
            _, other, like = wanted[field]
            differs = _difference(field, _value(config, field), _value(like, field))
            errors.append(
                ConfigError(
                    f"{file}: {differs} as in {other}: collections of a group"
                    " share their DAG; write the same, or take this one out of the group (group: null)"
                )
            )
        if not wrong:
            agreeing.append(config)
    return agreeing, errors


def _value(config: object, field: str) -> Any:
    value = getattr(config, field)
    return value.model_dump(exclude_defaults=True) if isinstance(value, ConfigModel) else value


def _text(config: object, field: str) -> str:
    return _json(_value(config, field))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)  # in Python 1 equals True


def _difference(field: str, found: Any, wanted: Any) -> str:
    while isinstance(found, Mapping) and isinstance(wanted, Mapping):  # bounded by the depth of a YAML file
        one, other = ({name: _json([each]) for name, each in fields.items()} for fields in (found, wanted))
        name = next(name for name in {**other, **one} if one.get(name) != other.get(name))
        field, found, wanted = f"{field}.{name}", found.get(name), wanted.get(name)
    return f"{field}: found {show(found)}, expected {show(wanted)}"
