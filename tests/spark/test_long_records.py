"""Records above `limits.max_record_bytes`: an err each, and all others are read. And long texts below it."""

from __future__ import annotations

import bz2
import gzip
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_core.errors import UnreadableFiles
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.resolve import plan_resolve, resolve
from persist_core.schema import ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, MISSING_ORDER
from persist_core.shard.state import Committed
from persist_core.sources.input_file import InputFile
from persist_core.sources.natural_order import natural_key
from persist_spark.decode.json import Shape, envelope, parsed
from persist_spark.decode.unread import START_BYTES, long_records, text_without
from persist_spark.decode.unsent import fields_in
from persist_spark.frame import ORDER
from tests.sampling import sample
from tests.spark.decode_feed import Feed, access_to
from tests.spark.test_write_job import Collection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
LIMIT = {"limits": {"max_record_bytes": MIB, "max_errors": 5}}
COLUMNS: dict[str, Any] = {"id": "int", "v": "string"}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: zstandard.compress(data[: len(data) // 2]) + zstandard.compress(data[len(data) // 2 :]),
}


def input_file(path: Path) -> InputFile:
    facts = path.stat()
    return InputFile(str(path), path.name, facts.st_size, 0, 0, None, natural_key(path.name))


def json_line(number: int, size: int = 0) -> bytes:
    return json.dumps({"id": number, "v": "x" * size}).encode()


@pytest.mark.parametrize("suffix", sample(sorted(PACKERS), 3, "long lines"))
def test_a_long_line_is_an_err_and_reading_goes_on_behind_it(feed: Feed, suffix: str) -> None:
    lines = [json_line(1), json_line(2, 3 * MIB), b"", json_line(3), json_line(4, MIB - 100), json_line(5, 2 * MIB)]
    feed.write(f"a.jsonl{suffix}", PACKERS[suffix](b"\n".join(lines)))
    feed.write("b.jsonl", json_line(6) + b"\n")
    rows = feed.records("json", COLUMNS, order="position", **LIMIT)
    good = [row for row in rows if row[ERR_KIND] is None]
    assert [row["id"] for row in good] == [1, 3, 4, 6]
    places = [(row[ORDER]["file"], row[ORDER]["block"], row[ORDER]["row"]) for row in good]
    assert places == sorted(places)
    errs = sorted((row for row in rows if row[ERR_KIND]), key=lambda row: row[ORDER]["block"])
    assert [row[ERR_KIND] for row in errs] == ["key", "key"]
    assert [bytes(row[ERR_PAYLOAD]) for row in errs] == [lines[1][:START_BYTES], lines[5][:START_BYTES]]
    for number, row in zip((2, 6), errs, strict=True):
        size, offset = len(lines[number - 1]), sum(len(line) + 1 for line in lines[: number - 1])
        shown = f"line {number} of file 'a.jsonl{suffix}', at byte {offset} of its text, has {size} bytes"
        assert row[ERR_MESSAGE].startswith(f"{shown}; expected at most {MIB} (limits.max_record_bytes)")
    assert len({bytes(row[ERR_KEY]) for row in errs}) == 2


def test_in_sequence_order_it_is_a_record_without_an_order(feed: Feed) -> None:
    """In a slot that no other record without an order has."""
    without = b'{"v":"x"}'
    feed.write("a.jsonl", b"\n".join([json_line(1, 2 * MIB), json_line(2), without, without]))
    order = {"mode": "sequence", "by": ["id"]}
    rows = feed.records("json", COLUMNS, order=order, **LIMIT)
    lost = [bytes(row[ERR_KEY]).decode() for row in rows if row[ERR_KIND]]
    assert sorted(lost) == [f'{MISSING_ORDER} {{"file":"a.jsonl","block":0,"row":{row}}}' for row in (-1, 2, 3)]


@pytest.mark.parametrize("header", [True, False])
def test_a_first_line_of_csv_that_is_too_long(feed: Feed, header: bool) -> None:
    first = "id,v," + "x" * 2 * MIB if header else "7," + "x" * 2 * MIB
    feed.write("a.csv.gz", gzip.compress(f"{first}\n1,a\n2,b\n".encode()))
    rows = feed.records("csv", COLUMNS, source={"header": header}, **LIMIT)
    assert sum("max_record_bytes" in (row[ERR_MESSAGE] or "") for row in rows) == 1
    assert sorted(row["id"] for row in rows if row["id"]) == [1, 2]  # none is treated as a header
    assert len(rows) == 3


def test_parquet_values_that_are_all_too_long(feed: Feed) -> None:
    long = pa.table(
        {"id": pa.array([1, 2], pa.int32()), "v": [random.Random(n).randbytes(2 * MIB).hex() for n in (1, 2)]}
    )
    pq.write_table(long, feed.folder / "a.parquet", use_dictionary=False)
    pq.write_table(pa.table({"id": pa.array([3], pa.int32()), "v": ["y"]}), feed.folder / "b.parquet")
    rows = feed.records("parquet", COLUMNS, **LIMIT)
    assert [(row["id"], row[ERR_KIND]) for row in rows] == [(None, "key"), (3, None)]
    assert "2 values of column 'v' have" in rows[0][ERR_MESSAGE]


def test_an_unbounded_compression_is_an_err_of_the_file(feed: Feed) -> None:
    feed.write("a.jsonl.snappy", b"x" * 100)
    feed.write("b.jsonl", json_line(1))
    rows = feed.records("json", COLUMNS, order="position")
    assert [(row["id"], row[ERR_KIND]) for row in rows] == [(None, "key"), (1, None)]


def test_a_bomb_is_scanned_in_bounded_memory(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.jsonl.gz"
    with gzip.open(bomb, "wb", compresslevel=9) as out:
        for _ in range(300):
            out.write(b"x" * MIB)
        out.write(b'\n{"id":1}\n')
    file = input_file(bomb)
    tracemalloc.start()
    found = long_records(access_to(tmp_path).feed, [file], 64 * MIB)
    with gzip.open(tmp_path / "short.gz", "wb") as short:
        short.writelines(text_without(access_to(tmp_path).feed, file, found[file], keeps_first=False))
    assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    tracemalloc.stop()
    assert [(each.size_bytes, each.offset) for each in found[file]] == [(300 * MIB, 0)]
    assert gzip.decompress((tmp_path / "short.gz").read_bytes()) == b'\n{"id":1}\n'


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(random.Random(1).randbytes(MIB))[:-100])
    with pytest.raises(UnreadableFiles, match=r"a\.jsonl\.gz: Compressed file ended"):
        long_records(access_to(tmp_path).feed, [input_file(path)], MIB)


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_a_zstd_file_that_is_cut_off_is_named(tmp_path: Path, cut: int) -> None:
    """Half of such a file must not be copied for Spark before 4.3."""
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(PACKERS[".zst"](b'{"id": 1}\n' * 100_000)[:-cut])
    with pytest.raises(UnreadableFiles, match=r"a\.jsonl\.zst: Truncated compressed stream"):
        long_records(access_to(tmp_path).feed, [input_file(path)], MIB)


@pytest.mark.parametrize("seed", range(30))
def test_lines_and_copies_are_right_wherever_chunks_end(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 7, MIB - 1, MIB, MIB + 1, rng.randint(0, 3 * MIB)]) for _ in range(rng.randint(1, 8))]
    lines = [bytes([97 + number]) * size for number, size in enumerate(sizes)]
    data = b"\n".join(lines) + b"\n" * rng.randint(0, 2)
    suffix = rng.choice(sorted(PACKERS))
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACKERS[suffix](data))
    file = input_file(path)
    found = long_records(access_to(tmp_path).feed, [file], MIB).get(file, [])
    expected = [(f"line {number} ", len(line)) for number, line in enumerate(lines, 1) if len(line) > MIB]
    if suffix == ".gz" and file.size_bytes * 1_032 <= MIB:
        expected = []
    assert [(each.message[: each.message.index("of")], each.size_bytes) for each in found] == expected
    assert all(data[each.offset :].startswith(each.start) and len(each.start) == START_BYTES for each in found)
    if found:
        keeps_first = rng.random() < 0.5
        text = b"".join(text_without(access_to(tmp_path).feed, file, found, keeps_first=keeps_first))
        kept = [line if len(line) <= MIB else b"" for line in lines]
        if keeps_first and len(lines[0]) > MIB:
            kept[0] = lines[0][:START_BYTES]
        end = data[len(b"\n".join(lines)) :]
        assert text == b"\n".join(kept) + end


@pytest.mark.parametrize("mode", sample(["log", "sequence"], 1, "long records"))
def test_a_batch_with_one_commits(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    things = Collection(tmp_path)
    order: dict[str, Any] = {"mode": "sequence", "by": {"seq": "bigint"}} if mode == "sequence" else {"by": "position"}
    body = things.config.model_dump(mode="json") | {"order": order, **LIMIT}
    things.config = CollectionConfig.model_validate(body)
    line = {"id": 1, "at": 5, "seq": 1}
    long = {**line, "name": "x" * 2 * MIB}
    things.drop("a.jsonl", {**line, "name": "one"}, long, {**line, "id": 2, "name": "two"}, long)
    stats = things.run(spark, 10)
    assert (stats["errors"], stats["inserts"]) == (2, 4)
    assert things.names() == ["one", "two"]
    errs = things.client.open_reader("things").errors(9).to_pylist()
    assert {err[ERR_KIND] for err in errs} == {"key" if mode == "log" else MISSING_ORDER}
    assert fsck(things.client, "things").is_clean
    if mode == "sequence":
        plan = plan_resolve(things.client, "things", at="a.jsonl, line *")
        assert len({record.position for record in plan.records}) == 2
        assert isinstance(resolve(things.client, plan, writer="test"), Committed)
        assert things.client.open_reader("things").errors(10).num_rows == 0


def test_a_text_may_have_more_than_20_million_characters(spark: SparkSession) -> None:
    """From so many on Jackson refuses a text, unless an option says another length."""
    value, length = "repeat('x', 20000001 + CAST(id AS INT))", 20_000_001
    line = F.expr(f"""concat('{{"a":"', {value}, '"}}')""")
    shape = Shape()
    shape.need(("a",))
    opened = spark.range(1).select(envelope(line, shape).alias("envelope"), fields_in(line).alias("fields"))
    row, _ = parsed(F.col("envelope"), shape)
    found = opened.select(F.length(shape.get(row, ("a",))), F.length(F.col("fields")["a"])).collect()
    assert found == [(length, length)]


def test_a_record_may_have_1000_levels(feed: Feed) -> None:
    lines = [f'{{"id":{id_},"j":{"[" * levels}{"]" * levels}}}' for id_, levels in ((1, 999), (2, 1000), (3, 100_000))]
    rows = feed.lines("json", lines, {"id": "int", "j": "json"})
    assert [row["j"] for row in rows] == ["[" * 999 + "]" * 999, None, None]
    assert all("nested too deeply" in row[ERR_MESSAGE] for row in rows[1:])
