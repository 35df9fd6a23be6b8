"""Texts of keys by Spark, of each type: the core looks for the same ones, and has the same digests."""

from __future__ import annotations

import json
import random

import pytest
from pyspark.sql import SparkSession

from persist_core.contents.erased import ErasedList, key_texts
from persist_core.contents.key_range import parse_key, range_of
from persist_core.maintenance.sought import Sought
from persist_core.schema import CollectionSchema, Column
from persist_spark.connect import new_session
from persist_spark.frame import key_text, literal, shown_json
from persist_spark.upsert.erased import _hmac
from tests.spark.platform_work import arrow_of


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("is_ansi", ["true", "false"])
def test_digests_of_keys_are_those_of_the_core(spark: SparkSession, seed: int, is_ansi: str) -> None:
    chance = random.Random(seed)
    columns = (
        Column("a", "string", False),
        Column("b", "bigint", False),
        Column("c", "decimal(12,4)", False),
        Column("d", "timestamp", False),
        Column("e", "decimal(20,9)", False),
    )
    schema = CollectionSchema(key=columns, values=())
    rows = [
        (
            "".join(chance.choice("aü\t\x1f:1") for _ in range(chance.randrange(4))),
            chance.randrange(-(2**63), 2**63),
            chance.choice(["0.0000", "-1.5000", "0.0001", "99999999.9999"]),
            chance.choice(
                ["2026-01-01 00:00:00", "1969-12-31 23:59:59.999999", "0001-01-01 00:00:00", "0999-12-31 01:00:00"]
            ),
            chance.choice(["0", "-0.0000001", "0.00000015", "1.5"]),
        )
        for _ in range(20)
    ]
    own = new_session(spark)
    own.conf.set("spark.sql.ansi.enabled", is_ansi)
    frame = own.createDataFrame(rows, "a string, b bigint, c string, d string, e string").selectExpr(
        "a", "b", "CAST(c AS DECIMAL(12,4)) AS c", "CAST(d AS TIMESTAMP) AS d", "CAST(e AS DECIMAL(20,9)) AS e"
    )
    listed = ErasedList("ab" * 32)
    found = arrow_of(frame.select("*", _hmac(key_text(schema), bytes.fromhex(listed.secret)).alias("digest")))
    for place, digest in enumerate(found["digest"].to_pylist()):
        key = range_of(found.slice(place, 1), columns).first
        assert key is not None
        assert digest == listed.digest(key, columns)


TEXTS_OF_KEYS = {
    "string": ['ann"q"smith', "CORP\\änn", "a\tb\n", "\u2028😀", "%41+b", "a\\u0041", "x" * 600],
    "boolean": ["true", "false"],
    "int": ["-2147483648", "0"],
    "bigint": ["9223372036854775807", "-1"],
    "date": ["0001-01-01", "1969-12-31", "9999-12-31"],
    "timestamp": [
        f"{day} {time}"
        for day in ("0001-01-01", "1582-10-10", "1969-12-31", "2026-03-29")
        for time in ("01:30:00", "23:59:59.5", "23:59:59.025", "23:59:59.000001", "10:00:10.123456")
    ],
    "binary": ["fbefbe00ff", "00"],
    "decimal(12,2)": ["0", "-12345.60", "1.05"],
    "decimal(38,9)": ["0", "-0.0000001", "0.00000015", "12345678901234567890123456789.123456789"],
    "decimal(20,0)": ["12300", "-7"],
}


@pytest.mark.parametrize("type_name", TEXTS_OF_KEYS)
def test_samples_of_warnings_are_found_by_their_key(spark: SparkSession, type_name: str) -> None:
    columns = (Column("a.b`c", type_name, nullable=False),)
    keys = [parse_key([text], columns) for text in TEXTS_OF_KEYS[type_name]]
    values = ", ".join(f"({number}, {literal(key[0], columns[0])})" for number, key in enumerate(keys))
    samples = spark.sql(f"SELECT n, {shown_json({'a.b`c': 'k'})} AS shown FROM VALUES {values} AS t(n, k)").collect()
    for number, shown in samples:
        found = [key for key in keys if Sought.of([key], columns).is_said(shown[:500])]
        assert found == [keys[number]]
        cell = str(json.loads(shown, parse_float=str, parse_int=str)["a.b`c"])
        if type_name in ("string", "int", "bigint", "date", "timestamp"):
            assert [cell] == list(key_texts(keys[number], columns).values())
