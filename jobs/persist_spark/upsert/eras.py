"""Orders of a log whose numbers started again: which two cannot be compared, and how users make them comparable.

After a failover, a restored backup or `RESET MASTER`, the numbers of a log begin again below numbers already seen. An
order of `order: auto` knows its `server`, where the log says one, and two clocks: `source_ms`, at which the database
made the change, and `seen_ms`, at which the connector read it. Two orders of one slot are `incomparable` if

1. they are of two servers, or
2. the lower one is the later one by both clocks. One clock is not enough: a statement that took an hour comes late in
   the log with an early `source_ms`, and a connector that was restarted reads old changes again with a late `seen_ms`.

unless the user has said which is older, and both have an `era`: the rank of the server in `order.servers`, or how many
of `order.restarts` lie before `source_ms`. The era is the first field of the order, so it decides before all numbers;
server and clocks stand beside the order and decide nothing.

What a slot has seen is stored with its row and in the order index, so this holds across batches, after restores and in
forks, in any delivery, and no record is compared that need not be. Eras are derived again in each batch from stored
servers and clocks: a user may declare them once the question comes up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from persist_core.config.collection import CollectionConfig
from persist_core.config.order import AUTO_ORDERS, BESIDE, DOMAIN, ERA, SEEN_MS, SERVER, SOURCE_MS, has_eras
from persist_core.schema import Column
from persist_spark.order_memory import Order

_COLUMNS = (*AUTO_ORDERS["debezium-json"], *BESIDE)
FIELDS = {column.name: f"by{place}" for place, column in enumerate(_COLUMNS)}  # of the order struct, by what they say
_ERA, _SERVER, _SOURCE_MS, _SEEN_MS = (FIELDS[name] for name in (ERA, SERVER, SOURCE_MS, SEEN_MS))


@dataclass(frozen=True)
class Eras:
    """The answer of the user: the servers that wrote the log, first to last, or the times (ms) of its restarts.

    A GTID domain of MariaDB is declared by its number.
    """

    servers: tuple[str, ...] = ()
    restarts_ms: tuple[int, ...] = ()

    def placed(self, order: str, position: Sequence[Column], *, is_stored: bool = True) -> str:
        """SQL: the struct `order`, whose position has these fields, with its era. A record of a feed has none yet."""
        if self.servers:
            servers = ", ".join("'" + server.replace("\\", "\\\\").replace("'", "\\'") + "'" for server in self.servers)
            server = f"replace({order}.{_SERVER}, '{DOMAIN}', '')"
            era = f"nullif(array_position(array({servers}), {server}), 0)"
        elif self.restarts_ms:
            era = " + ".join(f"CAST({order}.{_SOURCE_MS} >= {time}L AS BIGINT)" for time in self.restarts_ms)
        elif is_stored:
            era = "CAST(NULL AS BIGINT)"  # it may have one of an earlier declaration
        else:
            return order
        fields = [*FIELDS.values()]
        names = [*fields[: -len(BESIDE)], *(column.name for column in position), *fields[-len(BESIDE) :]]
        cells = (f"'{name}', {era if name == _ERA else f'{order}.{name}'}" for name in names)
        return f"CASE WHEN {order} IS NOT NULL THEN named_struct({', '.join(cells)}) END"

    def ranked(self, order: Order) -> Order:
        """An order as plain values, with its era."""
        server, source_ms, _ = order[-len(BESIDE) :]
        number = (server or "").removeprefix(DOMAIN)
        era = self.servers.index(number) + 1 if number in self.servers else None
        if self.restarts_ms:
            era = None if source_ms is None else sum(source_ms >= time for time in self.restarts_ms)
        return (era, *order[1:])


def eras_of(config: CollectionConfig) -> Eras | None:
    """The declarations of a collection; `None` if its orders can always be compared."""
    if not has_eras(config.order, config.source.format):
        return None
    return Eras(config.order.servers, config.order.restarts_ms(config.timezone))


def incomparable(one: str, other: str) -> str:
    """SQL: true if two orders of a slot cannot be compared, else false or null."""
    ranks = f"{one}.{_ERA} IS NOT NULL AND {other}.{_ERA} IS NOT NULL"
    rises = " AND ".join(f"{one}.{clock} < {other}.{clock}" for clock in (_SOURCE_MS, _SEEN_MS))
    falls = " AND ".join(f"{one}.{clock} > {other}.{clock}" for clock in (_SOURCE_MS, _SEEN_MS))
    return f"""({one}.{_SERVER} != {other}.{_SERVER} AND NOT ({ranks})
        OR ({rises} AND {one} > {other} OR {falls} AND {one} < {other})
            AND NOT ({ranks} AND {one}.{_ERA} != {other}.{_ERA}))"""
