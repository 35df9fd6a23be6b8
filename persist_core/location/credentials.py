"""The secrets in a location's URI: find them, to mask or refuse them, and insert a password."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from persist_core.errors import InvalidUri
from persist_core.location.uri import matrix_parameters, redact_uri

_SECRET_PARAMETERS = frozenset({"password", "sslpassword", "secret_access_key", "session_token"})
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/{0,2}", re.IGNORECASE)
_IS_FILE = re.compile(r"(?:file|sqlite|mem):", re.IGNORECASE)  # an @ in a path ends no password
_POSTGRES = re.compile(r"(postgres(?:ql)?://)(?:([^/?#@]*)@)?(?=[^@]*$)", re.IGNORECASE)


def secrets_of(uri: str) -> tuple[str, ...]:
    """The passwords, secret keys and tokens in `uri`, each as written and percent-decoded.

    A user name, an access key id and the path of a key file are not secrets.
    """
    found = []
    scheme = _SCHEME.match(uri)
    rest = uri[scheme.end() :] if scheme else uri
    head, _, query = rest.partition("?")
    if "@" in head and not _IS_FILE.match(uri):  # a password may hold a raw `/` or `@`: it ends at the last one
        found.append(head[: head.rfind("@")].partition(":")[2])
    for parameter in query.split("&"):
        name, _, value = parameter.partition("=")
        if unquote(name) in _SECRET_PARAMETERS:
            found.append(value)
    found += [value for name, value in matrix_parameters(uri) if unquote(name) in _SECRET_PARAMETERS | {"token"}]
    return tuple(dict.fromkeys(form for secret in found if secret for form in (secret, unquote(secret))))


def with_login(uri: str, user: str | None, password: str | None) -> str:
    """A `postgresql:` URI with that user and password, percent-encoded. Parts that are `None` or empty change nothing.

    Raises `InvalidUri` if the URI is of another scheme, or names another user or a password of its own.
    """
    if not user and not password:
        return uri
    address = _POSTGRES.match(uri)
    if address is None:
        raise InvalidUri(
            f"{redact_uri(uri)!r}: a user and a password were given for it; expected postgresql://host:port/database."
            " For S3 give an AWS connection or AWS's environment variables"
        )
    named = unquote(address[2] or "")
    if secrets_of(uri) or (named and user and named != user):
        raise InvalidUri(
            f"{redact_uri(uri)!r}: it names a user or a password, and others were given for it; leave them out of the"
            " URI"
        )
    if not (user or named):
        raise InvalidUri(f"{redact_uri(uri)!r}: a password was given for it without a user; give both")
    login = quote(user or named, safe="") + (f":{quote(password, safe='')}" if password else "")
    return f"{address[1]}{login}@{uri[address.end() :]}"
