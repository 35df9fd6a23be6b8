"""From URIs to backends, and from settings to a location.

    arguments > environment > config file --location_from--> PersistLocation --open_location--> OpenLocation

| URI | what |
| --- | --- |
| `mem:`, `mem:name` | this process's memory; private, or shared by all who name it |
| `file:///absolute/folder` | blobs as files (percent-encoding as in any URI; `localhost` or no host) |
| `sqlite:////absolute/file.db` | consensus in SQLite; as in SQLAlchemy, the path is what follows `sqlite:///` |
| `sqlite:///relative/file.db` | the same, relative to the working directory or to the config file that says so |
| `s3://bucket/prefix?endpoint=...` | blobs, or consensus, in an S3 bucket (docs/locations-s3.md has the parameters) |
| `postgresql://user:password@host/database` | consensus in a table of PostgreSQL; `postgres:` is the same |

A location is a pair, so it is always taken whole from one place: half of it from the environment and half from a
file would join one store's state with another's data.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, unquote_to_bytes

from persist_core.errors import ConfigError, InvalidUri
from persist_core.location.blob import Blob
from persist_core.location.consensus import Consensus
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.postgres.uri import PARAMETERS as POSTGRES_PARAMETERS
from persist_core.location.postgres.uri import parse_postgres_uri
from persist_core.location.s3.blob import S3Blob
from persist_core.location.s3.client import S3Settings
from persist_core.location.s3.consensus import S3Consensus
from persist_core.location.s3.uri import PARAMETERS as S3_PARAMETERS
from persist_core.location.s3.uri import parse_s3_uri
from persist_core.location.sqlite import SqliteConsensus

ENV_BLOB_URI = "PERSIST_BLOB_URI"
ENV_CONSENSUS_URI = "PERSIST_CONSENSUS_URI"
CONFIG_FILE_NAME = "persist.toml"

Environment = Mapping[str, str]

_Backend = TypeVar("_Backend")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*")
_MEM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_BAD_PERCENT = re.compile(r"%(?![0-9a-fA-F]{2})")
_SECRET_PARAMETER = re.compile(r"pass|pwd|secret|token|key|credential|sig", re.IGNORECASE)

# Query parameters, by scheme; a scheme that is not here takes none.
_PARAMETERS: dict[str, frozenset[str]] = {
    "postgresql": POSTGRES_PARAMETERS,
    "postgres": POSTGRES_PARAMETERS,
    "s3": S3_PARAMETERS,
}


@dataclass(frozen=True)
class PersistLocation:
    """Where shards live: a blob URI and a consensus URI. Prints redacted; the URIs themselves may hold secrets."""

    blob_uri: str
    consensus_uri: str

    def __repr__(self) -> str:
        return (
            f"PersistLocation(blob_uri={redact_uri(self.blob_uri)!r}, consensus_uri={redact_uri(self.consensus_uri)!r})"
        )

    def __str__(self) -> str:
        return f"blob {redact_uri(self.blob_uri)}, consensus {redact_uri(self.consensus_uri)}"

    def to_env(self) -> dict[str, str]:
        """The environment variables that hand this location to another process, secrets included."""
        return {ENV_BLOB_URI: self.blob_uri, ENV_CONSENSUS_URI: self.consensus_uri}


@dataclass(frozen=True)
class OpenLocation(AbstractContextManager["OpenLocation"]):
    """The two backends of a location. Close it, or use it as a context manager; no backend is usable afterwards."""

    blob: Blob
    consensus: Consensus

    def close(self) -> None:
        try:
            self.blob.close()
        finally:
            self.consensus.close()

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class _ParsedUri:
    """`scheme:path?parameters`, percent-decoded, the path with all its slashes; `text` is the redacted URI."""

    scheme: str
    path: str
    text: str
    uri: str = field(repr=False)  # as given, secrets included
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)


def open_blob(uri: str, environment: Environment | None = None) -> Blob:
    """The `Blob` that `uri` names. Raises `InvalidUri`. Nothing is created or connected before its first use.

    `environment` has credentials under AWS's names, where they are others than this process's own.
    """
    return _open(uri, "blob", _blobs(environment))


def open_consensus(uri: str, environment: Environment | None = None) -> Consensus:
    """The `Consensus` that `uri` names; otherwise as `open_blob`."""
    return _open(uri, "consensus", _consensuses(environment))


def s3_settings(uri: str, environment: Environment | None = None) -> S3Settings | None:
    """What an `s3:` URI says, for others who go to the same bucket (Spark); `None` for another scheme's URI."""
    if not re.match(r"s3:", uri, re.IGNORECASE):
        return None
    return _s3(_parse(uri, "S3", ["s3"]), environment)


def roles_of(uri: str) -> list[str]:
    """What `uri`'s scheme can be: "blob", "consensus" or both. Raises `InvalidUri` where it is none."""
    known = {"blob": _blobs(None).keys(), "consensus": _consensuses(None).keys()}
    scheme = uri.partition(":")[0].lower()
    roles = [role for role, schemes in known.items() if scheme in schemes]
    if not roles:
        _parse(uri, "location", sorted(set().union(*known.values())))
    return roles


def open_location(location: PersistLocation, environment: Environment | None = None) -> OpenLocation:
    """Both backends of `location`; otherwise as `open_blob`."""
    blob = open_blob(location.blob_uri, environment)
    try:
        return OpenLocation(blob, open_consensus(location.consensus_uri, environment))
    except BaseException:
        blob.close()
        raise


def location_from(
    blob_uri: str | None = None,
    consensus_uri: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    config_file: Path | None = None,
) -> PersistLocation:
    """The location that is configured, its `sqlite:` path made absolute so that every process means the same file.

    Looked for in this order: the arguments; `PERSIST_BLOB_URI` and `PERSIST_CONSENSUS_URI` in `env` (default: this
    process's); `config_file`, or else the first that exists of `./persist.toml` and `~/.config/persist/config.toml`
    (TOML with `blob_uri` and `consensus_uri`; relative paths are relative to the file). Raises `ConfigError` where
    none of them has it, or the one that counts has half of it, and `InvalidUri` for a URI that can't be opened.
    """
    env = os.environ if env is None else env
    here = Path.cwd()
    found = _whole_pair(blob_uri, consensus_uri, "the arguments", ("blob_uri", "consensus_uri"), here)
    if found is None:
        values = env.get(ENV_BLOB_URI) or None, env.get(ENV_CONSENSUS_URI) or None
        found = _whole_pair(*values, "the environment", (ENV_BLOB_URI, ENV_CONSENSUS_URI), here)
    if found is None:
        found = _from_config_file(config_file, env)
    if found is None:
        raise ConfigError(
            f"no location is configured: give blob_uri and consensus_uri, or set {ENV_BLOB_URI} and "
            f"{ENV_CONSENSUS_URI}, or write them into {CONFIG_FILE_NAME} (blob_uri = 'file:///folder', "
            "consensus_uri = 'sqlite:////folder/consensus.db')"
        )
    return found


def redact_uri(uri: str) -> str:
    """`uri` without user names, passwords and the values of query parameters that sound secret: safe to print.

    Of a URI with user and password, everything up to the last `@` goes: a password may hold a raw `/`, `?` or `@`.
    """
    start = re.match(r"postgres(?:ql)?:/{0,2}|(?:[^/]*:)?//", uri, re.IGNORECASE)  # forgotten slashes must not tell
    if start is not None:
        rest = uri[start.end() :]
        authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
        if "@" in rest and ("@" in authority or ":" in authority):
            uri = f"{start.group()}***{rest[rest.rfind('@') :]}"
    head, mark, query = uri.partition("?")
    shown = []
    for parameter in query.split("&"):
        name, equals, value = parameter.partition("=")
        shown.append(name + equals + ("***" if value and _hides(name, value) else value))
    return head + mark + "&".join(shown)


def _hides(name: str, value: str) -> bool:
    """Whether a query parameter may hold a secret: by its name, or since its value is a URL with a user in it."""
    return bool(_SECRET_PARAMETER.search(name)) or "@" in unquote(value)


def _blobs(environment: Environment | None) -> dict[str, Callable[[_ParsedUri], Blob]]:
    return {
        "mem": lambda parsed: MemBlob(_mem_name(parsed)),
        "file": lambda parsed: FileBlob(_file_path(parsed)),
        "s3": lambda parsed: S3Blob(_s3(parsed, environment)),
    }


def _consensuses(environment: Environment | None) -> dict[str, Callable[[_ParsedUri], Consensus]]:
    return {
        "mem": lambda parsed: MemConsensus(_mem_name(parsed)),
        "sqlite": lambda parsed: SqliteConsensus(_sqlite_path(parsed)),
        "s3": lambda parsed: S3Consensus(_s3(parsed, environment)),
        "postgresql": _postgres,
        "postgres": _postgres,
    }


def _open(uri: str, role: str, backends: dict[str, Callable[[_ParsedUri], _Backend]]) -> _Backend:
    parsed = _parse(uri, role, sorted(backends))
    return backends[parsed.scheme](parsed)


def _parse(uri: str, role: str, known: list[str]) -> _ParsedUri:
    text = redact_uri(uri)
    listed = ", ".join(f"{scheme}:" for scheme in known)
    scheme, colon, rest = uri.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme):
        raise InvalidUri(f"{role} URI {text!r} has no scheme; wanted one of {listed}")
    scheme = scheme.lower()
    if scheme not in known:
        raise InvalidUri(f"{role} URI {text!r}: unknown scheme {scheme!r}; wanted one of {listed}")
    path, mark, query = rest.partition("?")
    if "#" in rest:
        raise InvalidUri(f"{role} URI {text!r} has a fragment; write '#' as %23")
    where = f"{role} URI {text!r}"
    if mark and "?" not in text:  # what looks like the query belongs to a password: it is not to be quoted
        raise InvalidUri(f"{where}: in a user name or password write @ as %40, / as %2F, ? as %3F, # as %23, : as %3A")
    parameters = _parameters(query, scheme, where) if mark else {}
    return _ParsedUri(scheme, _decoded(path, where), text, uri, parameters)


def _parameters(query: str, scheme: str, where: str) -> dict[str, str]:
    """The query's `name=value` pairs, decoded (`+` is a plus sign). Unknown and repeated names are refused."""
    known = _PARAMETERS.get(scheme, frozenset())
    pairs = [pair.partition("=") for pair in query.split("&")]
    names = [_decoded(name, where) for name, _, _ in pairs]
    unknown = sorted({name or "(none)" for name in names if name not in known})
    if unknown:
        takes = f"takes {', '.join(sorted(known))}" if known else "takes none"
        raise InvalidUri(f"{where}: unknown query parameter {', '.join(unknown)}; {scheme}: {takes}")
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise InvalidUri(f"{where}: query parameter {', '.join(repeated)} is given more than once")
    return {name: _decoded(value, where) for name, (_, _, value) in zip(names, pairs, strict=True)}


def _decoded(text: str, where: str) -> str:
    """`text` percent-decoded; `InvalidUri` where that is no printable UTF-8."""
    if _BAD_PERCENT.search(text):
        raise InvalidUri(f"{where} has a bare '%'; write it as %25")
    try:
        decoded = unquote_to_bytes(text).decode("utf-8")
    except UnicodeError:
        raise InvalidUri(f"{where} is not UTF-8 after percent-decoding") from None
    if any(ord(character) < 32 or ord(character) == 127 for character in decoded):
        raise InvalidUri(f"{where} has a control character")
    return decoded


def _postgres(parsed: _ParsedUri) -> Consensus:
    address = parse_postgres_uri(parsed.uri, parsed.text, parsed.parameters)
    from persist_core.location.postgres.consensus import (
        PostgresConsensus,  # psycopg takes 0.1 s to import, and is an extra
    )

    return PostgresConsensus(address)


def _s3(parsed: _ParsedUri, environment: Environment | None) -> S3Settings:
    settings = parse_s3_uri(parsed.path, parsed.parameters, parsed.text)
    return settings if environment is None else settings.with_credentials_of(environment)


def _mem_name(parsed: _ParsedUri) -> str:
    if parsed.path and not _MEM_NAME.fullmatch(parsed.path):
        raise InvalidUri(f"{parsed.text!r}: wanted mem: or mem:name, a name of up to 100 of A-Z a-z 0-9 . _ -")
    return parsed.path


def _file_path(parsed: _ParsedUri) -> Path:
    path = parsed.path.removeprefix("//localhost") if parsed.path.startswith("//localhost/") else parsed.path
    if path.startswith("///"):
        path = path[2:]
    if not path.startswith("/") or path.startswith("//"):
        raise InvalidUri(f"{parsed.text!r}: wanted an absolute folder on this machine, file:///folder")
    if path.strip("/") == "":
        raise InvalidUri(f"{parsed.text!r}: the file system's root can't be a location; name a folder")
    if ".." in path.split("/"):
        raise InvalidUri(f"{parsed.text!r}: '..' is not allowed; write the folder's real path")
    return Path(path)


def _sqlite_path(parsed: _ParsedUri) -> Path:
    if not parsed.path.startswith("///"):
        raise InvalidUri(f"{parsed.text!r}: wanted sqlite:////absolute/file.db or sqlite:///relative/file.db")
    path = parsed.path[3:]
    if path in ("", ":memory:") or path.endswith("/"):
        raise InvalidUri(f"{parsed.text!r}: wanted a database file; for a store in memory use mem:")
    return Path(path)


def _whole_pair(
    blob_uri: str | None, consensus_uri: str | None, where: str, names: tuple[str, str], base: Path
) -> PersistLocation | None:
    """The location, `None` where neither half is given, `ConfigError` where one is; paths are relative to `base`."""
    if blob_uri is None and consensus_uri is None:
        return None
    if blob_uri is None or consensus_uri is None:
        has, lacks = names if consensus_uri is None else names[::-1]
        raise ConfigError(f"{where}: {has} is given but {lacks} is not: a location is a pair, give both in one place")
    return PersistLocation(blob_uri, _absolute(consensus_uri, base))


def _absolute(consensus_uri: str, base: Path) -> str:
    if not re.match(r"sqlite:", consensus_uri, re.IGNORECASE):
        return consensus_uri
    path = _sqlite_path(_parse(consensus_uri, "consensus", ["mem", "sqlite"]))
    return f"sqlite:///{quote(str(base / path))}"


def _from_config_file(config_file: Path | None, env: Mapping[str, str]) -> PersistLocation | None:
    if config_file is None:
        candidates = [Path.cwd() / CONFIG_FILE_NAME]
        if home := env.get("HOME"):
            candidates.append(Path(home) / ".config" / "persist" / "config.toml")
        config_file = next((candidate for candidate in candidates if candidate.is_file()), None)
        if config_file is None:
            return None
    try:
        body: dict[str, Any] = tomllib.loads(config_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{config_file}: no such file; wanted a TOML file with blob_uri and consensus_uri") from None
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{config_file}: can't be read as TOML: {error}") from error
    unknown = sorted(body.keys() - {"blob_uri", "consensus_uri"})
    if unknown:
        raise ConfigError(f"{config_file}: unknown key {', '.join(unknown)}; wanted blob_uri and consensus_uri")
    for name, value in body.items():
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{config_file}: {name}: found {type(value).__name__}; wanted a URI as a string")
    values = body.get("blob_uri"), body.get("consensus_uri")
    return _whole_pair(*values, str(config_file), ("blob_uri", "consensus_uri"), config_file.absolute().parent)
