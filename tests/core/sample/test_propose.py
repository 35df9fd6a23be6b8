"""`persist init --from`: the proposed collection file loads, and says why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.cli.main import run_command
from persist_core.config.collection import CollectionConfig, load_collection
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.sample.detect import stated_types
from persist_core.sample.found import found_by
from persist_core.sample.propose import propose
from persist_core.sources.feed import LocalFeed, Wanted
from persist_core.sources.file_scan import Scan

ROOT = Path(__file__).parents[3]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "feed").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERSIST_COLLECTIONS", raising=False)
    return tmp_path


def proposed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[CollectionConfig, str]:
    """The collection of the file that is written, and its text; it is also what is printed, its path aside."""
    assert run_command(["init", "--from", *arguments, "--name", "things"]) == 0, capsys.readouterr().err
    file = Path("dags/collections/things.yaml")
    text = file.read_text()
    assert "wrote dags/collections/things.yaml" in capsys.readouterr().out
    assert run_command(["init", "--from", *arguments]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if " path:" not in line] == [
        line for line in text.splitlines() if " path:" not in line
    ]
    return load_collection(file), text


def lines(path: Path, *rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


def test_changes_in_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(
        place / "feed" / "2026-01-01" / "a.jsonl",
        {"order_id": 1, "no": 1, "op": "I", "total": "20.00", "at": 1_767_225_600_000_000, "note": None, "tags": [1]},
        {"order_id": 1, "no": 2, "op": "U", "total": "21.5", "at": 1_767_225_600_000_007, "note": None, "tags": []},
        {"order_id": 1, "change_no": 3, "no": 3, "op": "D"},
    )
    config, text = proposed(capsys, "feed/*/*.jsonl")
    assert config.source.path == "../../feed/{date:%Y-%m-%d}/*.jsonl"
    assert (config.source.format, config.key, config.time.source) == ("json", ("order_id",), "path")
    assert {name: (column.type, column.unit) for name, column in config.columns.items()} == {
        "order_id": ("bigint", None),
        "no": ("bigint", None),
        "total": ("decimal(18,2)", None),
        "at": ("timestamp", "us"),
        "tags": ("json", None),
        "change_no": ("bigint", None),
    }
    assert (config.delete.column, config.delete.values) == ("op", ("D",))
    assert "# note: always null in the sample: which type?" in text
    assert "always a whole number between 2000 and 2036 in us since 1970" in text
    assert "# order: {by: [version]} # QUESTION" in text, "change_no is not in every record"


@pytest.mark.parametrize(
    ("name", "order"), [("change_no", "fields"), ("lsn", "fields"), ("updated_at", "fields"), ("x", "auto")]
)
def test_the_order_is_guessed_by_name(name: str, order: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(place / "feed" / "a.jsonl", {"id": 1, name: 1_767_225_600_000}, {"id": 2, name: 1_767_225_600_001})
    config, _ = proposed(capsys, "feed/a.jsonl")
    assert config.order.by == order
    assert (name in config.columns) == (name in ("updated_at", "x"))
    assert config.time.source == "description"


def test_a_key_is_unique_in_rows_without_an_order(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(place / "feed" / "a.csv", "city;code;people", "Oulu;OUL;1", "Cork;ORK;2", "Oulu;OUX;3")
    config, text = proposed(capsys, "feed/a.csv")
    assert (config.source.format, config.source.delimiter, config.key) == ("csv", ";", ("code",))
    assert config.delete.never
    assert "key: code # unique and never null in the sample; so are people" in text
    lines(place / "feed" / "b.csv", "a,b", "1,2", "1,2")
    (place / "dags" / "collections" / "things.yaml").unlink()
    _, text = proposed(capsys, "feed/b.csv")
    assert "key: a # QUESTION: it is in several records. Does it name a row?" in text


def test_a_time_is_asked_for_as_the_order_and_is_no_key(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"Order No": no % 2, "ts": 1_767_225_600_000 + no, "name": "x"} for no in range(3)]
    lines(place / "feed" / "a.jsonl", *rows)
    _, text = proposed(capsys, "feed/a.jsonl")
    assert 'key: "Order No" # QUESTION: it is in several records' in text
    assert "# order: {by: [ts]} # QUESTION" in text
    changes = [{"meta": {"id": no}, "action": ["insert", "update"][no % 2], "version": no} for no in range(5)]
    lines(place / "feed" / "b.jsonl", *changes)
    assert run_command(["init", "--from", "feed/b.jsonl"]) == 0
    assert "key: action # QUESTION: it is in several records" in capsys.readouterr().out


def test_places_stay_where_a_field_is_null_in_the_sample(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(place / "feed" / "a.csv", *[f"{number},,{number * 1.5}" for number in range(9)])
    config, text = proposed(capsys, "feed/*.csv")
    assert [*config.columns] == ["column_1", "column_2", "column_3"]
    assert "column_2: string # QUESTION: always null in the sample" in text


@pytest.mark.parametrize("header", [",id,name", "id,price (EUR)", "id,a/b,50 %,c#", "id,name", "id, name"])
def test_header_lines_as_tools_write_them(header: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    width = header.count(",") + 1
    header = header.replace("50", "of 50")
    lines(place / "feed" / "a.csv", header, *[",".join([str(number)] * width) for number in range(9)])
    config, _ = proposed(capsys, "feed/*.csv")
    assert config.source.header
    assert {column.type for column in config.columns.values()} == {"bigint"}
    assert {column.field or name for name, column in config.columns.items()} == {*header.split(",")} - {""}


def test_a_delimiter_is_outside_of_quotes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(place / "feed" / "a.csv", 'id;"last, first";"street, number, city"', '1;"Ng, A";"x, 2, y"')
    config, _ = proposed(capsys, "feed/*.csv")
    assert (config.source.delimiter, len(config.columns)) == (";", 3)


def test_options_that_would_do_nothing_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(place / "feed" / "a.jsonl", {"id": 1})
    for option in ("--connection", "--collections"):
        assert run_command(["init", "--from", "feed/*", option, "x"]) == 2
        assert option in capsys.readouterr().err


@pytest.mark.parametrize("header", [True, False])
def test_dms_files(header: bool, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["I,1,lamp,2026-01-01 10:00:00", "U,1,desk,2026-01-01 10:00:01", "D,1,,", "U,2,desk,NULL"]
    lines(place / "feed" / "20260101-1.csv", *(["Op,id,name,at"] if header else []), *rows)
    config, _ = proposed(capsys, "feed/*.csv")
    assert (config.source.format, config.source.header) == ("dms-csv", header)
    names = ("id", "name", "at") if header else ("column_1", "column_2", "column_3")
    assert tuple(config.columns) == names
    assert [column.type for column in config.columns.values()] == ["bigint", "string", "timestamp"]
    assert config.key == names[:1]


@pytest.mark.parametrize("has_changes", [False, True])
@pytest.mark.parametrize("op", ["", "I,"])
def test_a_full_load_of_dms_may_lack_the_operation(
    op: str, has_changes: bool, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default its files have neither a header line nor the operation, and files of changes have the latter."""
    lines(place / "feed" / "LOAD00000001.csv", f"{op}1,lamp,2026-01-01 10:00:00", f"{op}2,desk,2026-01-01 10:00:00")
    if has_changes:
        changes = ("U,1,lamp,2026-01-01 10:00:01", "D,2,desk,2026-01-01 10:00:02")
        lines(place / "feed" / "20260101-100000001.csv", *changes)
    config, _ = proposed(capsys, "feed/*.csv")
    assert (config.source.format, config.source.header) == ("dms-csv", False)
    types = {"column_1": "bigint", "column_2": "string", "column_3": "timestamp"}
    assert {name: each.type for name, each in config.columns.items()} == types


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_full_load_of_dms_is_known_by_its_name(suffix: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As plain CSV or Parquet, the changes that follow would not say deletes."""
    file = place / "feed" / f"LOAD0000000A.{suffix}"
    if suffix == "csv":
        lines(file, "id,name", "1,lamp")
    else:
        pq.write_table(pa.table({"id": [1], "name": ["lamp"]}), file)
    assert proposed(capsys, "feed/*")[0].source.format == f"dms-{suffix}"


FLAT = {"id": 1, "price": "AMg=", "__op": "c", "__lsn": 5, "__deleted": "false"}
ENVELOPE = {"op": "c", "before": None, "after": {"id": 1, "price": "AMg="}, "source": {"lsn": 5}}


@pytest.mark.parametrize("value", [FLAT, ENVELOPE, {"schema": None, "payload": ENVELOPE}], ids=["flat", "row", "wrap"])
def test_debezium_as_it_is_landed(value: Any, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone, and with the key of the message."""
    for number, row in enumerate([value, {"key": {"id": 1}, "value": value}, {"value": json.dumps(value)}]):
        lines(place / "feed" / f"{number}.jsonl", row)
        assert run_command(["init", "--from", f"feed/{number}.jsonl"]) == 0
        text = capsys.readouterr().out
        assert "format: debezium-json" in text
        assert "\nkey: id #" in text


def test_a_debezium_number_with_its_own_scale_is_one(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Oracle's NUMBER comes without a schema: it may be the key."""
    one, two = ({"ID": {"scale": 0, "value": text}, "NAME": "lamp"} for text in ("AQ==", "Ag=="))
    other = {"SIZE": {"scale": 2, "value": "BNI="}}
    lines(place / "feed" / "a.jsonl", {**ENVELOPE, "after": {**one, **other}}, {**ENVELOPE, "after": two})
    config, _ = proposed(capsys, "feed/a.jsonl")
    assert config.key == ("ID",)
    types = [config.columns[name].type for name in ("ID", "NAME", "SIZE")]
    assert types == ["decimal(38,9)", "string", "decimal(38,9)"]


def test_a_document_of_mongodb_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(place / "feed" / "a.jsonl", {**ENVELOPE, "after": '{"_id": 1}'})
    assert run_command(["init", "--from", "feed/a.jsonl"]) != 0
    assert "flatten MongoDB's documents with ExtractNewDocumentState" in capsys.readouterr().err


LINE_KEY = {"order_id": 1, "line": 2}


@pytest.mark.parametrize("key", [LINE_KEY, json.dumps(LINE_KEY), {"schema": None, "payload": LINE_KEY}])
def test_the_key_is_the_one_of_the_messages(key: Any, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envelope = {**ENVELOPE, "after": {"id": 7, **LINE_KEY}}
    lines(place / "feed" / "a.jsonl", {"key": key, "value": envelope}, {"key": key, "value": None})
    config, text = proposed(capsys, "feed/a.jsonl")
    assert config.key == ("order_id", "line")
    assert "\nkey: [order_id, line] # the key of the messages" in text


def test_an_unwrapped_record_has_the_types_of_its_schema(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also a column without a value in the sample."""
    others = [{"field": "id", "type": "int32"}, {"field": "note", "type": "string"}]
    fields = [{**DECIMAL, "field": "price", "parameters": {"scale": "2"}}, *others]
    lines(place / "feed" / "a.jsonl", {"schema": {"fields": fields}, "payload": {**FLAT, "note": None}})
    columns = proposed(capsys, "feed/a.jsonl")[0].columns
    assert {name: each.type for name, each in columns.items()} == {
        "price": "decimal(38,2)",
        "id": "int",
        "note": "string",
    }


@pytest.mark.parametrize("first", ["Op", "id"])
def test_parquet(first: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({first: ["I", "U"], "id_2": [1, 2], "price": pa.array(["1.50", "2"], pa.string())})
    pq.write_table(table, place / "feed" / "a.parquet")
    config, _ = proposed(capsys, "feed/*")
    assert config.source.format == ("dms-parquet" if first == "Op" else "parquet")
    assert config.columns["id_2"].type == "bigint"


def test_odd_names_are_quoted_or_left_out(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "id": 1,
        "true": "a",
        "a b": "#",
        "a: b": 'x"',
        "ID": 2,
        "_persist_x": 1,
        "null": 3,
        "é": 1,
        "x\ny": 1,
        "7": 8,
        " pad ": 1,
        " pad.x": 1,
        "e\u0301t": 1,
        "n" * 300: 1,
    }
    lines(place / "feed" / "a.jsonl", row)
    config, text = proposed(capsys, "feed/a.jsonl")
    assert [*config.columns] == ["id", "true", "a b", "a: b", "null", "é", "7", "pad", "\u00e9t"]
    assert {each.field for each in config.columns.values()} == {None, " pad ", "e\u0301t"}
    assert "# ID: another column has this name" in text


@pytest.mark.usefixtures("place")
def test_a_debezium_decimal_is_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    config, text = proposed(capsys, str(ROOT / "dags/feed/customers/*/*.jsonl*"))
    assert (config.source.format, config.key, config.time.source) == ("debezium-json", ("id",), "path")
    assert "balance: string # QUESTION: texts that may be base64" in text
    assert "# decimals: precise # QUESTION" in text
    assert "key: id # QUESTION: it is null in 1 of 208 records" in text


DECIMAL = {"field": "d", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"scale": "2"}, "decimal(38,2)"),
        ({"scale": "-2"}, "decimal(38,0)"),
        ({"scale": "-2", "connect.decimal.precision": "5"}, "decimal(7,0)"),
        ({"scale": "x"}, "binary"),
        ([], "binary"),
    ],
)
def test_a_schema_is_read_whatever_is_in_it(parameters: Any, expected: str) -> None:
    row = {"field": "after", "fields": ["a", {"field": []}, {**DECIMAL, "parameters": parameters}]}
    found = stated_types({"schema": {"fields": [1, row]}}, "after")
    assert {name: each.type for name, each in found.items()} == {"d": expected}
    assert stated_types({"schema": {"fields": "a"}}, "after") == {}


@pytest.mark.parametrize("odd", [{"op": {"a": 1}}, {"op": ["c"]}, {"v": "n"}], ids=str)
def test_odd_values_are_no_format(odd: Any, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(place / "feed" / "a.jsonl", {"id": 1, **odd}, '{"v": 1e9999999999999999999}')
    config, _ = proposed(capsys, "feed/a.jsonl")
    assert (config.source.format, config.key) == ("json", ("id",))


def test_nothing_is_overwritten_and_nothing_comes_of_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(place / "feed" / "a.jsonl", {"id": 1})
    lines(place / "feed" / "b.jsonl", "")
    proposed(capsys, "feed/a.jsonl")
    for arguments, told in (
        (["--from", "feed/a.jsonl", "--name", "things"], "things.yaml: exists already; nothing was written"),
        (["--from", "feed/x.jsonl"], "--from: found no file for feed/x.jsonl"),
        (["--from", f"feed/{'x' * 300}"], "--from: found no file for feed/xxx"),
        (["--from", "feed"], "--from: found no file for feed; expected the path of a file"),
        (["--from", "fed/*/*.jsonl"], f"--from: found no folder {place}/fed; expected"),
        (["--from", "feed/b.jsonl"], "--from: found no record in 1 files"),
        (["--from", "s3://bucket/x", "feed/a.jsonl"], "found files in several stores"),
        (["--from", f"s3://bucket/{'x' * 300}", "--connection", "vendor"], "source.connection 'vendor' is not known"),
        (["--from", "feed/a.jsonl", "--name", "a/b"], "a/b"),
        ([], "expected one FOLDER"),
        (["a", "b"], "expected one FOLDER"),
        (["a", "--name", "b"], "expected one FOLDER"),
    ):
        assert run_command(["init", *arguments]) == 2, arguments
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("text", ['[{"id": 1}]', '{\n "id": 1\n}', "<a/>", "id,name\r1,a\r", "PK\3\4", "i\0d\0"])
def test_files_of_no_format_that_is_read(text: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "feed" / "a.txt").write_bytes(text.encode())
    assert run_command(["init", "--from", "feed/a.txt"]) == 2
    assert "found neither JSON lines, nor CSV, nor Parquet, but" in capsys.readouterr().err


def test_files_that_the_shell_has_expanded(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b [1]", "{b}"):
        lines(place / "feed" / f"{name}.jsonl", {"id": name})
    (place / "feed" / "d[1]").mkdir()
    lines(place / "feed" / "d[1]" / "c.jsonl", {"id": "c"})
    lines(place / "feed" / "c.jsonl", {"id": "not given"})
    _, text = proposed(capsys, "feed/a.jsonl", "feed/b [1].jsonl", "feed/{b}.jsonl", "feed/d[1]/c.jsonl")
    assert "from 4 records of 4 of 4 files" in text
    assert "# QUESTION: it takes c.jsonl too: are all files of this table?" in text


def test_other_files_that_the_path_takes_are_a_question(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("orders-1.jsonl", "orders-2.jsonl", "notes.txt"):
        lines(place / "feed" / name, {"id": 1})
    config, text = proposed(capsys, "feed/orders-*.jsonl")
    assert (config.source.path, ".jsonl too" in text) == ("../../feed/orders-*.jsonl", False)
    for files, is_asked in ((["feed/orders-1.jsonl"], True), (["feed/orders-1.jsonl", "feed/orders-2.jsonl"], False)):
        assert run_command(["init", "--from", *files]) == 0
        assert ("orders-2.jsonl too: are all" in capsys.readouterr().out) is is_asked
    found = found_by(["feed/*.jsonl"], OpenLocation(MemBlob(), MemConsensus()))
    for key, is_asked in (("a.jsonl", True), ("*.jsonl", False)):  # the folder of an object is not listed
        text = propose(replace(found, globs=[f"s3://bucket/feed/{key}"]), folder=None)
        assert ("may take other objects too" in text) is is_asked
    lines(place / "feed" / "2026-01-01" / "_x" / "a.jsonl", {"id": 1})
    assert run_command(["init", "--from", "feed/2026-01-01/_x/a.jsonl"]) == 0
    assert "# QUESTION: expected no name that starts with '.' or '_'" in capsys.readouterr().out


def test_a_folder_is_listed_once_for_all_files_of_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        lines(place / "feed" / f"{number}.jsonl", {"id": number})
    listed: list[str] = []
    scan = LocalFeed.scan

    def counted(feed: LocalFeed, wanted: Wanted) -> Scan:
        listed.append(feed.pattern.root)
        return scan(feed, wanted)

    monkeypatch.setattr(LocalFeed, "scan", counted)
    found = found_by(["feed/0.jsonl", "feed/2.jsonl"], OpenLocation(MemBlob(), MemConsensus()))
    assert [Path(each.path).name for each in found.files] == ["0.jsonl", "2.jsonl"]
    assert listed == [str(place / "feed")]


def test_debeziums_times_as_iso_texts_are_times() -> None:
    """As `time.precision.mode: isostring` has them."""
    names = {"on": "IsoDate", "at": "IsoTimestamp", "of_day": "IsoTime", "zoned": "ZonedTimestamp"}
    fields = [{"field": each, "type": "string", "name": f"io.debezium.time.{name}"} for each, name in names.items()]
    found = stated_types({"schema": {"type": "struct", "fields": fields}}, None)
    types = {name: (guess.type, guess.unit) for name, guess in found.items()}
    assert types == {
        "on": ("date", None),
        "at": ("timestamp", None),
        "of_day": ("string", None),
        "zoned": ("timestamp", None),
    }


def test_the_only_field_that_can_be_a_key_may_be_the_order(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(place / "feed" / "a.jsonl", {"tags": [1], "updated_at": 5})
    config, _ = proposed(capsys, "feed/a.jsonl")
    assert config.key == ("updated_at",)
