"""Find the configured location.

    arguments > config file that is named > environment > other config files --location_from--> PersistLocation

A location is a pair, so both halves always come from one place: half of it from the environment and half from a
file would join one store's state with another's data.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from persist_core.errors import ConfigError
from persist_core.location.sqlite.consensus import parse_sqlite_uri
from persist_core.location.uri import parse_uri, place_of, redact_uri

ENV_BLOB_URI = "PERSIST_BLOB_URI"
ENV_CONSENSUS_URI = "PERSIST_CONSENSUS_URI"
ENV_CONNECTION = "PERSIST_CONNECTION_"
ANY_BUCKET = "s3://"  # of a connection: its parameters follow
CONFIG_FILE_NAME = "persist.toml"


@dataclass(frozen=True)
class PersistLocation:
    """The stores of shards: a blob URI and a consensus URI. Prints redacted; the URIs may hold secrets.

    `connections` are URIs too, by `connection_variable`: how to reach what collections read and is not stored here.
    """

    blob_uri: str
    consensus_uri: str
    connections: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def in_folder(cls, folder: Path) -> PersistLocation:
        """The location of plain files `blob` and `consensus.db` in a folder of any name."""
        blob, consensus = folder.absolute() / "blob", folder.absolute() / "consensus.db"
        return cls(blob.as_uri(), f"sqlite:///{quote(os.fsencode(consensus))}")

    def __repr__(self) -> str:
        return (
            f"PersistLocation(blob_uri={redact_uri(self.blob_uri)!r}, consensus_uri={redact_uri(self.consensus_uri)!r})"
        )

    def __str__(self) -> str:
        return f"blob {redact_uri(self.blob_uri)}, consensus {redact_uri(self.consensus_uri)}"

    def is_same_place(self, other: PersistLocation) -> bool:
        """True if both name the same stores. Users, passwords and how to connect may differ."""
        uris = (self.blob_uri, other.blob_uri), (self.consensus_uri, other.consensus_uri)
        return all(place_of(one) == place_of(another) for one, another in uris)

    def to_env(self) -> dict[str, str]:
        """The environment variables that hand this location to another process, secrets included."""
        return {ENV_BLOB_URI: self.blob_uri, ENV_CONSENSUS_URI: self.consensus_uri, **self.connections}


def connection_variable(name: str) -> str:
    """The environment variable with the URI of a `source.connection`."""
    return ENV_CONNECTION + re.sub(r"[^A-Z0-9]", "_", name.upper())


def similar_names(name: str, names: Iterable[str]) -> list[str]:
    """The names of which `connection_variable` makes the same as of `name`."""
    return [each for each in names if connection_variable(each) == connection_variable(name)]


def location_from(
    blob_uri: str | None = None,
    consensus_uri: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    config_file: Path | None = None,
) -> PersistLocation:
    """The location that is configured, its `sqlite:` path made absolute so that every process uses the same file.

    Looked for in this order: the arguments; in `config_file` alone, if one is named; `PERSIST_BLOB_URI` and
    `PERSIST_CONSENSUS_URI` in `env` (default: this process's); the first file that exists of `./persist.toml` and
    `~/.config/persist/config.toml` (TOML with `blob_uri` and `consensus_uri`; relative paths are relative to it).
    Connections come from variables `PERSIST_CONNECTION_...` in `env`, and from the file's table `connections` if the
    pair does. Raises `ConfigError` if none of them has it, or the first that does has only half of it, and
    `InvalidUri` for a URI that cannot be opened.
    """
    env = os.environ if env is None else env
    found = _whole_pair(blob_uri, consensus_uri, "the arguments", ("blob_uri", "consensus_uri"), Path.cwd())
    if found is None:
        found, _ = location_around(env=env) if config_file is None else _from_config_file(config_file, env)
    if found is None and config_file is not None:
        raise ConfigError(f"{config_file}: no location; expected blob_uri and consensus_uri")
    if found is None:
        raise ConfigError(
            f"no location is configured: give blob_uri and consensus_uri, or set {ENV_BLOB_URI} and "
            f"{ENV_CONSENSUS_URI}, or put them into {CONFIG_FILE_NAME} (blob_uri = 'file:///folder', "
            "consensus_uri = 'sqlite:////folder/consensus.db')"
        )
    given = {name: uri for name, uri in env.items() if name.startswith(ENV_CONNECTION) and uri}
    return replace(found, connections={**found.connections, **given}) if given else found


def location_around(*, env: Mapping[str, str] | None = None) -> tuple[PersistLocation | None, str]:
    """The location that the environment or a config file names, and which of them; as in `location_from`."""
    env = os.environ if env is None else env
    names = ENV_BLOB_URI, ENV_CONSENSUS_URI
    values = env.get(ENV_BLOB_URI) or None, env.get(ENV_CONSENSUS_URI) or None
    found = _whole_pair(*values, "the environment", names, Path.cwd())
    return (found, "the environment") if found else _from_config_file(None, env)


def _whole_pair(
    blob_uri: str | None, consensus_uri: str | None, where: str, names: tuple[str, str], base: Path
) -> PersistLocation | None:
    """The location, `None` if neither half is given, `ConfigError` if only one is; paths are relative to `base`."""
    if blob_uri is None and consensus_uri is None:
        return None
    if blob_uri is None or consensus_uri is None:
        has, lacks = names if consensus_uri is None else names[::-1]
        raise ConfigError(
            f"{where}: {has} is given but {lacks} is not: a location is a pair: set both in the same place"
        )
    return PersistLocation(blob_uri, _absolute(consensus_uri, base))


def _absolute(consensus_uri: str, base: Path) -> str:
    if not re.match(r"sqlite:", consensus_uri, re.IGNORECASE):
        return consensus_uri
    path = parse_sqlite_uri(parse_uri(consensus_uri, "consensus", {"sqlite": frozenset()}))
    return f"sqlite:///{quote(str(base / path))}"


def _from_config_file(config_file: Path | None, env: Mapping[str, str]) -> tuple[PersistLocation | None, str]:
    if config_file is None:
        candidates = [Path.cwd() / CONFIG_FILE_NAME]
        if home := env.get("HOME"):
            candidates.append(Path(home) / ".config" / "persist" / "config.toml")
        config_file = next((candidate for candidate in candidates if candidate.is_file()), None)
        if config_file is None:
            return None, CONFIG_FILE_NAME
    try:
        body: dict[str, Any] = tomllib.loads(config_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{config_file}: no such file; expected a TOML file with blob_uri and consensus_uri"
        ) from None
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{config_file}: cannot be read as TOML: {error}") from error
    unknown = sorted(body.keys() - {"blob_uri", "consensus_uri", "connections"})
    if unknown:
        raise ConfigError(
            f"{config_file}: unknown key {', '.join(unknown)}; expected blob_uri, consensus_uri and [connections]"
        )
    connections = body.pop("connections", {})
    if not isinstance(connections, dict) or not all(isinstance(uri, str) for uri in connections.values()):
        raise ConfigError(
            f"{config_file}: connections: expected a table of URIs: vendor = 's3://bucket?profile=vendor'"
        )
    for name, value in body.items():
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{config_file}: {name}: found {type(value).__name__}; expected a URI as a string")
    values = body.get("blob_uri"), body.get("consensus_uri")
    found = _whole_pair(*values, str(config_file), ("blob_uri", "consensus_uri"), config_file.absolute().parent)
    given = {connection_variable(name): uri for name, uri in connections.items()}
    if names := sorted(name for name in connections if len(similar_names(name, connections)) > 1):
        raise ConfigError(
            f"{config_file}: connections: {', '.join(names)} differ only in case or in signs, and have one variable in"
            " a job's environment; rename one of them"
        )
    return replace(found, connections=given) if found else None, str(config_file)
