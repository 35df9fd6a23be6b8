"""Parses a `postgresql://` URI: a database for libpq, and which table in it is ours.

    postgresql://user:password@host:5432/database?schema=persist&table=consensus&sslmode=verify-full
                 '------------- libpq ----------' '------ ours ------------' '----- libpq ------'

libpq itself reads its part, so several hosts, IPv6, sockets, `.pgpass` and services work as everywhere else. Its
error messages are not passed on: they quote the URI, password included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from persist_core.errors import InvalidUri
from persist_core.location.uri import POSTGRES_DEFAULTS, LocationUri

DEFAULT_SCHEMA, DEFAULT_TABLE = POSTGRES_DEFAULTS["schema"], POSTGRES_DEFAULTS["table"]

# How long the server may work on one statement, waiting for locks included. A commit takes milliseconds; this leaves
# room for a disk that stalls, and is still well below any task's own timeout.
DEFAULT_STATEMENT_TIMEOUT_MS = 30_000
_STATEMENT_TIMEOUTS_MS = range(100, 3_600_001)

_OURS = frozenset({"schema", "table", "statement_timeout_ms"})
# What libpq knows (its manual, "Parameter Key Words") and cannot do harm here. Not among them: `client_encoding` (keys
# are UTF-8), `replication` (another protocol) and aliases of these.
_LIBPQ = frozenset((
    "application_name", "channel_binding", "connect_timeout", "dbname", "gssdelegation", "gssencmode", "gsslib",
    "host", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "krbsrvname",
    "load_balance_hosts", "options", "passfile", "password", "port", "require_auth", "requirepeer", "service",
    "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcertmode", "sslcrl", "sslcrldir", "sslkey",
    "sslmode", "sslnegotiation", "sslpassword", "sslrootcert", "sslsni", "target_session_attrs", "tcp_user_timeout",
    "user",
))  # fmt: skip
PARAMETERS = _OURS | _LIBPQ

# Letters that need no quoting anywhere; at most 50, so that the names of indexes fit into PostgreSQL's 63 bytes.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}")

_DEFAULTS = {
    "connect_timeout": "10",
    "fallback_application_name": "airflow-persist",
    # A standby lags behind: only the primary is linearizable.
    "target_session_attrs": "primary",
    # A peer that vanishes is noticed after about a minute.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
_PRIMARY = ("primary", "read-write")


@dataclass(frozen=True)
class PostgresAddress:
    """A database and the table in it. `libpq` may hold a password: it is not printed."""

    text: str  # the URI, redacted
    schema: str = DEFAULT_SCHEMA
    table: str = DEFAULT_TABLE
    statement_timeout_ms: int = DEFAULT_STATEMENT_TIMEOUT_MS
    libpq: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def qualified(self) -> str:
        """The table's full name, quoted. Never left to `search_path`: two roles could mean two tables."""
        return f'"{self.schema}"."{self.table}"'


def parse_postgres_uri(uri: LocationUri) -> PostgresAddress:
    """The address that `uri` names. Raises `InvalidUri`, without quoting anything that may belong to a password."""
    text, parameters = uri.text, uri.parameters
    _, slashes, rest = uri.uri.partition("//")
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    if not slashes or rest.count("@") > (1 if "@" in authority else 0):
        raise InvalidUri(
            f"{text!r}: expected postgresql://user:password@host:port/database; in a user name, password or parameter "
            "write @ as %40, / as %2F, ? as %3F, # as %23 and : as %3A"
        )
    for name in ("schema", "table"):
        if name in parameters and not _NAME.fullmatch(parameters[name]):
            raise InvalidUri(
                f"{text!r}: {name} is {parameters[name]!r}; expected 1 to 50 of A-Z a-z 0-9 _, no leading digit"
            )
    attributes = parameters.get("target_session_attrs", _PRIMARY[0])
    if attributes not in _PRIMARY:
        raise InvalidUri(
            f"{text!r}: target_session_attrs is {attributes!r}; expected {' or '.join(_PRIMARY)}: a standby "
            "lags behind the primary"
        )
    return PostgresAddress(
        text,
        parameters.get("schema", DEFAULT_SCHEMA),
        parameters.get("table", DEFAULT_TABLE),
        _statement_timeout_ms(text, parameters.get("statement_timeout_ms")),
        _DEFAULTS | _read_by_libpq(uri.uri, text) | {"client_encoding": "UTF8"},
    )


def _statement_timeout_ms(text: str, value: str | None) -> int:
    if value is None:
        return DEFAULT_STATEMENT_TIMEOUT_MS
    timeout_ms = int(value) if re.fullmatch(r"[0-9]{1,9}", value) else 0
    if timeout_ms not in _STATEMENT_TIMEOUTS_MS:
        low, high = _STATEMENT_TIMEOUTS_MS[0], _STATEMENT_TIMEOUTS_MS[-1]
        raise InvalidUri(f"{text!r}: statement_timeout_ms is {value!r}; expected an integer in [{low}, {high}]")
    return timeout_ms


def _read_by_libpq(uri: str, text: str) -> dict[str, str]:
    try:
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise InvalidUri(f"{text!r} needs psycopg: pip install 'airflow-persist[postgres]'") from None
    base, mark, query = uri.partition("?")
    theirs = [pair for pair in query.split("&") if pair.partition("=")[0] not in _OURS]
    try:
        found = conninfo_to_dict(base + mark * bool(theirs) + "&".join(theirs))
    except Error:
        raise InvalidUri(
            f"{text!r}: libpq cannot parse it; expected postgresql://user:password@host:port/database?parameter=value, "
            "with every character percent-encoded that is not a letter or digit"
        ) from None
    return {name: str(value) for name, value in found.items() if value is not None}
