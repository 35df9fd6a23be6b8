"""Checks of a PostgreSQL server for `persist doctor`: versions, settings, rights, and poolers in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg

from persist_core.clock import Clock
from persist_core.location.finding import Finding, Grade, clock_offset, grade_if
from persist_core.location.postgres.uri import PostgresAddress

Ask = Callable[[str, Mapping[str, Any]], dict[str, Any]]

# Since 13 a timeout counts for each statement of a message, as we send them. Tests run on 15 and 18.
MIN_VERSION = 130_000
# The share of the connections for ordinary users above which the next peak may be refused.
MAX_BUSY_SHARE = 0.8

# Of other users' sessions an ordinary user sees no type, but database and user, which clients have.
_SERVER = """
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS version_number,
       current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
       (SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'synchronous_commit') AS synchronous_commit,
       coalesce(current_setting('synchronous_standby_names', true), '') AS standbys,
       current_setting('autovacuum') AS autovacuum, current_setting('transaction_read_only') AS read_only,
       pg_catalog.pg_is_in_recovery() AS in_recovery, pg_catalog.pg_backend_pid() AS session,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS max_busy,
       (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE datid IS NOT NULL AND usesysid IS NOT NULL
            AND coalesce(backend_type, 'client backend') = 'client backend') AS busy,
       (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now_ms
"""
_TABLE = """
SELECT n.oid IS NOT NULL AS has_schema, c.oid IS NOT NULL AS has_table,
       has_schema_privilege(n.oid, 'USAGE') AS may_use,
       CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(n.oid, 'CREATE') END AS may_create,
       has_table_privilege(c.oid, 'SELECT') AS "SELECT", has_table_privilege(c.oid, 'INSERT') AS "INSERT",
       has_column_privilege(c.oid, a.attnum, 'UPDATE') AS "UPDATE (is_head)",
       has_table_privilege(c.oid, 'DELETE') AS "DELETE",
       EXISTS (SELECT 1 FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid
               AND pg_catalog.pg_get_indexdef(i.indexrelid) LIKE '%%(key) WHERE is_head') AS has_index
FROM (SELECT %(schema)s::text AS schema_name, %(table)s::text AS table_name) AS ours
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = schema_name
LEFT JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = table_name
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'is_head'
"""
# The settings of the server that should be on: name, grade if it is off, expected, remedy.
_SWITCHES = (
    (
        "fsync",
        Grade.PROBLEM,
        "on",
        "set fsync = on: without it, a crash of the server's machine can undo or damage commits",
    ),
    ("full_page_writes", Grade.WARNING, "on, or a file system that never tears a page", "set full_page_writes = on"),
    ("autovacuum", Grade.WARNING, "on", "set autovacuum = on: truncated versions take space until it runs"),
)
_RIGHTS = ("SELECT", "INSERT", "UPDATE (is_head)", "DELETE")


def diagnose(
    ask: Ask, connection: psycopg.Connection[Any], address: PostgresAddress, clock: Clock
) -> Iterator[Finding]:
    """See `Examinable`. `ask` runs one query that has one row, on `connection`."""
    before_ms = clock.now_ms()
    server = ask(_SERVER, {})
    after_ms = clock.now_ms()
    yield grade_if(
        server["version_number"] < MIN_VERSION,
        "server",
        f"PostgreSQL {server['version']}",
        expected="13 or newer",
        remedy="upgrade the server",
    )
    is_direct = connection.info.backend_pid == server["session"]  # a pooler hands out session ids of its own
    pooled = "a pooler in between (PgBouncer: session and transaction mode both work)"
    yield Finding("pooler", Grade.OK, "none in between" if is_direct else pooled)
    yield _encryption(connection)
    for name, grade, expected, remedy in _SWITCHES:
        found = f"{name} = {server[name]}"
        yield grade_if(server[name] == "off", name, found, expected=expected, remedy=remedy, grade=grade)
    yield _synchronous_commit(server)
    yield grade_if(
        server["in_recovery"] or server["read_only"] == "on",
        "primary",
        "a standby or a read-only user" if server["in_recovery"] or server["read_only"] == "on" else "the primary",
        expected="the primary, and a user with write permission",
        remedy="name the primary in the URI; unset default_transaction_read_only",
    )
    yield grade_if(
        server["busy"] > MAX_BUSY_SHARE * server["max_busy"],
        "connections",
        f"{server['busy']} of {server['max_busy']} connections in use",
        expected=f"at most {MAX_BUSY_SHARE:.0%}",
        remedy="raise max_connections, or put PgBouncer in front of the server",
        grade=Grade.WARNING,
    )
    yield clock_offset(server["now_ms"], before_ms, after_ms)
    yield _rights(ask(_TABLE, {"schema": address.schema, "table": address.table}), address)


def _encryption(connection: psycopg.Connection[Any]) -> Finding:
    info = connection.info
    where = info.hostaddr or info.host
    is_local = where.startswith(("/", "127.", "@")) or where in ("::1", "localhost", "")
    how = "TLS" if connection.pgconn.ssl_in_use else "not encrypted"
    return grade_if(
        not connection.pgconn.ssl_in_use and not is_local,
        "encryption",
        f"{how}, on this machine" if is_local else how,
        expected="TLS",
        remedy="add sslmode=verify-full (and sslrootcert=FILE) to the URI",
        grade=Grade.WARNING,
    )


def _synchronous_commit(server: Mapping[str, Any]) -> Finding:
    setting, standbys = server["synchronous_commit"], server["standbys"]
    return grade_if(
        setting in ("off", "local", "remote_write") and bool(standbys),
        "synchronous_commit",
        f"synchronous_commit = {setting}, {'with' if standbys else 'without'} synchronous standbys"
        + (" (our commits use on)" if setting == "off" else ""),
        expected="on or remote_apply, if standbys are synchronous",
        remedy="set synchronous_commit = on: otherwise a failover can undo the newest commits",
        grade=Grade.WARNING,
    )


def _rights(table: Mapping[str, Any], address: PostgresAddress) -> Finding:
    remedy = "an administrator has to run the statements in docs/locations.md once"
    if not table["has_table"]:
        return grade_if(
            not table["may_create"],
            "rights",
            f"table {address.qualified} does not exist; this user may {'' if table['may_create'] else 'not '}create it",
            expected="the table, or the right to create it",
            remedy=remedy,
        )
    lacking = [] if table["may_use"] else [f"USAGE of schema {address.schema}"]
    lacking += [right for right in _RIGHTS if not table[right]]
    if table["may_use"] and not table["has_index"]:
        return Finding(
            "rights",
            Grade.PROBLEM,
            f"table {address.qualified} lacks its unique index on (key) WHERE is_head",
            "the table as in docs/locations.md",
            "if the table belongs to another program, name another one in the URI (table=...)",
        )
    return grade_if(
        bool(lacking),
        "rights",
        f"table {address.qualified}: {'lacking ' + ', '.join(lacking) if lacking else 'all rights needed'}",
        expected=", ".join(_RIGHTS),
        remedy=remedy,
    )
