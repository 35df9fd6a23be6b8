"""What an `s3://` URI says: a bucket, a prefix in it, and how to get there.

s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-central-1&path_style=true
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from persist_core.errors import InvalidUri
from persist_core.location.s3_client import S3Settings

PARAMETERS = frozenset(
    {"endpoint", "region", "path_style", "profile", "access_key_id", "secret_access_key", "session_token"}
)

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MAX_PREFIX_BYTES = 512  # of the 1024 that a name may have; consensus takes up to 160 of the rest


def parse_s3_uri(text: str, path: str, parameters: Mapping[str, str]) -> S3Settings:
    """The settings that a URI names; `text` is the URI redacted, `path` and `parameters` are its parts, decoded.

    Raises `InvalidUri`, without showing the value of a parameter that may be secret.
    """
    if not path.startswith("//"):
        raise InvalidUri(f"{text!r}: wanted s3://bucket/prefix")
    bucket, _, prefix = path[2:].partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise InvalidUri(
            f"{text!r}: wanted a bucket's name after s3://, of 3 to 63 of a-z 0-9 . -; credentials go into the"
            " environment or into access_key_id and secret_access_key"
        )
    if bucket.endswith("--x-s3"):
        raise InvalidUri(f"{text!r}: a directory bucket lists in no order; use a general purpose bucket")
    if prefix and any(segment in ("", ".", "..") for segment in prefix.split("/")):
        raise InvalidUri(f"{text!r}: the prefix has an empty, '.' or '..' segment")
    if len(prefix.encode()) > _MAX_PREFIX_BYTES:
        raise InvalidUri(f"{text!r}: the prefix is longer than {_MAX_PREFIX_BYTES} bytes")
    empty = sorted(name for name, value in parameters.items() if not value)
    if empty:
        raise InvalidUri(f"{text!r}: query parameter {', '.join(empty)} is empty; wanted a value")
    values = dict(parameters)
    path_style = values.pop("path_style", None)
    if path_style not in (None, "true", "false"):
        raise InvalidUri(f"{text!r}: path_style is {path_style!r}; wanted true or false")
    _check_endpoint(text, values.get("endpoint"))
    if ("access_key_id" in values) != ("secret_access_key" in values):
        raise InvalidUri(f"{text!r}: access_key_id and secret_access_key go together; give both or neither")
    return S3Settings(bucket, prefix, path_style=None if path_style is None else path_style == "true", **values)


def _check_endpoint(text: str, endpoint: str | None) -> None:
    if endpoint is None:
        return
    try:
        url = urlsplit(endpoint)
        is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_url = False
    if not is_url or "@" in endpoint or url.path.strip("/") or url.query or url.fragment:
        raise InvalidUri(f"{text!r}: wanted endpoint=http://host:port or https://host, without user, path or query")
