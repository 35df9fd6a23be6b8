"""The second gate of a view's query: what Spark makes of a text, whatever our parser thinks of it."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from persist_core.config.sql_functions import ALLOWED, REFUSED
from persist_core.errors import ConfigError
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.view.gate import check_query
from persist_spark.view.rows import queried
from tests.sampling import sample
from tests.spark.view_histories import QUERIES
from tests.spark.view_shards import ITEMS, ViewShards, view
from tests.view_texts import HOSTILE, ORDINARY, TYPES

RELEASE = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
THERE = [query for query, since in ORDINARY.items() if since <= RELEASE]
HOSTILE_OF_A_SESSION, ORDINARY_OF_A_SESSION = 24, 12  # by the seed; all of them at night

# What others may have left in the session and in its catalog: how it is made and removed, and a query that reaches it.
LEFT_BEHIND = [
    (
        "CREATE GLOBAL TEMPORARY VIEW theirs AS SELECT 's' AS x",
        "VIEW global_temp.theirs",
        "SELECT x FROM global_temp.theirs",
    ),
    ("CREATE TEMPORARY VIEW their_view AS SELECT 's' AS x", "VIEW their_view", "SELECT x FROM their_view"),
    ("CREATE TABLE their_table (x STRING) USING parquet", "TABLE their_table", "SELECT x FROM their_table"),
    ("CREATE TABLE their_table (x STRING) USING parquet", "TABLE their_table", "SELECT x FROM default.their_table"),
    ("CREATE VIEW their_kept AS SELECT 's' AS x", "VIEW their_kept", "SELECT x FROM their_kept"),
]
if RELEASE >= (4, 1):
    function = "FUNCTION their_word(x STRING) RETURNS STRING RETURN concat(x, 's')"
    rows = "FUNCTION their_rows() RETURNS TABLE (x STRING) RETURN SELECT 's' AS x"
    LEFT_BEHIND += [
        (f"CREATE {function}", "FUNCTION their_word", "SELECT their_word(note) AS x FROM items"),
        (f"CREATE {function}", "FUNCTION their_word", "SELECT default.their_word(note) AS x FROM items"),
        (f"CREATE TEMPORARY {function}", "TEMPORARY FUNCTION their_word", "SELECT their_word(note) AS x FROM items"),
        (f"CREATE TEMPORARY {rows}", "TEMPORARY FUNCTION their_rows", "SELECT x FROM their_rows()"),
        ("DECLARE VARIABLE their_secret STRING DEFAULT 's'", "TEMPORARY VARIABLE their_secret",
         "SELECT their_secret AS x FROM items"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def inputs(spark: SparkSession) -> dict[str, DataFrame]:
    return {name: spark.createDataFrame([], types) for name, types in TYPES.items()}


def refusal(spark: SparkSession, inputs: dict[str, DataFrame], query: str) -> str:
    with pytest.raises(ConfigError) as caught:
        queried(spark, "v", query, inputs)
    return str(caught.value)


@pytest.mark.parametrize("query", sample(HOSTILE, HOSTILE_OF_A_SESSION, "hostile queries"))
def test_what_reaches_beyond_the_inputs_is_refused(
    spark: SparkSession, inputs: dict[str, DataFrame], query: str
) -> None:
    said = refusal(spark, inputs, query)
    assert re.match("view v: (query: found|the query is refused by Spark)", said)
    assert re.search(HOSTILE[query] + "|PARSE_SYNTAX_ERROR", said, re.IGNORECASE), said


@pytest.mark.parametrize("query", sample(THERE, ORDINARY_OF_A_SESSION, "ordinary queries"))
def test_ordinary_analytics_pass(spark: SparkSession, inputs: dict[str, DataFrame], query: str) -> None:
    check_query(spark, "v", query, inputs)


def test_the_suites_queries_pass_the_first_gate() -> None:
    view_query = pytest.importorskip("persist_core.config.view_query", exc_type=ImportError)
    for inputs, query in QUERIES.values():
        assert set(view_query.parse(query).inputs) == set(inputs)


@pytest.mark.parametrize(("made", "removed", "query"), LEFT_BEHIND)
def test_leftovers_of_session_and_catalog_are_not_reached(
    spark: SparkSession, inputs: dict[str, DataFrame], made: str, removed: str, query: str
) -> None:
    spark.sql(made)
    try:
        assert spark.sql(query.replace("FROM items", "FROM VALUES ('a') AS items(note)")).columns == ["x"]
        assert "query: found" in refusal(spark, inputs, query)
    finally:
        spark.sql(f"DROP {removed}")


# Expressions over `d` and `note`: Spark takes a text in some as the time of its optimizer.
TIMES = [
    "CAST('now' AS TIMESTAMP)", "TIMESTAMP 'now'", "DATE /* ' */ ' Tomorrow'", "CAST(lower('NOW') AS TIMESTAMP_NTZ)",
    "CAST(CASE WHEN true THEN 'now' END AS DATE)", "CAST(array('now')[0] AS DATE)", "to_date(concat('to', 'day'))",
    "to_timestamp(concat('n', 'ow'))", "date_add(concat('to', 'day'), 1)", "nvl(d, concat('to', 'day'))",
    "nvl(d, 'today')", "coalesce(d, ' Tomorrow ')",
    "make_date(year(concat('to', 'day')), 1, 1)", "make_date(extract(YEAR FROM 'today'), 1, 1)",
    "CASE WHEN DATE'2026-01-01' BETWEEN '2000-01-01' AND 'today' THEN DATE'2999-01-01' END",
    "CASE WHEN equal_null(CAST('today' AS DATE), 'today') THEN DATE'2999-01-01' END",
    "CAST(concat('n', 'ow', note) AS DATE)", "CAST(note AS DATE)", "CAST('2024-01-01' AS DATE)",
    "date_sub(DATE'2024-06-01', 7)", "to_timestamp('2024-01-01 00:00:00')", "nvl(d, to_date('2024-01-01'))",
    "coalesce(d, CAST(TIMESTAMP'2024-01-01 00:00:00' AS DATE))", "transform(array('now'), x -> CAST(x AS DATE))[0]",
]  # fmt: skip


@pytest.mark.parametrize("expression", TIMES)
def test_only_what_depends_on_the_clock_is_refused(spark: SparkSession, expression: str) -> None:
    """Asks Spark itself: the clock is after 2025, the constants before, and other texts are malformed."""
    rows = spark.sql("SELECT CAST(NULL AS DATE) AS d, substr('now', id) AS note FROM range(1, 2)")
    try:
        (found,) = rows.selectExpr(f"{expression} AS x").collect()
        if isinstance(found["x"], str):
            pytest.skip("on Spark 3.5 this is a text, which may be refused or not")
        is_clock = found["x"] is not None and found["x"].year > 2025
    except ENGINE_ERRORS:
        is_clock = False
    expected = pytest.raises(ConfigError, match="as a time, expected a fixed time") if is_clock else nullcontext()
    with expected:
        check_query(spark, "v", f"SELECT {expression} AS x FROM items", {"items": rows})


def test_functions_in_python_are_not_reached(spark: SparkSession, inputs: dict[str, DataFrame]) -> None:
    spark.udf.register("their_python", lambda x: x)
    try:
        assert "found their_python()" in refusal(spark, inputs, "SELECT their_python(note) AS x FROM items")
    finally:
        spark.sql("DROP TEMPORARY FUNCTION their_python")


def test_an_inputs_own_names_are_no_calls(spark: SparkSession) -> None:
    frame = spark.range(0).selectExpr("id AS `f(x)`", "'x' AS `it's(not)`")
    check_query(spark, "v", "SELECT * FROM odd", {"odd": frame})


def test_each_function_of_spark_is_allowed_or_refused(spark: SparkSession) -> None:
    """A new release shows itself here: decide for each new name, by what it depends on and what it does."""
    registered = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert {name for name in registered if name.isidentifier()} - ALLOWED - REFUSED.keys() == set()
    assert not ALLOWED & REFUSED.keys()


def test_the_gate_computes_nothing_to_refuse_a_query(spark: SparkSession, inputs: dict[str, DataFrame]) -> None:
    (row,) = spark.sql("SELECT reflect('java.lang.System', 'getProperty', 'java.io.tmpdir') AS folder").collect()
    prefix = f"persist-gate-{os.getpid()}-"
    made = f"reflect('java.io.File', 'createTempFile', concat('{prefix}', x), '.ran')"
    assert "reflect()" in refusal(spark, inputs, f"SELECT {made} AS x FROM VALUES ('a') AS t(x)")
    assert not list(Path(row["folder"]).glob(f"{prefix}*"))


def test_the_gate_loads_nothing_that_a_text_names(
    spark: SparkSession, inputs: dict[str, DataFrame], tmp_path: Path
) -> None:
    dtd = f"concat('<!DOCTYPE a SYSTEM \"file:{tmp_path}/absent.dtd\">', '<a>&x;</a>')"  # loading it would fail
    assert "found xpath_string()" in refusal(spark, inputs, f"SELECT xpath_string({dtd}, 'a') AS x FROM items")


@pytest.mark.parametrize("literal", ["1 / 0", "CAST('x' AS INT)", "to_date('x\ny')", "decode(X'FF', 'UTF-8')"])
def test_what_fails_in_a_run_is_no_matter_for_the_gate(
    spark: SparkSession, inputs: dict[str, DataFrame], literal: str
) -> None:
    check_query(spark, "v", f"SELECT id, {literal} AS x FROM items", inputs)


@pytest.mark.parametrize("query", ["SELECT id FROM range(1 / 0)", "SELECT id FROM items LIMIT CAST('x' AS INT)"])
def test_what_spark_cannot_plan_is_refused(spark: SparkSession, inputs: dict[str, DataFrame], query: str) -> None:
    assert re.match(
        "view v: (query: Spark cannot plan it|the query is refused by Spark)", refusal(spark, inputs, query)
    )


@pytest.fixture
def shards(spark: SparkSession, tmp_path: Path) -> ViewShards:
    made = ViewShards(spark, tmp_path / "location")
    made.commit("items", ITEMS, 5, [((1, "red", 5), 1, 1)])
    return made


def test_a_refused_query_runs_nothing_and_stages_nothing(shards: ViewShards, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for query in (
        f"SELECT TRANSFORM(id) USING 'touch {run}' AS (x STRING) FROM items",
        "SELECT `reflect`('java.lang.System', 'getenv', 'HOME') AS x FROM items",
        "SELECT value FROM IDENTIFIER('text.`/etc/passwd`')",
    ):
        with pytest.raises(ConfigError, match="view w: "):
            shards.refresh(view("w", query, ["items"]))
        with pytest.raises(ConfigError, match="view w: "):
            shards.dry_run(view("w", query, ["items"]), 4)
    assert not run.exists()
    assert not shards.client.state("w").commits
    assert not list(shards.client.blob.list_keys_and_metadata("w/batches/"))


def test_words_of_the_process_are_not_put_into_a_text(shards: ViewShards) -> None:
    shards.refresh(view("w", "SELECT '${env:HOME}' AS a, '${system:user.name}' AS b FROM items", ["items"]))
    (row,) = shards.client.open_reader("w").snapshot().to_pylist()
    assert (row["a"], row["b"]) == ("${env:HOME}", "${system:user.name}")
