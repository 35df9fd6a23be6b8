"""Valid collection files, their shorthands, and invalid files, which never raise anything but `ConfigError`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from persist_core.config.checks import SPARK_CONF, schedule
from persist_core.config.collection import (
    CollectionConfig,
    DeleteConfig,
    SourceConfig,
    TimeConfig,
    load_collection,
    load_collections,
)
from persist_core.config.column import ColumnConfig
from persist_core.config.order import AUTO_ORDERS, OrderConfig
from persist_core.config.yaml_text import MAX_BYTES, YamlError, parse_yaml
from persist_core.errors import ConfigError
from persist_core.schema import Column

LEAST = {
    "source": {"path": "in/*.jsonl", "format": "debezium-json"},
    "key": "id",
    "columns": {"id": "bigint", "name": "string"},
}


def load(folder: Path, body: dict[str, Any] | str, name: str = "orders") -> CollectionConfig:
    path = folder / f"{name}.yaml"
    path.write_text(body if isinstance(body, str) else yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return load_collection(path)


def test_the_least_file(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST)
    assert config.name == "orders"
    assert config.key == ("id",)
    assert config.base_dir == str(tmp_path)
    assert config.order == OrderConfig(by="auto", mode="sequence")
    assert config.time == TimeConfig(source="description")
    assert config.source_pattern().root == f"{tmp_path}/in"


def test_shorthands_say_what_the_long_forms_say(tmp_path: Path) -> None:
    short = load(
        tmp_path,
        """
source: {path: "in/date={date:%Y-%m-%d}/*.csv", format: csv}
key: id
columns: {id: bigint, price: "DECIMAL(12, 2)"}
order: {mode: log, by: [lsn, seq]}
time: path
delete: {column: op, values: D}
""",
    )
    long = load(
        tmp_path,
        """
source: {path: "in/date={date:%Y-%m-%d}/*.csv", format: csv, delimiter: ",", header: true}
key: [id]
columns: {id: {type: bigint}, price: {type: "decimal(12,2)", nullable: true}}
order: {by: fields, fields: [lsn, seq], mode: log}
time: {source: path}
delete: {column: op, values: [D]}
""",
    )
    assert short == long


@pytest.mark.parametrize(
    ("shorthand", "wanted"),
    [
        ("order: position", {"order": OrderConfig(by="position", mode="log")}),
        ("order: {by: [id]}", {"order": OrderConfig(by="fields", fields=("id",), mode="sequence")}),
        ("order: {mode: sequence, by: position}", {"order": OrderConfig(mode="sequence", by="position")}),
        (
            "order: {mode: sequence, by: {lsn: BIGINT, id: bigint}, keep_deleted: all}",
            {
                "order": OrderConfig(
                    mode="sequence",
                    by="fields",
                    fields=("lsn", "id"),
                    types={"lsn": ColumnConfig(type="bigint"), "id": ColumnConfig(type="bigint")},
                    keep_deleted="all",
                )
            },
        ),
        ("time: {field: ts_ms, unit: s}", {"time": TimeConfig(source="field", field="ts_ms", unit="s")}),
        ("delete: none", {"delete": DeleteConfig(never=True)}),
        ("delete: {null_value: true}", {"delete": DeleteConfig(null_value=True)}),
        ("delete: {column: gone, values: true}", {"delete": DeleteConfig(column="gone", values=("true",))}),
        (
            "delete: {column: op, values: [007, 1, no]}",
            {"delete": DeleteConfig(column="op", values=("007", "1", "no"))},
        ),
    ],
)
def test_shorthand(tmp_path: Path, shorthand: str, wanted: dict[str, Any]) -> None:
    config = load(
        tmp_path, f"source: {{path: in/*, format: json}}\nkey: id\ncolumns: {{id: bigint}}\ndelete: none\n{shorthand}\n"
        if not shorthand.startswith("delete")
        else f"source: {{path: in/*, format: json}}\nkey: id\ncolumns: {{id: bigint}}\n{shorthand}\n",
    )  # fmt: skip
    assert {name: getattr(config, name) for name in wanted} == wanted


def test_words_that_yaml_1_1_takes_for_something_else(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "source: {path: in/*, format: debezium-json}\nkey: no\n"
        "columns: {no: bigint, on: string, y: string, 'null': string, '1': date}\nstart_date: 2026-01-31\n",
    )
    assert list(config.columns) == ["no", "on", "y", "null", "1"]
    assert config.start_date == "2026-01-31"


def test_schema_has_key_columns_first_in_the_order_of_the_key(tmp_path: Path) -> None:
    config = load(
        tmp_path, {**LEAST, "key": ["b", "a"], "columns": {"x": "json", "a": "int", "y": "date", "b": "date"}}
    )
    schema = config.collection_schema()
    assert schema.key == (Column("b", "date", nullable=False), Column("a", "int", nullable=False))
    assert schema.values == (Column("x", "json", inherits=True), Column("y", "date"))


def test_anchors_and_merge_keys_are_expanded(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "source: {path: in/*, format: debezium-json}\nkey: id\n"
        "columns:\n  id: bigint\n  a: &money {type: 'decimal(12,2)'}\n  b: {<<: *money, field: bb}\n  c: *money\n",
    )
    assert config.columns["b"] == ColumnConfig(type="decimal(12,2)", field="bb")
    assert config.columns["c"] == config.columns["a"]


def test_environment_is_put_into_the_path_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIST_PATH_DROP", "/drop")
    monkeypatch.delenv("PERSIST_PATH_UNSET", raising=False)
    source = {"path": "${PERSIST_PATH_DROP}/${PERSIST_PATH_UNSET:-orders}/*.jsonl", "format": "debezium-json"}
    config = load(tmp_path, {**LEAST, "source": source, "description": "${PERSIST_PATH_DROP}"})
    assert config.source.path == "/drop/orders/*.jsonl"
    assert config.description == "${PERSIST_PATH_DROP}"
    monkeypatch.setenv("PERSIST_PATH_UNSET", "")  # as in a shell
    assert load(tmp_path, {**LEAST, "source": source}).source.path == "/drop/orders/*.jsonl"


@pytest.mark.parametrize("field", ["path", "moved_from", "replaces"])
@pytest.mark.parametrize("name", ["PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "PERSIST_CONSENSUS_URI"])
def test_a_variable_that_may_hold_a_secret_is_not_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, name: str
) -> None:
    monkeypatch.setenv(name, "sesame")
    source = {"path": "in/*.jsonl", "format": "debezium-json", field: f"${{{name}}}/*.jsonl"}
    with pytest.raises(
        ConfigError, match=rf"source\.{field}: found .*, expected variables named HOME or PERSIST_PATH_"
    ) as found:
        load(tmp_path, {**LEAST, "source": source})
    assert "sesame" not in str(found.value)
    assert f"name the variable PERSIST_PATH_{name.removeprefix('PERSIST_')}" in str(found.value)


@pytest.mark.parametrize(
    "name",
    [
        "spark.driver.extraJavaOptions",
        "spark.executor.extraClassPath",
        "spark.jars",
        "spark.jars.packages",
        "spark.plugins",
        "spark.pyspark.python",
        "spark.submit.pyFiles",
        "spark.files",
        "spark.extraListeners",
        "spark.sql.extensions",
        "spark.sql.catalog.x",
        "spark.sql.adaptive.customCostEvaluatorClass",
        "spark.sql.session.timeZone",
        "spark.sql.ansi.enabled",
        "spark.authenticate",
        "spark.master",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.redaction.regex",
        " spark.executor.memory",
    ],
)
def test_spark_settings_run_no_code_and_change_no_result(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"a setting of sizes, numbers or scheduling.*set it where Spark is"):
        load(tmp_path, {**LEAST, "spark_conf": {"spark.executor.memory": "2g", name: "x"}})


@pytest.mark.parametrize("value", ["1g -javaagent:/x.jar", "1g\nspark.jars=/x.jar", "", "$(id)"])
def test_values_of_spark_settings_are_words(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match="a size, number or name for spark"):
        load(tmp_path, {**LEAST, "spark_conf": {"spark.driver.memory": value}})


def test_spark_settings_that_a_file_may_have(tmp_path: Path) -> None:
    given = {name + ("enabled" if name.endswith(".") else ""): "1" for name in SPARK_CONF}
    assert load(tmp_path, {**LEAST, "spark_conf": given}).spark_conf == given


def test_a_variable_in_a_variable_is_not_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIST_PATH_DROP", "${HOME}")
    with pytest.raises(ConfigError, match=r"source\.path: .*braces only as"):
        load(tmp_path, {**LEAST, "source": {"path": "${PERSIST_PATH_DROP}/*.jsonl", "format": "debezium-json"}})


def test_base_dir(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(yaml.safe_dump({**LEAST, "base_dir": "../feeds"}))
    assert load_collection(path).source_pattern().root == f"{tmp_path.parent}/feeds/in"


@pytest.mark.parametrize(
    ("order", "columns"),
    [
        *[
            (each, AUTO_ORDERS["debezium-json"])
            for each in (None, {"servers": [184, "185"]}, {"restarts": ["2026-03-01"]})
        ],
        *[(each, None) for each in ("log", "position", {"mode": "log", "by": ["lsn", "id"]})],
        (["name", "id"], (Column("name", "string"), Column("id", "bigint"))),
        ({"mode": "sequence", "by": "position"}, ()),
        ({"mode": "sequence", "by": ["name", "id"]}, (Column("name", "string"), Column("id", "bigint"))),
        ({"mode": "sequence", "by": {"lsn": "bigint"}}, (Column("lsn", "bigint"),)),
        ({"mode": "sequence", "by": {"at": {"type": "timestamp", "unit": "ms"}}}, (Column("at", "timestamp"),)),
    ],
)
def test_what_orders_the_records_is_of_known_types(tmp_path: Path, order: Any, columns: Any) -> None:
    config = load(tmp_path, {**LEAST, **({"order": order} if order else {})})
    assert config.collection_schema().order == columns
    assert CollectionConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("format", ["debezium-json", "dms-csv", "dms-parquet", "dms-json"])
def test_a_format_with_an_order_of_its_own(tmp_path: Path, format: str) -> None:
    config = load(tmp_path, {**LEAST, "source": {"path": "in/*", "format": format}})
    assert config.collection_schema().order
    assert config.order.keep_deleted_ms == 30 * 86_400_000


@pytest.mark.parametrize(("given", "kept_ms"), [("all", None), (0, 0), ("36 hours", 36 * 3_600_000)])
def test_how_long_the_order_of_a_deleted_key_is_kept(tmp_path: Path, given: object, kept_ms: int | None) -> None:
    assert load(tmp_path, {**LEAST, "order": {"keep_deleted": given}}).order.keep_deleted_ms == kept_ms


def test_a_loaded_collection_travels_as_json(tmp_path: Path) -> None:
    config = load(tmp_path, {**LEAST, "order": ["id"], "time": {"field": "ts"}, "schedule": None})
    assert CollectionConfig.model_validate_json(config.model_dump_json()) == config
    assert CollectionConfig.model_validate(config.model_dump(mode="json")) == config


def test_a_config_made_in_python_is_held_to_the_same_rules() -> None:
    with pytest.raises(ValueError, match="a marker of deletes for csv"):
        CollectionConfig(
            name="x",
            source=SourceConfig(path="*.csv", format="csv"),
            key=("id",),
            columns={"id": ColumnConfig(type="bigint")},
        )


@pytest.mark.parametrize("name", ["with space", "sql';--", "-dash", "a..b", "ünïcode", "x" * 129, "a\nb", "%2e%2e"])
def test_a_file_whose_name_can_be_no_shard(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"name: found .*, expected 1 to 128 letters.*; rename the file"):
        load(tmp_path, LEAST, name=name)


def test_collections_of_a_folder(tmp_path: Path) -> None:
    load(tmp_path, LEAST, "b")
    load(tmp_path, LEAST, "a")
    (tmp_path / "a.yml").write_text(yaml.safe_dump(LEAST))
    (tmp_path / "B.yml").write_text(yaml.safe_dump(LEAST))
    (tmp_path / ".hidden.yaml").write_text("nonsense")
    (tmp_path / "readme.md").write_text("nonsense")
    (tmp_path / "broken.yaml").write_text("key: [")
    (tmp_path / "folder.yaml").mkdir()
    collections, errors = load_collections(tmp_path)
    assert [config.name for config in collections] == ["B", "a"]
    told = "\n".join(map(str, errors))
    assert len(errors) == 4
    assert f"{tmp_path}/a.yml: the file: found the name of a.yaml again; rename one of the two" in told
    assert f"{tmp_path}/b.yaml: the file: found the name of B.yml again" in told
    assert f"{tmp_path}/folder.yaml: the file: found Is a directory" in told


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    collections, errors = load_collections(tmp_path / "none")
    assert collections == []
    assert len(errors) == 1
    assert "none: the folder: found No such file or directory" in str(errors[0])


def test_a_huge_file_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match=f"found {MAX_BYTES + 1} bytes, expected at most {MAX_BYTES}"):
        load_collection(path)


def test_the_bundled_collections_are_right() -> None:
    collections, errors = load_collections(Path(__file__).parents[3] / "dags" / "collections")
    assert errors == []
    assert "customers" in [config.name for config in collections]


@pytest.mark.parametrize("text", ["@daily", "0 6 * * *", "*/5 0-6,12 1,15 jan-mar mon-fri", "0 0 * * 5#3"])
def test_schedules_that_are_taken(text: str) -> None:
    assert schedule(text) == text


@pytest.mark.parametrize("text", ["", "@reboot", "* * * * * *", "0 6 * *"])
def test_schedules_that_are_not(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="schedule: found "):
        load(tmp_path, {**LEAST, "schedule": text})


@pytest.mark.parametrize(
    ("given", "kept", "history_ms"),
    [
        ("all", "all", None),
        (0, "0", 0),
        ("0", "0", 0),
        ("30 days", "30 days", 30 * 86_400_000),
        ("1 Day", "1 days", 86_400_000),
        ("36hours", "36 hours", 36 * 3_600_000),
        (" 5  minutes ", "5 minutes", 300_000),
        ("0 days", "0 days", 0),
    ],
)
def test_history(tmp_path: Path, given: object, kept: str, history_ms: int | None) -> None:
    config = load(tmp_path, {**LEAST, "history": given})
    assert (config.history, config.history_ms) == (kept, history_ms)
    assert CollectionConfig.model_validate_json(config.model_dump_json()) == config
    assert load(tmp_path, LEAST).history_ms is None


@pytest.mark.parametrize(
    "given", [30, -1, False, 0.0, 1.5, None, "", "30", "-3 days", "3 quarters", "1.5 days", "999999999 days", ["all"]]
)
def test_histories_that_are_not(tmp_path: Path, given: object) -> None:
    with pytest.raises(ConfigError, match=r"history: found .*, expected (all, 0, or a number|at most 1000 years)"):
        load(tmp_path, {**LEAST, "history": given})


_texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["id", "none", "path", "field", "@daily", "decimal(12,2)", "{date:%Y}", "${X}", "..", "_persist_x"]
    ),
)
_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _texts, st.dates()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_texts, inner, max_size=4)),
    max_leaves=12,
)
_fields = st.sampled_from(list(CollectionConfig.model_fields))


@given(change=st.dictionaries(_fields, _values, max_size=4))
def test_any_value_of_a_field_loads_or_is_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, change: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_text(yaml.safe_dump({**LEAST, **change}, allow_unicode=False), encoding="utf-8")
    config, errors = outcome(path)
    if config is not None:
        config.collection_schema()
        assert CollectionConfig.model_validate_json(config.model_dump_json()) == config
    assert all(line.startswith(f"{path}: ") and line.isprintable() for line in errors)


def outcome(path: Path) -> tuple[CollectionConfig | None, list[str]]:
    """The collection, or the lines of its `ConfigError`; any other error fails the test."""
    try:
        return load_collection(path), []
    except ConfigError as error:
        return None, str(error).splitlines()


@given(data=st.one_of(st.binary(max_size=200), st.text("[]{}:&*!-,#\"'\n ab1", max_size=60).map(str.encode)))
def test_any_bytes_are_data_or_a_yaml_error(data: bytes) -> None:
    with contextlib.suppress(YamlError):
        parse_yaml(data)


@given(
    body=st.dictionaries(st.text("abcxyz", min_size=1), st.one_of(st.none(), st.booleans(), st.integers(-9, 10**18)))
)
def test_plain_data_is_read_as_any_yaml_reader_does(body: dict[str, Any]) -> None:
    assert parse_yaml(yaml.safe_dump(body).encode()) == body
