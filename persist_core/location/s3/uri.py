"""`s3://bucket/prefix?endpoint=...` as `S3Settings`. docs/locations-s3.md says what the parameters mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from persist_core.errors import InvalidUri
from persist_core.location.uri import LocationUri

PARAMETERS = frozenset(
    {"endpoint", "region", "path_style", "kms_key", "profile", "access_key_id", "secret_access_key", "session_token"}
)
MAX_PREFIX_BYTES = 512  # of the 1024 that a name may have; consensus takes up to 160 of the rest

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True)
class S3Settings:
    """A bucket, a prefix in it (without slashes at its ends; may be empty), and how to get there."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None  # None: True iff an endpoint is given (few servers have a host per bucket)
    kms_key: str | None = None  # what is written is encrypted by it (SSE-KMS); None: as the bucket says
    profile: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @property
    def uri(self) -> str:
        """The URI without credentials: safe to print, and enough to open it again if the environment has them."""
        shown = {"endpoint": self.endpoint, "region": self.region, "kms_key": self.kms_key, "profile": self.profile}
        query = [f"{name}={quote(value, safe='/:')}" for name, value in shown.items() if value is not None]
        if self.path_style is not None:
            query.append(f"path_style={str(self.path_style).lower()}")
        path = f"/{quote(self.prefix)}" if self.prefix else ""
        return f"s3://{self.bucket}{path}" + ("?" + "&".join(query) if query else "")

    @property
    def uses_path_style(self) -> bool:
        """True if requests go to `endpoint/bucket` rather than to `bucket.endpoint`."""
        return self.endpoint is not None if self.path_style is None else self.path_style

    def with_credentials_of(self, environment: Mapping[str, str]) -> S3Settings:
        """These settings with what `environment` says in AWS's variables, unless the URI sets it."""
        found: dict[str, Any] = {}
        if self.access_key_id is None and self.profile is None and environment.get("AWS_ACCESS_KEY_ID"):
            found = {
                "access_key_id": environment["AWS_ACCESS_KEY_ID"],
                "secret_access_key": environment.get("AWS_SECRET_ACCESS_KEY"),
                "session_token": environment.get("AWS_SESSION_TOKEN") or None,
            }
        elif self.access_key_id is None and self.profile is None and environment.get("AWS_PROFILE"):
            found = {"profile": environment["AWS_PROFILE"]}
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        return S3Settings(**{**self.__dict__, **found, "region": self.region or region or None})


def parse_s3_uri(uri: LocationUri) -> S3Settings:
    """The settings that `uri` says. Raises `InvalidUri`; no value of a parameter that may be a secret is shown."""
    path, parameters, text = uri.path, uri.parameters, uri.text
    if not path.startswith("//"):
        raise InvalidUri(f"{text!r}: expected s3://bucket/prefix")
    bucket, _, prefix = path[2:].partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise InvalidUri(
            f"{text!r}: expected a bucket's name after s3://, of 3 to 63 of a-z 0-9 . -; put credentials into the"
            " environment, or into access_key_id and secret_access_key"
        )
    if bucket.endswith("--x-s3"):
        raise InvalidUri(f"{text!r}: a directory bucket does not list in order; use a general purpose bucket")
    if prefix and any(segment in ("", ".", "..") for segment in prefix.split("/")):
        raise InvalidUri(f"{text!r}: the prefix has an empty, '.' or '..' segment")
    if len(prefix.encode()) > MAX_PREFIX_BYTES:
        raise InvalidUri(f"{text!r}: the prefix is longer than {MAX_PREFIX_BYTES} bytes")
    for name, value in parameters.items():
        if not value:
            raise InvalidUri(f"{text!r}: query parameter {name} is empty; give it a value or leave it out")
    _check_endpoint(parameters.get("endpoint"), text)
    if ("access_key_id" in parameters) != ("secret_access_key" in parameters):
        raise InvalidUri(f"{text!r}: access_key_id and secret_access_key go together; give both or neither")
    if "session_token" in parameters and "access_key_id" not in parameters:
        raise InvalidUri(f"{text!r}: session_token goes with access_key_id and secret_access_key; give all three")
    if "profile" in parameters and "access_key_id" in parameters:
        raise InvalidUri(f"{text!r}: profile and access_key_id exclude each other; give one of them")
    values = {name: value for name, value in parameters.items() if name != "path_style"}
    return S3Settings(bucket, prefix, path_style=_truth(parameters.get("path_style"), text), **values)


def _truth(path_style: str | None, text: str) -> bool | None:
    if path_style not in (None, "true", "false"):
        raise InvalidUri(f"{text!r}: path_style is {path_style!r}; expected true or false")
    return None if path_style is None else path_style == "true"


def _check_endpoint(endpoint: str | None, text: str) -> None:
    if endpoint is None:
        return
    try:
        url = urlsplit(endpoint)
        is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_url = False
    if not is_url or "@" in endpoint or url.path.strip("/") or url.query or url.fragment:
        raise InvalidUri(f"{text!r}: expected endpoint=http://host:port or https://host, without user, path or query")
