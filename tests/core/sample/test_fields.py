"""Fields that come and go, in samples of each text format; `persist columns`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persist_core.cli.main import run_command
from persist_core.config.collection import CollectionConfig
from persist_core.contents.stats import MAX_NAMES, BatchWarning
from persist_core.errors import FeedChanged
from persist_core.exact import exact_rows, timestamp_text
from persist_core.location.mem import MemBlob
from persist_core.sample.fields import MISSING, NEW, TABLES, UNMARKED, UNNAMED, FeedFields, named_fields
from persist_core.sources.feed import LocalFeed
from persist_core.sources.files import FileSource


def config_of(folder: Path, kind: str, **changes: Any) -> CollectionConfig:
    source = {"path": "in/*", "format": kind, **changes.pop("source", {})}
    plain = {"delete": "none"} if kind in ("json", "csv") else {}
    columns = {"id": "bigint", "city": {"type": "string", "field": "address.city"}, "note": "string"}
    body = {"name": "t", "source": source, "key": "id", "columns": columns, "base_dir": str(folder), **plain}
    return CollectionConfig.model_validate({**body, **changes})


def found_in(config: CollectionConfig, folder: Path, *lines: Any) -> FeedFields:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in/a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    feed = LocalFeed(config.source_pattern())
    fields = FeedFields(config)
    fields.look_at(feed, FileSource(config, MemBlob(), feed).freeze(None, until=None).frozen.files)
    return fields


ROW = {"id": 1, "address": {"city": "B", "zip": 1}, "x": None}


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("json", ROW),
        ("debezium-json", {"op": "c", "after": ROW, "source": {"lsn": 5}, "ts_ms": 1}),
        ("debezium-json", {"schema": {}, "payload": {"op": "c", "after": ROW, "source": {}}}),
        ("debezium-json", {"key": {"id": 1}, "value": {"op": "c", "after": ROW, "source": {}}}),
        ("debezium-json", {**ROW, "__op": "c", "__deleted": "false"}),
        ("dms-json", {"data": {**ROW, "BI_id": 1}, "metadata": {"operation": "insert", "record-type": "data"}}),
    ],
)
def test_new_fields_are_found_in_the_row(tmp_path: Path, kind: str, line: Any) -> None:
    assert found_in(config_of(tmp_path, kind), tmp_path, line).warnings() == (BatchWarning(NEW, 0, ("x",)),)
    known = config_of(tmp_path, kind, source={"ignored": ["x"]})
    assert found_in(known, tmp_path, line).warnings() == ()
    strict = config_of(tmp_path, kind, source={"on_new_field": "fail"})
    with pytest.raises(FeedChanged, match=rf"{NEW}: x\. Nothing was committed"):
        found_in(strict, tmp_path, line).warnings()


def test_a_missing_field_is_one_that_no_row_of_the_sample_has(tmp_path: Path) -> None:
    strict = config_of(tmp_path, "debezium-json", source={"missing_field": "fail"})
    delete = {"op": "d", "before": {"id": 1}, "after": None}
    assert found_in(strict, tmp_path, delete).warnings() == ()  # a row before a delete may be the key alone
    whole = {"op": "c", "after": {"id": 1, "address": {"city": None}, "note": None}}
    assert found_in(strict, tmp_path, delete, whole).warnings() == ()
    with pytest.raises(FeedChanged, match=f"{MISSING}: city, note"):
        found_in(strict, tmp_path, {"op": "c", "after": {"id": 1, "address": {}}}).warnings()
    lenient = config_of(tmp_path, "json")
    assert found_in(lenient, tmp_path, {"id": 1}).warnings() == ()


def change(table: str, schema: str | None = "public", *, key: int = 1) -> dict[str, Any]:
    source = {"db": "shop", **({"schema": schema} if schema else {}), "table": table}
    return {"op": "c", "after": {"id": key}, "source": source}


@pytest.mark.parametrize(
    ("kind", "lines", "tables"),
    [
        ("debezium-json", [change("a"), change("b"), change("a", key=2)], ("shop.public.a", "shop.public.b")),
        ("debezium-json", [change("a", "x"), {"payload": change("a", "y")}], ("shop.x.a", "shop.y.a")),
        ("debezium-json", [change("a", None), {"key": 1, "value": change("b", None)}], ("shop.a", "shop.b")),
        ("debezium-json", [{"id": 1, "__deleted": "false", "__table": name} for name in "ab"], ("a", "b")),
        ("debezium-json", [{"id": 1, "__op": "d", "__source_table": name} for name in "ab"], ("a", "b")),
        ("debezium-json", [change("a"), {"source": {"db": "shop", "table": "b"}, "ddl": "x"}, {"ts_ms": 1}], ()),
        ("dms-json", [{"data": {"id": 1}, "metadata": {"schema-name": "s", "table-name": n}} for n in "ab"],
         ("s.a", "s.b")),
        ("json", [change("a"), change("b")], ()),
    ],
)  # fmt: skip
def test_records_of_several_tables_are_a_warning(
    tmp_path: Path, kind: str, lines: list[Any], tables: tuple[str, ...]
) -> None:
    found = [each for each in found_in(config_of(tmp_path, kind), tmp_path, *lines).warnings() if each.name != NEW]
    assert found == ([BatchWarning(TABLES, 0, tables)] if tables else [])


def test_a_row_may_have_columns_named_as_an_envelopes_parts(tmp_path: Path) -> None:
    parts = {"op": "t", "before": {"y": 1}, "after": {"y": 2}, "source": "web", "payload": {"op": "c"}}
    for row in ({"id": 1, **parts, "__op": "u", "__deleted": "false"}, {"id": 1, **parts, "__deleted": "false"}):
        for line in (row, {"schema": None, "payload": row}, {"key": {"id": 1}, "value": row}):
            assert found_in(config_of(tmp_path, "debezium-json"), tmp_path, line).warnings()[0].samples == tuple(parts)
    lone = {"op": "c", "after": {"id": 1, "__op": "x", "__table": "t"}, "source": {"db": "a", "table": "b"}}
    other = {**lone, "source": {"db": "a", "table": "c"}}
    warnings = found_in(config_of(tmp_path, "debezium-json"), tmp_path, lone, other).warnings()
    assert [each.samples for each in warnings if each.name == TABLES] == [("a.b", "a.c")]


def test_unwrapped_records_that_mark_no_deletes_are_a_warning(tmp_path: Path) -> None:
    put, delete = {"id": 1, "__op": "u", "__lsn": 5}, {"id": 1, "__op": "d"}
    config = config_of(tmp_path, "debezium-json")
    assert found_in(config, tmp_path, put, None).warnings() == (BatchWarning(UNMARKED, 0, ("__deleted",)),)
    assert found_in(config, tmp_path, put, {**put, "__deleted": "false"}).warnings() == ()
    assert found_in(config, tmp_path, put, delete).warnings() == ()
    by_tombstones = config_of(tmp_path, "debezium-json", order="position")
    assert found_in(by_tombstones, tmp_path, put).warnings() == ()


def test_unwrapped_records_of_mariadb_name_their_connector(tmp_path: Path) -> None:
    put = {"id": 1, "__op": "u", "__deleted": "false", "__gtid": "0-1-9"}
    config = config_of(tmp_path, "debezium-json")
    assert found_in(config, tmp_path, put).warnings() == (BatchWarning(UNNAMED, 0, ("__connector",)),)
    of_mysql = {**put, "__gtid": "3e11fa47-71ca-11e1-9e33-c80aa9429562:5"}
    assert found_in(config, tmp_path, {**put, "__connector": "mariadb"}, of_mysql).warnings() == ()
    by_position = config_of(tmp_path, "debezium-json", order="position")
    assert found_in(by_position, tmp_path, put).warnings() == ()


@given(st.binary(max_size=60) | st.sampled_from([b'{"id": 1e9999999999999999999}', b"PAR1", b"\x1f\x8b"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_ends_the_look(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    for name in ("a.jsonl", "b.gz", "c.bz2", "d.zst"):
        (tmp_path / "in" / name).write_bytes(text + b'\n{"x": 1}')
    config = config_of(tmp_path, "json")
    feed, fields = LocalFeed(config.source_pattern()), FeedFields(config)
    fields.look_at(feed, FileSource(config, MemBlob(), feed).freeze(None, until=None).frozen.files)
    assert "x" in fields.new


def test_a_parquet_file_in_a_text_feed_is_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    maps = pa.array([[("a", 2**62)]], pa.map_(pa.string(), pa.timestamp("us")))
    pq.write_table(pa.table({"id": [1], "m": maps}), tmp_path / "in/b.parquet")
    assert found_in(config_of(tmp_path, "json"), tmp_path, {"x": 1}).warnings() == (BatchWarning(NEW, 0, ("x",)),)
    (row,) = exact_rows(pq.read_table(tmp_path / "in/b.parquet"))
    assert row == {"id": 1, "m": [("a", timestamp_text(2**62))]}


def test_files_say_their_fields(tmp_path: Path) -> None:
    fields = FeedFields(config_of(tmp_path, "csv"))
    fields.see(["id", "address.city", "note"], 1)
    assert fields.warnings() == ()
    fields.see(["id", "address", "note", "z"], 1)
    assert [*fields.missing] == ["city"], "dots in a header are no nesting"
    fields.see(["id", "note"], 2)
    fields.see([], 0)
    assert fields.warnings() == (BatchWarning(NEW, 0, ("address", "z")), BatchWarning(MISSING, 0, ("city",)))
    other = FeedFields(config_of(tmp_path, "csv"))
    other.see(["id", " Address.City", "NOTE ", "z"], 1)
    assert other.warnings()[1].samples == (
        "city (perhaps the field ' Address.City')", "note (perhaps the field 'NOTE ')",
    )  # fmt: skip
    fields.see([f"n{number}" for number in range(MAX_NAMES + 5)], 1)
    assert fields.warnings()[0].samples[-1] == "and 7 more"
    assert str(fields.warnings()[1]) == f"{MISSING}: city, id, note"


def test_columns_are_proposed_for_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSIST_BLOB_URI", "mem:")
    monkeypatch.setenv("PERSIST_CONSENSUS_URI", "mem:")
    body = {"source": {"path": "in/*", "format": "csv"}, "key": "id", "columns": {"id": "int"}, "delete": "none"}
    (tmp_path / "t.yaml").write_text(json.dumps(body))
    (tmp_path / "a.csv").write_text("id,when,empty,op\n3000000000,2026-01-31,,U\n")
    asked = ["columns", "t", "--collections", str(tmp_path), "--from", str(tmp_path / "a.csv")]
    assert run_command(asked) == 0
    assert capsys.readouterr().out == (
        "columns:\n"
        "  when: date # always a date\n"
        "  # empty: always null in the sample: which type?\n"
        "  # op: by its name a mark of deletes: see `delete`\n"
        "# QUESTION: `id` has whole numbers beyond 32 bits: did you mean `bigint`?\n"
    )
    assert run_command([*asked, "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first == {"field": "when", "column": "date", "reason": "always a date"}
    (tmp_path / "a.csv").write_text("id\n1\n")
    assert run_command(asked) == 0
    assert capsys.readouterr().out == "# each field has a column\n"
    debezium = {"source": {"path": "in/*", "format": "debezium-json"}, "key": "id", "columns": {"id": "int"}}
    (tmp_path / "t.yaml").write_text(json.dumps(debezium))
    (tmp_path / "a.csv").write_text('{"id": 1, "v": "x", "__op": "u", "__deleted": "false"}\n')
    assert run_command(asked) == 0
    printed = capsys.readouterr().out
    assert "  v: string # text\n" in printed
    assert "see `delete`" not in printed, "debezium-json has no such setting"


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("json", {"id", "a", "b.c", "seq", "x", "at", "gone"}),
        ("csv", {"id", "a.b", "b.c", "seq", "x", "at.ms", "gone"}),
    ],
)
def test_only_what_is_read_counts_as_named(tmp_path: Path, kind: str, found: set[str]) -> None:
    """`source.rest` has no named field: one that no column reads would be in neither."""
    columns = {"id": "bigint", "n": {"type": "bigint", "field": "seq"}, "b.c": "string"}
    columns |= {"ab": {"type": "string", "field": "a.b"}}
    more = {"time": {"field": "at.ms"}, "delete": {"column": "gone", "values": ["x"]}}
    order = {"mode": "sequence", "by": {"n": "bigint", "o": {"type": "bigint", "field": "x"}}}
    assert named_fields(config_of(tmp_path, kind, columns=columns, order=order, **more)) == found
