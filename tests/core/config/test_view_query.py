"""Facts about a view's query without Spark: inputs and certain mistakes; no valid query is refused."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from persist_core.config import view_query
from persist_core.config.query_rules import BadQuery
from persist_core.config.view_query import ParsedQuery, parse, parse_condition
from tests.view_texts import HOSTILE, ONLY_SPARK_SEES, ORDINARY

COLUMNS = {"a": ["id", "x", "y"], "b": ["id", "z"]}

RIGHT = {  # query -> its inputs
    "SELECT * FROM a JOIN b USING (id)": ("a", "b"),
    "SELECT * FROM b, a, b AS again": ("b", "a"),
    "WITH x AS (SELECT * FROM a) SELECT * FROM x, `my-orders.v1` m": ("a", "my-orders.v1"),
    "WITH orders AS (SELECT * FROM orders) SELECT * FROM orders": ("orders",),
    "WITH r AS (SELECT 1), s AS (SELECT * FROM r) SELECT * FROM s JOIN a": ("a",),
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT * FROM t, a": ("a",),
    "WITH q AS (SELECT * FROM later), later AS (SELECT 1) SELECT * FROM q": ("later",),
    "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b LIMIT 1)": ("a", "b"),
    "SELECT x FROM a WHERE (SELECT max(z) FROM b WHERE b.id = a.id) > 1": ("a", "b"),
    "SELECT x FROM a WHERE y IN (SELECT z FROM b)": ("a", "b"),
    "SELECT x FROM ((SELECT x FROM a) UNION (SELECT z FROM b))": ("a", "b"),
    "SELECT r.id FROM range(10) r JOIN a": ("a",),
    "SELECT unix_timestamp(x) FROM a": ("a",),
    "SELECT sort_array(collect_list(x)), size(collect_set(y)) FROM a": ("a",),
    "SELECT array_sort(collect_list(x) FILTER (WHERE y > 1)) FROM a": ("a",),
    "SELECT array_sort(sort_array(collect_list(x)), (l, r) -> 0) FROM a": ("a",),
    "SELECT format_string('%%t %5d%% %s (%.2f)', x, y, x), printf(r'%d\\t', x) FROM a": ("a",),
    "SELECT collect_list(x) OVER (PARTITION BY y ORDER BY id), first(x) IGNORE NULLS OVER (ORDER BY id) FROM a": ("a",),
    "SELECT listagg(x) WITHIN GROUP (ORDER BY x) FROM a": ("a",),
    "SELECT * FROM a ORDER BY x LIMIT 5 OFFSET 2": ("a",),
    "SELECT * FROM a LIMIT ALL": ("a",),
    "SELECT id AS k, k + 1 AS next FROM a": ("a",),
    "SELECT transform(array(1), q -> q + 1) FROM a": ("a",),
    "SELECT * FROM a LATERAL VIEW explode(array(1)) t AS q WHERE q > 1": ("a",),
    "SELECT p FROM a AS t(p, q, r)": ("a",),
    "SELECT X, a.Y FROM a": ("a",),
    "SELECT 'today' AS word, DATE'2026-01-01', CAST('epoch' AS DATE), CAST('now' AS STRING) FROM a": ("a",),
    "SELECT mode(x, true), mode() WITHIN GROUP (ORDER BY x) FROM a": ("a",),
    "SELECT sum(x) OVER (PARTITION BY y ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM a": ("a",),
    "SELECT sum(x) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM a": ("a",),
    "SELECT x, count(*) AS n FROM a GROUP BY ALL HAVING n > 1 ORDER BY n": ("a",),
    "SELECT * EXCEPT (x) FROM a": ("a",),
    "FROM a SELECT x": ("a",),
    "SELECT 'now()', '; rand()' FROM a -- uuid()": ("a",),
    "SELECT now, rand FROM c": ("c",),
    "SELECT x FROM a;": ("a",),
    "SELECT * FROM a PIVOT (sum(x) FOR y IN (1, 2))": ("a",),
    "SELECT c.nothing_known FROM c": ("c",),
    "SELECT b.id, c.q FROM b JOIN LATERAL (SELECT b.z AS q) c": ("b",),
}

WRONG = {  # query -> what the message must contain
    "": "found 0 characters, expected a query",
    "SELECT 1; SELECT 2": "found 2 statements, expected one query",
    "INSERT INTO a SELECT 1": r"found a statement \(INSERT\), expected a query",
    "CREATE TABLE x AS SELECT 1": r"found a statement \(CREATE\)",
    "DROP TABLE a": r"found a statement \(DROP\)",
    "DELETE FROM a": r"found a statement \(DELETE\)",
    "SHOW TABLES": r"found a statement \(SHOW\)",
    "SELECT * FROM db.a": r"found db\.a \(line 1, column 18\), expected the name of a shard only; .* `db\.a`",
    "SELECT rand() FROM a": r"found rand\(\) \(line 1, column 8\), expected a function of the inputs only",
    "SELECT x,\n  now() FROM a": r"found now\(\) \(line 2, column 3\)",
    "SELECT current_timestamp FROM a": r"found current_timestamp \(line 1, column 8\)",
    "SELECT current_date() FROM a": "current_date",
    "SELECT unix_timestamp() FROM a": r"found unix_timestamp\(\)",
    "SELECT uuid() FROM a": r"found uuid\(\)",
    "SELECT monotonically_increasing_id() FROM a": r"found monotonically_increasing_id\(\)",
    "SELECT spark_partition_id(), input_file_name() FROM a": r"found spark_partition_id\(\)",
    "SELECT shuffle(array(1, 2)) FROM a": r"found shuffle\(\)",
    "SELECT java_method('java.util.UUID', 'randomUUID') FROM a": r"found java_method\(\)",
    "SELECT current_user FROM a": "found current_user",
    "SELECT * FROM a TABLESAMPLE (5 PERCENT)": r"found TABLESAMPLE \(line 1, column 15\), .*xxhash64",
    "SELECT * FROM a LIMIT 5": r"found LIMIT without ORDER BY \(line 1, column 23\)",
    "SELECT * FROM (SELECT * FROM a LIMIT 5) ORDER BY x": "found LIMIT without ORDER BY",
    "SELECT first(x) FROM a": r"found first\(\) \(line 1, column 8\), expected one certain value; write max_by\(x, ",
    "SELECT any_value(x) FROM a": r"found any_value\(\)",
    "SELECT last(x) OVER (PARTITION BY y) FROM a": r"found last\(\)",
    "SELECT collect_list(x) FROM a": r"found collect_list\(\) .* write sort_array\(collect_list\(\.\.\.\)\)",
    "SELECT concat_ws(',', collect_set(x)) FROM a": r"found collect_set\(\)",
    "SELECT array_sort(collect_list(x), (l, r) -> 0) FROM a": r"found collect_list\(\) .* write sort_array\(",
    "SELECT `array_sort`((collect_set(x) FILTER (WHERE y > 1)), compare) FROM a": r"found collect_set\(\)",
    "SELECT array_contains(y, collect_list(x)) FROM a": r"found collect_list\(\)",
    "SELECT format_string('%tT', x) FROM a": r"found format_string\(\) \(line 1, column 8\), .* one literal without %t",
    "SELECT `printf`('%d%% %2$-5TH', x, y) FROM a": "one literal without %t",
    "SELECT printf('%\\u0074H', x) FROM a": "one literal without %t",
    "SELECT format_string(r'%<tH', x) FROM a": "one literal without %t",
    "SELECT format_string(concat('%', 't', 'H'), x), printf(y, x) FROM a": "one literal without %t",
    "SELECT DATE'today' FROM a": r"found 'today' as a time \(line 1, column 12\), expected a fixed time",
    "SELECT CAST(' Now ' AS TIMESTAMP) FROM a": r"found ' Now ' as a time",
    "SELECT try_cast('now' AS timestamp) FROM a": "found 'now' as a time",
    "SELECT x::date, 'yesterday'::date FROM a": "found 'yesterday' as a time",
    "SELECT date('today') FROM a": "found 'today' as a time",
    "SELECT to_date('tomorrow') FROM a": "found 'tomorrow' as a time",
    "SELECT to_timestamp('now') FROM a": "found 'now' as a time",
    "SELECT timestamp('now') FROM a": "found 'now' as a time",
    "SELECT mode(x) FROM a": r"found mode\(\) .* write mode\(x, true\)",
    "SELECT sum(x) OVER (PARTITION BY y ROWS 2 PRECEDING) FROM a": r"found ROWS without ORDER BY \(line 1, column 8\)",
    "SELECT nope FROM a": r"found column nope \(line 1, column 8\), expected one of id, x, y; correct the name",
    "SELECT idd FROM a": "did you mean 'id'",
    "SELECT a.nope FROM a JOIN b ON a.id = b.id": r"found column a\.nope \(line 1, column 10\), expected one of id, x",
    "SELECT t.z FROM a t JOIN b AS t2": r"found column t\.z",
    "SELECT x FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.x = a.id)": r"found column b\.x",
    "SELECT x FROM a UNION ALL SELECT w FROM b": "found column w",
    "SELECT x FROM a ORDER BY nope": "found column nope",
}


@pytest.mark.parametrize("query", RIGHT)
def test_right_queries_pass_and_name_their_inputs(query: str) -> None:
    parsed = parse(query)
    parsed.check_columns(COLUMNS.get)
    assert parsed.inputs == RIGHT[query]


@pytest.mark.parametrize("query", WRONG)
def test_wrong_queries_say_what_where_and_what_to_do(query: str) -> None:
    with pytest.raises(BadQuery, match=WRONG[query]):
        parse(query).check_columns(COLUMNS.get)


PIPES = (
    "LIMIT 1", "LIMIT x + 1", "ORDER BY x |> LIMIT 2 |> LIMIT 1", "UNION VALUES ALL (SELECT 1)",
    "AGGREGATE sum(x) GROUP BY",
)  # fmt: skip
WORDS = (
    "SELECT", "(", ")", ",", ".", "[", "]", "->", "|>", "@", "?", "'", '"', "`", "/*", "*/", "NULL", "OVER", "LIMIT",
    "AS", "CAST", "INTERVAL", "1e400", "-1", "X'F'", "map", "\\", "\x00", "é",
)  # fmt: skip


def test_odd_texts_are_refused_or_pass_and_no_more(persist_seed: int) -> None:
    draw = random.Random(f"{persist_seed}/odd texts")
    known = sorted({*RIGHT, *WRONG, *ORDINARY, *HOSTILE})
    texts = [f"{query} |> {pipe}" for query in draw.sample(known, 10) for pipe in PIPES]
    for _ in range(300):
        words = draw.choice(known).split(" ")
        at = draw.randrange(len(words))
        words[at : at + draw.randrange(3)] = draw.sample(WORDS, draw.randrange(3))
        texts.append(" ".join(words))
    for text in texts:
        with suppress(BadQuery):
            parse(text).check_columns(COLUMNS.get)
        with suppress(BadQuery):
            parse_condition(text, ["id", "x"])
        view_query.column_sources(text, COLUMNS)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM a |> LIMIT 1",
        "SELECT element_at()",
        "SELEC x FROM a",
        "SELECT (x FROM a",
        "SELECT 'x FROM a",
        "TABLE a",
        "(((((",
    ],
)
def test_what_the_parser_does_not_understand_is_refused(query: str) -> None:
    with pytest.raises(BadQuery, match="expected a query that parses; correct it"):
        parse(query)


@pytest.mark.parametrize("text", ["id > 1 AND", "id BETWEEN 1", "id IN (SELECT id FROM", "sum("])
def test_what_is_not_finished_is_said_without_classes(text: str) -> None:
    with pytest.raises(BadQuery, match="expected a condition that parses; correct it") as found:
        parse_condition(text, ["id"])
    assert "<" not in str(found.value)
    with pytest.raises(BadQuery, match="expected a query that parses; correct it") as found:
        parse(f"SELECT * FROM a WHERE {text}")
    assert "<" not in str(found.value)


@pytest.mark.parametrize("query", ORDINARY)
def test_ordinary_analytics_pass(query: str) -> None:
    assert set(parse(query).inputs) <= {"items", "others"}


@pytest.mark.parametrize("query", sorted(HOSTILE.keys() - ONLY_SPARK_SEES))
def test_what_reaches_beyond_the_inputs_is_refused(query: str) -> None:
    with pytest.raises(BadQuery, match=f"(?i){HOSTILE[query]}|parses|statement|Command"):
        _only_inputs(parse(query))


def test_comments_that_end_at_one_place_are_no_matter() -> None:
    text = "-- it's /* one */\nSELECT /* a /* b */ */ '/*+ \\\\' AS x /* c */ FROM items -- end"
    assert parse(text).inputs == ("items",)


def _only_inputs(parsed: ParsedQuery) -> None:
    """Load as a view file does: a table has to be a collection or a view."""
    for name in parsed.inputs:
        if name not in ("items", "others"):
            raise BadQuery(f"table {name}", "the name of a collection or view", "")


def test_outputs_are_known_where_each_column_is_named() -> None:
    assert parse("SELECT id, x + 1 AS more FROM a").outputs == ("id", "more")
    assert parse("SELECT id, x + 1 FROM a").outputs is None
    assert parse("SELECT a.* FROM a").outputs is None
    assert parse("SELECT id FROM a UNION SELECT x FROM a").outputs == ("id",)


def test_a_query_that_nests_without_end_is_no_crash() -> None:
    with pytest.raises(BadQuery):
        parse("SELECT " + "(" * 20_000 + "1" + ")" * 20_000)


COLUMNS_OF = {"orders": ("id", "Customer", "amount", "meta-x"), "customers": ("id", "city", "name")}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT c.city, sum(o.amount) AS total, count(*) n FROM orders o JOIN customers c ON o.customer = c.id"
            " GROUP BY c.city",
            {"city": (("customers", "city"),), "total": (("orders", "amount"),), "n": ()},
        ),
        (
            "WITH x AS (SELECT customer, amount * 2 AS a FROM orders WHERE id > 3) SELECT concat(name, a) AS label"
            " FROM x JOIN customers ON x.customer = customers.id",
            {"label": (("orders", "amount"), ("customers", "name"))},
        ),
        (
            "SELECT `meta-x` AS m, CUSTOMER AS c FROM Orders",
            {"m": (("orders", "meta-x"),), "c": (("orders", "Customer"),)},
        ),
        ("SELECT id FROM orders UNION ALL SELECT id FROM customers", {"id": (("orders", "id"), ("customers", "id"))}),
        ("SELECT * FROM customers", {name: (("customers", name),) for name in COLUMNS_OF["customers"]}),
        ("SELECT (SELECT max(amount) FROM orders) AS m FROM customers", {"m": (("orders", "amount"),)}),
        ("SELECT wrong FROM customers", {}),
        ("SELECT FROM WHERE", {}),
    ],
)
def test_the_columns_that_a_column_is_made_of(query: str, expected: dict[str, tuple[tuple[str, str], ...]]) -> None:
    found = view_query.column_sources(query, COLUMNS_OF)
    assert {name: set(sources) for name, sources in found.items()} == {
        name: set(sources) for name, sources in expected.items()
    }
