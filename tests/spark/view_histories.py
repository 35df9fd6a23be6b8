"""Three inputs with random histories, and queries of every shape over them.

`orders` and `customers` are keyed, as upserts keep them; `events` is a multiset, with the same row many times.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from persist_core.schema import CollectionSchema, Column
from tests.plain_commit import Update
from tests.spark.view_shards import ViewShards

ORDERS = CollectionSchema(
    key=(Column("id", "bigint", nullable=False),),
    values=(
        Column("customer", "int"),
        Column("amount", "decimal(12,2)"),
        Column("weight", "double"),
        Column("status", "string"),
        Column("placed", "timestamp"),
    ),
)
CUSTOMERS = CollectionSchema(
    key=(Column("customer", "int", nullable=False),),
    values=(Column("city", "string"), Column("vip", "boolean"), Column("born", "date")),
)
EVENTS = CollectionSchema(key=(), values=(Column("customer", "int"), Column("kind", "string"), Column("raw", "binary")))
SCHEMAS = {"orders": ORDERS, "customers": CUSTOMERS, "events": EVENTS}

_STATUSES = (None, "", "new", "paid", "shipped", "Ünïcödé")
_WEIGHTS = (None, 0.0, -0.0, 1.5, float("nan"), float("inf"), -2.25)
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_MAX_KEYS = 8  # few, so that rows meet in joins, groups and sets

# Each is one view: its inputs, and a query whose answer is a function of them. Names say what is tested.
QUERIES: dict[str, tuple[tuple[str, ...], str]] = {
    "everything": (("orders",), "SELECT * FROM orders"),
    "filter": (("orders",), "SELECT id, status FROM orders WHERE amount > 5 AND status IS NOT NULL"),
    "filter_nothing": (("orders",), "SELECT * FROM orders WHERE false"),
    "projection_makes_duplicates": (("orders",), "SELECT status FROM orders"),
    "expressions": (
        ("orders",),
        "SELECT id * 2 AS twice, upper(status) AS up, coalesce(amount, 0) + 1 AS more, weight / 2 AS half FROM orders",
    ),
    "nan_and_zero": (("orders",), "SELECT weight, -weight AS minus, CAST(weight AS FLOAT) AS narrow FROM orders"),
    "small_types": (
        ("orders",),
        "SELECT CAST(1 AS BYTE) AS b, CAST(customer AS SHORT) AS s, CAST(status AS VARCHAR(20)) AS v FROM orders",
    ),
    "inner_join": (("orders", "customers"), "SELECT o.id, c.city FROM orders o JOIN customers c USING (customer)"),
    "left_join": (("orders", "customers"), "SELECT * FROM orders LEFT JOIN customers USING (customer)"),
    "right_join": (
        ("orders", "customers"),
        "SELECT o.id, c.customer FROM orders o RIGHT JOIN customers c ON o.customer = c.customer AND o.amount > 3",
    ),
    "full_join": (("orders", "events"), "SELECT o.status, e.kind FROM orders o FULL JOIN events e USING (customer)"),
    "cross_join": (("customers", "events"), "SELECT city, kind FROM customers CROSS JOIN events"),
    "semi_join": (("orders", "events"), "SELECT id FROM orders LEFT SEMI JOIN events USING (customer)"),
    "anti_join": (("orders", "events"), "SELECT id FROM orders LEFT ANTI JOIN events USING (customer)"),
    "self_join": (
        ("orders",), "SELECT a.id, b.id AS other FROM orders a JOIN orders b ON a.customer = b.customer AND a.id < b.id"
    ),
    "null_safe_join": (("orders",), "SELECT a.status FROM orders a JOIN orders b ON a.status <=> b.status"),
    "three_way_join": (
        ("orders", "customers", "events"),
        "SELECT o.id, c.city, e.kind FROM orders o JOIN customers c USING (customer) JOIN events e USING (customer)",
    ),
    "aggregate": (
        ("orders",),
        "SELECT customer, count(*) AS n, sum(amount) AS total, min(status) AS least, max(placed) AS last"
        " FROM orders GROUP BY customer",
    ),
    "aggregate_without_groups": (("orders",), "SELECT count(*) AS n, sum(amount) AS total FROM orders"),
    "aggregate_of_a_join": (
        ("orders", "customers"),
        "SELECT city, vip, count(DISTINCT o.id) AS n, avg(amount) AS mean"
        " FROM customers c JOIN orders o USING (customer) GROUP BY city, vip",
    ),
    "having": (("events",), "SELECT kind, count(*) AS n FROM events GROUP BY kind HAVING count(*) > 1"),
    "rollup": (
        ("orders",), "SELECT customer, status, count(*) AS n FROM orders GROUP BY ROLLUP (customer, status)"
    ),
    "filtered_aggregate": (
        ("orders",), "SELECT count(*) FILTER (WHERE amount > 5) AS many, max_by(id, (amount, id)) AS top FROM orders"
    ),
    "distinct": (("events",), "SELECT DISTINCT kind FROM events"),
    "row_number": (
        ("orders",),
        "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) AS place FROM orders",
    ),
    "top_of_each": (
        ("orders",),
        "SELECT * FROM (SELECT id, customer, amount, rank() OVER (PARTITION BY customer ORDER BY amount DESC, id) AS r"
        " FROM orders) WHERE r <= 2",
    ),
    "running_sum": (
        ("orders",), "SELECT id, sum(amount) OVER (PARTITION BY customer ORDER BY id) AS so_far FROM orders"
    ),
    "lag": (("orders",), "SELECT id, lag(status) OVER (ORDER BY id) AS before FROM orders"),
    "union_all": (("orders", "events"), "SELECT customer FROM orders UNION ALL SELECT customer FROM events"),
    "union": (("orders", "events"), "SELECT customer FROM orders UNION SELECT customer FROM events"),
    "except_all": (("orders", "events"), "SELECT customer FROM events EXCEPT ALL SELECT customer FROM orders"),
    "except": (("orders", "events"), "SELECT customer FROM events EXCEPT SELECT customer FROM orders"),
    "intersect_all": (("orders", "events"), "SELECT customer FROM orders INTERSECT ALL SELECT customer FROM events"),
    "in_subquery": (
        ("orders", "customers"),
        "SELECT id FROM orders WHERE customer IN (SELECT customer FROM customers)",
    ),
    "not_exists": (
        ("orders", "events"),
        "SELECT id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.customer = o.customer)",
    ),
    "scalar_subquery": (("orders",), "SELECT id FROM orders WHERE amount >= (SELECT avg(amount) FROM orders)"),
    "with_shadowing": (
        ("orders",),
        "WITH orders AS (SELECT * FROM orders WHERE id > 2), n AS (SELECT count(*) AS n FROM orders) SELECT * FROM n",
    ),
    "nested": (
        ("orders",),
        "SELECT customer, sort_array(collect_list(struct(id, amount, placed, weight))) AS orders,"
        " map('n', count(*)) AS facts FROM orders GROUP BY customer",
    ),
    "explode": (("orders",), "SELECT id, word FROM orders LATERAL VIEW explode(array(status, 'x', status)) w AS word"),
    "order_and_limit": (("orders",), "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 3"),
    "values_beside": (
        ("events",),
        "SELECT e.kind, v.label FROM events e JOIN VALUES ('a', 1), ('b', 2) AS v(kind, label) USING (kind)",
    ),
    "odd_names": (("customers",), "SELECT city AS `a.b`, vip AS `back``tick`, born AS `'; DROP --` FROM customers"),
    "decimals": (("orders",), "SELECT amount * amount AS squared, sum(amount) OVER () AS total FROM orders"),
    "binary_and_dates": (("customers", "events"), "SELECT raw, date_add(born, 1) AS next FROM events, customers"),
    "cases": (("orders",), "SELECT CASE WHEN amount > 5 THEN 'big' WHEN amount IS NULL THEN NULL ELSE 'small' END AS s"
                           " FROM orders"),
}  # fmt: skip


class History:
    """Random batches for the three inputs; `contents` is what they hold, by a plain model."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._updates: dict[str, list[Update]] = {name: [] for name in SCHEMAS}

    def grow(self, shards: ViewShards, lower: int, upper: int) -> None:
        """One more batch for each input. They end at different uppers from `upper` on."""
        for name, schema in SCHEMAS.items():
            known = shards.client.ensure_shard(name).upper.time or 0
            own_upper = max(upper, known) + self._random.randrange(3)
            grow = self._grow_multiset if not schema.key else self._grow_keyed
            updates = grow(name, max(lower, known), own_upper) if own_upper > known else []
            self._updates[name] += updates
            if own_upper > known:
                shards.commit(name, schema, own_upper, updates)

    def contents(self, name: str, as_of: int) -> list[tuple[Any, ...]]:
        """The rows as of a time."""
        counts: dict[tuple[Any, ...], int] = {}
        rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for row, time, diff in self._updates[name]:
            if time <= as_of:
                key = tuple(map(repr, row))
                counts[key] = counts.get(key, 0) + diff
                rows[key] = row
        return [rows[key] for key, count in counts.items() for _ in range(count)]

    def _grow_keyed(self, name: str, lower: int, upper: int) -> list[Update]:
        """Inserts, updates and deletes: at most one value a key at any time."""
        make: Callable[[int], tuple[Any, ...]] = self._order if name == "orders" else self._customer
        alive = {row[0]: row for row in self.contents(name, lower - 1)}
        updates: list[Update] = []
        for time in range(lower, upper):
            for key in self._random.sample(range(_MAX_KEYS), self._random.randrange(4)):
                before = alive.pop(key, None)
                if before is not None:
                    updates.append((before, time, -1))
                if before is None or self._random.random() < 0.7:
                    alive[key] = make(key)
                    updates.append((alive[key], time, 1))
        return _consolidated(updates)

    def _grow_multiset(self, name: str, lower: int, upper: int) -> list[Update]:
        updates: list[Update] = []
        held = self.contents(name, lower - 1)
        self._random.shuffle(held)
        for time in range(lower, upper):
            row = (
                self._random.choice((None, *range(_MAX_KEYS))),
                self._random.choice("abc"),
                self._random.choice((None, b"\xff\x00")),
            )
            updates.append((row, time, self._random.randrange(1, 4)))
            if held:
                updates.append((held.pop(), time, -1))
        return _consolidated(updates)

    def _order(self, key: int) -> tuple[Any, ...]:
        draw = self._random
        amount = None if draw.random() < 0.2 else Decimal(draw.randrange(-200, 2_000)).scaleb(-2)
        placed = None if draw.random() < 0.2 else _NOON + timedelta(microseconds=draw.randrange(10**12))
        customer = draw.choice((None, *range(_MAX_KEYS)))
        return (key, customer, amount, draw.choice(_WEIGHTS), draw.choice(_STATUSES), placed)

    def _customer(self, key: int) -> tuple[Any, ...]:
        draw = self._random
        born = None if draw.random() < 0.3 else date(1900, 1, 1) + timedelta(days=draw.randrange(60_000))
        return (key, draw.choice((None, "Graz", "Cork", "Oulu")), draw.choice((None, True, False)), born)


def _consolidated(updates: list[Update]) -> list[Update]:
    sums: dict[tuple[str, int], tuple[tuple[Any, ...], int, int]] = {}
    for row, time, diff in updates:
        _, _, before = sums.get((repr(row), time), (row, time, 0))
        sums[(repr(row), time)] = (row, time, before + diff)
    return [update for update in sums.values() if update[2]]
