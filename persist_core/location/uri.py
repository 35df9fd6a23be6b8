"""The common part of all backends' URIs: `scheme:path?parameters`, percent-encoding, what may be printed of them,
and their secrets: find them, to mask or refuse them, and insert a password.

Each backend reads the path and the parameters of its scheme.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, unquote_to_bytes

from persist_core.errors import InvalidUri

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*")
_BAD_PERCENT = re.compile(r"%(?![0-9a-fA-F]{2})")
_MATRIX_PARAMETER = re.compile(r";([^;=]*)=([^;]*)")  # of a Spark Connect URL: sc://host:port/;token=...
_PLACE_PARAMETERS = frozenset(
    {"endpoint", "host", "hostaddr", "port", "dbname", "service", "schema", "table"}
)  # all others say how to connect
POSTGRES_DEFAULTS = {"port": "5432", "schema": "persist", "table": "consensus"}
_SECRET_PARAMETER = re.compile(r"pass|pwd|secret|token|key|credential|sig", re.IGNORECASE)


@dataclass(frozen=True)
class LocationUri:
    """`scheme:path?parameters`, percent-decoded, the path with all its slashes; `text` is the redacted URI."""

    scheme: str
    path: str
    text: str
    uri: str = field(repr=False)  # as given, secrets included
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)


def parse_uri(uri: str, role: str, schemes: Mapping[str, frozenset[str]]) -> LocationUri:
    """`uri` in its pieces. `role` names it in errors; `schemes`: the allowed ones, with the parameters each takes.

    Raises `InvalidUri` for an unknown scheme or parameter, a parameter given twice, a fragment, a space at the end, bad
    encoding.
    """
    text = redact_uri(uri)
    listed = ", ".join(f"{scheme}:" for scheme in sorted(schemes))
    scheme, colon, rest = uri.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme):
        raise InvalidUri(f"{role} URI {text!r} has no scheme; expected one of {listed}")
    scheme = scheme.lower()
    if scheme not in schemes:
        raise InvalidUri(f"{role} URI {text!r}: unknown scheme {scheme!r}; expected one of {listed}")
    if rest != rest.rstrip(" \t\r\n"):  # of an environment file, for example
        raise InvalidUri(f"{role} URI {text!r} ends with white space; remove it, or write a space as %20")
    path, mark, query = rest.partition("?")
    if "#" in rest:
        raise InvalidUri(f"{role} URI {text!r} has a fragment; write '#' as %23")
    where = f"{role} URI {text!r}"
    if mark and "?" not in text:  # what looks like the query belongs to a password: do not quote it
        raise InvalidUri(f"{where}: in a user name or password write @ as %40, / as %2F, ? as %3F, # as %23, : as %3A")
    parameters = _parameters(query, scheme, schemes[scheme], where) if mark else {}
    return LocationUri(scheme, _decoded(path, where), text, uri, parameters)


def redact_uri(uri: str) -> str:
    """`uri` without user names, passwords and the values of query parameters that look secret: safe to print.

    A Spark Connect URL's parameters (`;token=...`) are such too. Of a URI with user and password, everything up to the
    last `@` goes: a password may hold a raw `/`, `?` or `@`.
    """
    uri = _MATRIX_PARAMETER.sub(lambda it: f";{it[1]}={'***' if _hides(it[1], it[2]) else it[2]}", uri)
    start = re.match(r"postgres(?:ql)?:/{0,2}|(?:[^/]*:)?//", uri, re.IGNORECASE)  # missing slashes must not reveal it
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


def place_of(uri: str) -> tuple[str, ...]:
    """The store that `uri` names, to compare: without user, password and other credentials, and how to connect."""
    head, _, query = redact_uri(uri).partition("?")
    scheme, _, path = head.replace("***@", "", 1).partition(":")
    scheme = "postgresql" if scheme.lower() == "postgres" else scheme.lower()
    path = re.sub(r"(?<=[^/])/+", "/", unquote(path)).rstrip("/")
    named = dict(unquote(each).rstrip("/").partition("=")[::2] for each in query.split("&"))
    if scheme == "file":
        path = re.sub(r"^//(localhost)?(?=/)", "", path)
    if scheme == "postgresql":
        authority, _, database = path.removeprefix("//").partition("/")
        port = f":{named.pop('port')}" if "port" in named and ":" not in authority else ""
        authority = re.sub(r":5432(?=,|$)", "", f"{authority or named.pop('host', '')}{port}")
        path = f"//{authority}/{named.pop('dbname', database)}"
        named = {name: value for name, value in named.items() if POSTGRES_DEFAULTS.get(name) != value}
    return scheme, path, *sorted(f"{name}={value}" for name, value in named.items() if name in _PLACE_PARAMETERS)


def _hides(name: str, value: str) -> bool:
    """True if a query parameter may hold a secret: by its name, or because its value is a URL with a user in it."""
    return bool(_SECRET_PARAMETER.search(unquote(name))) or "@" in unquote(value)


def _parameters(query: str, scheme: str, known: frozenset[str], where: str) -> dict[str, str]:
    """The query's `name=value` pairs, decoded (`+` is a plus sign). Unknown and repeated names are refused."""
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
    if _BAD_PERCENT.search(text):
        raise InvalidUri(f"{where} has a '%' that starts no escape; write it as %25")
    try:
        decoded = unquote_to_bytes(text).decode("utf-8")
    except UnicodeError:
        raise InvalidUri(f"{where} is not UTF-8 after percent-decoding") from None
    if any(ord(character) < 32 or ord(character) == 127 for character in decoded):
        raise InvalidUri(f"{where} has a control character")
    return decoded


_SECRET_PARAMETERS = frozenset({"password", "sslpassword", "secret_access_key", "session_token"})
_SCHEME_AND_SLASHES = re.compile(r"[a-z][a-z0-9+.-]*:/{0,2}", re.IGNORECASE)
_IS_FILE = re.compile(r"(?:file|sqlite|mem):", re.IGNORECASE)  # an @ in a path ends no password
_POSTGRES = re.compile(r"(postgres(?:ql)?://)(?:([^/?#@]*)@)?(?=[^@]*$)", re.IGNORECASE)


def secrets_of(uri: str) -> tuple[str, ...]:
    """The passwords, secret keys and tokens in `uri`, each as written and percent-decoded.

    A user name, an access key id and the path of a key file are not secrets.
    """
    found = []
    scheme = _SCHEME_AND_SLASHES.match(uri)
    rest = uri[scheme.end() :] if scheme else uri
    head, _, query = rest.partition("?")
    if "@" in head and not _IS_FILE.match(uri):  # a password may hold a raw `/` or `@`: it ends at the last one
        found.append(head[: head.rfind("@")].partition(":")[2])
    for parameter in query.split("&"):
        name, _, value = parameter.partition("=")
        if unquote(name) in _SECRET_PARAMETERS:
            found.append(value)
    found += [
        value for name, value in _MATRIX_PARAMETER.findall(uri) if unquote(name) in _SECRET_PARAMETERS | {"token"}
    ]
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
