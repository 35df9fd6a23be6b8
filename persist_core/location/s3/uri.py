"""`s3://bucket/prefix?endpoint=...` as `S3Settings`. docs/locations-s3.md says what the parameters mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from persist_core.errors import InvalidUri
from persist_core.location.s3.client import S3Settings

PARAMETERS = frozenset(
    {"endpoint", "region", "path_style", "profile", "access_key_id", "secret_access_key", "session_token"}
)
MAX_PREFIX_BYTES = 512  # of the 1024 that a name may have; consensus takes up to 160 of the rest

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def parse_s3_uri(path: str, parameters: Mapping[str, str], text: str) -> S3Settings:
    """The settings that a URI's path (decoded, from `//` on) and query say.

    `text` is the URI as it may be shown. Raises `InvalidUri`; no value of a parameter that may be a secret is shown.
    """
    if not path.startswith("//"):
        raise InvalidUri(f"{text!r}: wanted s3://bucket/prefix")
    bucket, _, prefix = path[2:].partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise InvalidUri(
            f"{text!r}: wanted a bucket's name after s3://, of 3 to 63 of a-z 0-9 . -; credentials go into the"
            " environment, or into access_key_id and secret_access_key"
        )
    if bucket.endswith("--x-s3"):
        raise InvalidUri(f"{text!r}: a directory bucket lists in no order; use a general purpose bucket")
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
        raise InvalidUri(f"{text!r}: profile and access_key_id are two answers to one question; give one of them")
    values = {name: value for name, value in parameters.items() if name != "path_style"}
    return S3Settings(bucket, prefix, path_style=_truth(parameters.get("path_style"), text), **values)


def _truth(path_style: str | None, text: str) -> bool | None:
    if path_style not in (None, "true", "false"):
        raise InvalidUri(f"{text!r}: path_style is {path_style!r}; wanted true or false")
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
        raise InvalidUri(f"{text!r}: wanted endpoint=http://host:port or https://host, without user, path or query")
