"""Checks of rows and values that may be bad, through the whole write job, compared with plain Python."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from persist_core.config.collection import load_collection
from persist_core.config.column import ColumnConfig
from persist_core.contents.stats import BatchWarning
from persist_core.errors import CheckFailed, ConfigError
from persist_core.handles.client import PersistClient
from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD
from persist_spark.decode import row_checks
from persist_spark.upsert.job import run_write_job
from tests.oracle.consolidate import Err
from tests.oracle.record import Record
from tests.oracle.row_checks import Judge, Read, Row, refused, warned
from tests.oracle.upsert import drain_sealed_input
from tests.sampling import sample
from tests.spark.test_set_aside import UNTIL, Dying

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKS: dict[str, Any] = {
    "not_negative": {"sql": "balance >= 0"},
    "known_country": {"sql": "country IN ('DE', 'FR')", "on_fail": "warn"},
    "ratio": {"sql": "100 / balance > 1", "on_fail": "warn"},
}
COLUMNS = {"id": "bigint", "balance": {"type": "bigint", "on_error": "null"}, "country": "string"}


def things_with(folder: Path, checks: dict[str, Any], **changes: Any) -> Dying:
    """A collection that was loaded from its file, as a user's is."""
    things = Dying(folder)
    body = {
        "source": {"path": "in/*", "format": "json"},
        "key": "id",
        "columns": COLUMNS,
        "delete": "none",
        "checks": checks,
        **changes,
    }
    (folder / "things.yaml").write_text(json.dumps(body))
    things.config = load_collection(folder / "things.yaml")
    return things


def rows_of(client: PersistClient) -> list[tuple[Any, ...]]:
    rows = client.open_reader("things").snapshot().to_pylist()
    return sorted((row["id"], row["balance"], row["country"]) for row in rows)


def test_a_check_makes_errs_warns_and_heals(spark: SparkSession, tmp_path: Path) -> None:
    things = things_with(tmp_path, CHECKS)
    bad = {"id": 1, "balance": -5, "country": "DE"}
    things.drop(
        "a.json",
        bad,
        {"id": 2, "balance": "many", "country": "XX"},
        {"id": 3, "balance": 0, "country": None},
        {"id": 4, "balance": 7, "country": "FR"},
    )
    _, manifest = things.write(spark, description := things.mint(UNTIL))
    assert manifest.warnings == (
        BatchWarning("column balance", 1, ("{\"id\":2}: 'many'",)),
        BatchWarning("check known_country", 1, ('{"id":2}',)),
        BatchWarning("check ratio", 1, ('{"id":3}',)),  # a division by zero is a failure, null is not
    )
    assert (manifest.stats["warnings"], manifest.stats["errors"]) == (3, 1)
    things.commit(spark, description)
    assert rows_of(things.client) == [(2, None, "XX"), (3, 0, None), (4, 7, "FR")]
    (err,) = things.errors()
    assert (err[ERR_KIND], err["id"], json.loads(err[ERR_PAYLOAD])) == ("check/not_negative", 1, bad)
    assert err[ERR_MESSAGE] == "check 'not_negative' is not true: balance >= 0; the record has {\"balance\":-5}"
    things.drop("b.json", {**bad, "balance": 5})
    assert things.commit(spark, things.mint(2 * UNTIL))["errors"] == 0
    assert things.errors() == []


@pytest.mark.parametrize(
    "sql", ["balance >= 0", "1 / balance > 0", "CAST(country AS INT) > 0", "balance - 9223372036854775807 - 1 <> 0"]
)
def test_a_check_that_must_not_fail_commits_nothing(spark: SparkSession, tmp_path: Path, sql: str) -> None:
    things = things_with(tmp_path, {"sound": {"sql": sql, "on_fail": "fail"}})
    things.drop("a.json", {"id": 1, "balance": 1, "country": "1"}, {"id": 2, "balance": -1, "country": "x"})
    if "/" in sql:
        things.drop("b.json", {"id": 2, "balance": 0, "country": "1"})
    with pytest.raises(CheckFailed) as stopped:
        things.write(spark, things.mint(UNTIL))
    found = f'check sound ({sql}) is not true for 1 rows, for example {{"id":2}}. Nothing was committed:'
    assert found in str(stopped.value)
    assert things.client.state("things").newest_commit is None


def test_names_of_columns_meet_no_names_of_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"id": "bigint", "time": "int", "op": "string", "value": "int", "K0": "int", "a b`c": "int"}
    checks = {"all": {"sql": "time + value + K0 + `a b``c` = 10 AND op = 'x'", "on_fail": "warn"}}
    checks["none"] = {"sql": "time < value AND op = 'x' AND id < 3", "on_fail": "err"}
    things = things_with(tmp_path, checks, columns=columns)
    row = {"time": 1, "op": "x", "value": 2, "K0": 3, "a b`c": 4}
    things.drop("a.json", {"id": 1, **row}, {"id": 2, **row, "K0": 4}, {"id": 3, **row})
    _, manifest = things.write(spark, things.mint(UNTIL))
    assert manifest.warnings == (BatchWarning("check all", 1, ('{"id":2}',)),)
    assert manifest.stats["errors"] == 1


def test_a_server_is_asked_once_about_a_text(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    things = things_with(tmp_path, {"sound": {"sql": "balance <> 12345"}})
    row_checks.check_texts(spark.newSession(), things.config)
    monkeypatch.setattr(row_checks, "check_query", None)
    row_checks.check_texts(spark.newSession(), things.config)
    columns = {**things.config.columns, "more": ColumnConfig(type="int")}
    with pytest.raises(TypeError, match="not callable"):
        row_checks.check_texts(spark.newSession(), things.config.model_copy(update={"columns": columns}))


@pytest.mark.parametrize("mode", sample(["log", "sequence"], 1, "row checks"))
@pytest.mark.family("decoders")
def test_a_batch_is_what_plain_python_makes_of_it(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    columns = {**COLUMNS, "n": "bigint"}
    things = things_with(tmp_path, CHECKS, columns=columns, order={"mode": mode, "by": ["n"]})
    rng, judges = random.Random(mode), _judges()
    records: list[Read] = []
    for batch in range(2):
        written = []
        for place in range(40):
            balance = rng.choice([-3, 0, 1, 50, 200, None, "many"])
            row = {"id": rng.randrange(8), "balance": balance, "country": rng.choice(["DE", "FR", "XX", None])}
            written.append({**row, "n": batch * 100 + place})
        things.drop(f"{batch}.json", *written)
        reads = [_read(row) for row in written]
        records += reads
        spec = things.spec(description := things.mint((batch + 1) * UNTIL))
        manifest = run_write_job(spark, spec, things.location)
        assert {each.name: each.count for each in manifest.warnings} == warned(reads, judges)
        things.commit(spark, description)
    drained = drain_sealed_input([each.record for each in records], lower=0, upper=2 * UNTIL)
    values = {update.slot: update.value for update in drained.updates if update.diff > 0}
    rows = [(slot[0], *value[:2]) for slot, value in values.items() if isinstance(value, tuple)]
    assert rows_of(things.client) == sorted(rows)
    kinds = sorted((slot[0], value.kind) for slot, value in values.items() if isinstance(value, Err))
    assert sorted((err["id"], err[ERR_KIND]) for err in things.errors()) == kinds


def _judges() -> dict[str, Judge]:
    return {
        "known_country": lambda row: None if row["country"] is None else row["country"] in ("DE", "FR"),
        "ratio": lambda row: None if row["balance"] is None else 100 / row["balance"] > 1,
    }


def _read(row: dict[str, Any]) -> Read:
    marks = ("balance",) if isinstance(row["balance"], str) else ()
    whole = {**row, "balance": None if marks else row["balance"]}
    record = Record((row["id"],), (whole["balance"], whole["country"], row["n"]), 0, (row["n"],))
    return refused(Read(record, whole, marks), {"not_negative": _is_not_negative}, b"", json.dumps(row).encode())


def _is_not_negative(row: Row) -> bool | None:
    return None if row["balance"] is None else row["balance"] >= 0


@pytest.mark.family("decoders")
def test_omitted_values_are_checked_as_they_will_be(spark: SparkSession, tmp_path: Path) -> None:
    source = {"path": "in/*", "format": "json", "missing_field": "unchanged"}
    (tmp_path / "err").mkdir()
    with pytest.raises(ConfigError, match="expected warn or fail for a check of column 'balance'"):
        things_with(tmp_path / "err", {"a": "balance >= 0"}, source=source)
    things = things_with(tmp_path, {"a": {"sql": "balance >= 0", "on_fail": "warn"}}, source=source)
    things.drop("a.json", {"id": 1, "balance": -1, "country": "DE"}, {"id": 2, "balance": 1, "country": "DE"})
    things.commit(spark, things.mint(UNTIL))
    things.drop("b.json", {"id": 1, "country": "FR"}, {"id": 2, "country": "FR"})
    _, manifest = things.write(spark, things.mint(2 * UNTIL))
    assert manifest.warnings == (BatchWarning("check a", 1, ('{"id":1}',)),)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("balance + 1", "found an expression of type bigint, expected boolean"),
        ("balance > now()", "now()"),
        ("rand() > 0.5", "rand()"),
        ("count(*) > 1", "a query over its inputs only"),
        ("EXISTS (SELECT 1 FROM record)", "Spark refuses it"),
        ("1 = 1), (2 = 2", "Spark refuses it"),
        ("nothing > 1", "Spark refuses it"),
    ],
)
def test_the_second_gate_stands_alone(spark: SparkSession, tmp_path: Path, sql: str, found: str) -> None:
    """As of a definition that no parser has seen."""
    things = Dying(tmp_path, columns=COLUMNS, checks={"a": {"sql": sql, "on_fail": "warn"}})
    things.drop("a.json", {"id": 1, "balance": 1, "country": "x"})
    with pytest.raises(ConfigError) as refusal:
        things.write(spark, things.mint(UNTIL))
    assert "collection things: checks.a.sql" in str(refusal.value)
    assert found in str(refusal.value)
