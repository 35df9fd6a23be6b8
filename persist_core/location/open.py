"""Open the backends that URIs name: the only module that imports all of them.

    PersistLocation --open_location--> OpenLocation(blob, consensus)

| URI | what |
| --- | --- |
| `mem:`, `mem:name` | this process's memory; private, or shared by everything that uses the name |
| `file:///absolute/folder` | blobs as files (percent-encoding as in any URI; `localhost` or no host) |
| `sqlite:////absolute/file.db` | consensus in SQLite; as in SQLAlchemy, the path is what follows `sqlite:///` |
| `sqlite:///relative/file.db` | the same, relative to the working directory, or to the config file that contains it |
| `s3://bucket/prefix?endpoint=...` | blobs, or consensus, in an S3 bucket (docs/locations-s3.md has the parameters) |
| `postgresql://user:password@host/database` | consensus in a table of PostgreSQL; `postgres:` is the same |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from persist_core.errors import ConfigError
from persist_core.location.blob import Blob
from persist_core.location.consensus import Consensus
from persist_core.location.file.blob import FileBlob
from persist_core.location.file.folder import parse_file_uri
from persist_core.location.mem import MemBlob, MemConsensus, parse_mem_uri
from persist_core.location.postgres.uri import PARAMETERS as POSTGRES_PARAMETERS
from persist_core.location.postgres.uri import parse_postgres_uri
from persist_core.location.s3.blob import S3Blob
from persist_core.location.s3.consensus import S3Consensus
from persist_core.location.s3.uri import PARAMETERS as S3_PARAMETERS
from persist_core.location.s3.uri import S3Settings, parse_s3_uri
from persist_core.location.settings import ANY_BUCKET, PersistLocation, connection_variable
from persist_core.location.sqlite.consensus import SqliteConsensus, parse_sqlite_uri
from persist_core.location.uri import LocationUri, parse_uri

Environment = Mapping[str, str]

_Backend = TypeVar("_Backend")
_Backends = Mapping[str, Callable[[LocationUri, Environment | None], _Backend]]

# The query parameters that each scheme takes.
_PARAMETERS = {
    **dict.fromkeys(("mem", "file", "sqlite"), frozenset[str]()),
    "s3": S3_PARAMETERS,
    "postgresql": POSTGRES_PARAMETERS,
    "postgres": POSTGRES_PARAMETERS,
}


@dataclass(frozen=True)
class OpenLocation(AbstractContextManager["OpenLocation"]):
    """The two backends of a location. Close it, or use it as a context manager; no backend is usable afterwards.

    `connections` come from its `PersistLocation`, `environment` has the credentials that it was opened with.
    """

    blob: Blob
    consensus: Consensus
    connections: Mapping[str, str] = field(default_factory=dict, repr=False)
    environment: Environment = field(default_factory=dict, repr=False)

    def feed_settings(self, root: str, connection: str | None) -> S3Settings:
        """How to reach objects below `root` (`s3://bucket/folder`): by the connection of that name (`s3://?...` is one
        for any bucket), else as the location's own blobs, or with its credentials if they are not on S3.

        Raises `ConfigError` for a connection that is not known, or is one for other objects.
        """
        bucket, _, prefix = root.removeprefix("s3://").partition("/")
        if connection is None:
            blobs = s3_settings(self.blob.uri) or S3Settings(bucket)
            own = replace(blobs, bucket=bucket, prefix=prefix, kms_key=None)  # a feed is not written to
            return own.with_credentials_of(self.environment)
        variable = connection_variable(connection)
        if variable not in self.connections:
            raise ConfigError(
                f"source.connection {connection!r} is not known: set {variable}=s3://{bucket}?region=...&profile=..."
                f" in the environment, or [connections] {connection} = ... in the file with the location; in Airflow"
                " make an AWS connection of that id (if there is one, the task's log says why it gives no credentials)"
            )
        uri = self.connections[variable].replace(f"{ANY_BUCKET}?", f"s3://{bucket}?", 1)
        settings = _s3(_parse(uri, f"{variable}: connection", ["s3"]), None)
        if settings.bucket != bucket or not f"{prefix}/".startswith(f"{settings.prefix}/".lstrip("/")):
            raise ConfigError(
                f"source.connection {connection!r} is for {settings.uri!r}; found the path {root!r}: correct one of"
                " them"
            )
        return settings

    def close(self) -> None:
        try:
            self.blob.close()
        finally:
            self.consensus.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def open_blob(uri: str, environment: Environment | None = None) -> Blob:
    """The `Blob` that `uri` names. Raises `InvalidUri`. Nothing is created or connected before its first use.

    `environment` has credentials under AWS's names, if they differ from this process's own.
    """
    return _open(uri, "blob", _BLOBS, environment)


def open_consensus(uri: str, environment: Environment | None = None) -> Consensus:
    """The `Consensus` that `uri` names; otherwise as `open_blob`."""
    return _open(uri, "consensus", _CONSENSUSES, environment)


def open_location(location: PersistLocation, environment: Environment | None = None) -> OpenLocation:
    """Both backends of `location`; otherwise as `open_blob`."""
    blob = open_blob(location.blob_uri, environment)
    credentials = {**(environment or {}), **credentials_of(location.blob_uri)}
    try:
        consensus = open_consensus(location.consensus_uri, environment)
        return OpenLocation(blob, consensus, location.connections, credentials)
    except BaseException:
        blob.close()
        raise


def s3_settings(uri: str, environment: Environment | None = None) -> S3Settings | None:
    """The settings in an `s3:` URI, for other clients of the bucket (Spark); `None` for another scheme's URI."""
    if not re.match(r"s3:", uri, re.IGNORECASE):
        return None
    return _s3(_parse(uri, "S3", ["s3"]), environment)


def credentials_of(uri: str) -> dict[str, str]:
    """The credentials in an `s3:` URI, as the variables that boto3 and Spark read; empty if it has none."""
    settings = s3_settings(uri)
    if settings is None:
        return {}
    keys = settings.access_key_id, settings.secret_access_key, settings.session_token
    if settings.profile is not None:
        return {**environment_of(*keys), "AWS_PROFILE": settings.profile}
    return environment_of(*keys) if settings.access_key_id is not None else {}


def environment_of(access_key: str | None, secret_key: str | None, token: str | None) -> dict[str, str]:
    """The variables of AWS that hold these keys. What they lack is empty there, which hides what belongs to others."""
    values = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key, "AWS_SESSION_TOKEN": token}
    return {name: value or "" for name, value in values.items()}


def roles_of(uri: str) -> list[str]:
    """The roles of `uri`'s scheme: "blob", "consensus" or both. Raises `InvalidUri` for an unknown scheme."""
    scheme = uri.partition(":")[0].lower()
    roles = [role for role, known in (("blob", _BLOBS), ("consensus", _CONSENSUSES)) if scheme in known]
    if not roles:
        _parse(uri, "location", list(_PARAMETERS))
    return roles


def _open(uri: str, role: str, backends: _Backends[_Backend], environment: Environment | None) -> _Backend:
    parsed = _parse(uri, role, list(backends))
    return backends[parsed.scheme](parsed, environment)


def _parse(uri: str, role: str, schemes: list[str]) -> LocationUri:
    return parse_uri(uri, role, {scheme: _PARAMETERS[scheme] for scheme in schemes})


def _postgres(uri: LocationUri, _: Environment | None) -> Consensus:
    address = parse_postgres_uri(uri)
    from persist_core.location.postgres.consensus import (
        PostgresConsensus,  # psycopg takes 0.1 s to import, and is an extra
    )

    return PostgresConsensus(address)


def _s3(uri: LocationUri, environment: Environment | None) -> S3Settings:
    settings = parse_s3_uri(uri)
    return settings if environment is None else settings.with_credentials_of(environment)


_BLOBS: _Backends[Blob] = {
    "mem": lambda uri, _: MemBlob(parse_mem_uri(uri)),
    "file": lambda uri, _: FileBlob(parse_file_uri(uri)),
    "s3": lambda uri, environment: S3Blob(_s3(uri, environment)),
}
_CONSENSUSES: _Backends[Consensus] = {
    "mem": lambda uri, _: MemConsensus(parse_mem_uri(uri)),
    "sqlite": lambda uri, _: SqliteConsensus(parse_sqlite_uri(uri)),
    "s3": lambda uri, environment: S3Consensus(_s3(uri, environment)),
    "postgresql": _postgres,
    "postgres": _postgres,
}
