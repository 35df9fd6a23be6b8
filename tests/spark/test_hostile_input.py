"""The time for a record grows with its length and no faster, whatever it holds; ordinary values are what they were."""

from __future__ import annotations

import os
import random
import re
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from persist_core.schema import ERR_KIND, ERR_MESSAGE
from persist_spark.decode.exact import MAX_CHARS, exact_decimal
from persist_spark.session import stage_settings, use
from tests.sampling import sample
from tests.spark import hostile
from tests.spark.decode_feed import Feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("json", "debezium-json", "dms-json", "csv", "dms-csv")
WORST = ("(1)*", "1(0)*x", "(0)*", "0.(0)*1x", '"(\\)*')  # took hours, or would without a bound
# Below the bound the expressions see the text, above it they must not.
SIZES = ((MAX_CHARS, 2), (20_000, 1))


def columns(kind: str) -> dict[str, Any]:
    units = {"timestamp": "ms", "date": "days"} if kind != "dms-csv" else {"timestamp": "s", "date": "days"}
    return {
        name: {**given, **({"unit": units[given["type"]]} if given["type"] in units else {})}
        for name, given in hostile.COLUMNS.items()
    }


def seconds(feed: Feed, kind: str, names: list[str], size: int, copies: int) -> float:
    """The processor time that decoding lines with these texts, each of this size, takes."""
    gateway: Any = feed.spark.sparkContext._gateway
    head = {"csv": f"{hostile.CSV_HEADER}\n", "dms-csv": f"Op,{hostile.CSV_HEADER}\n"}.get(kind, "")
    known = hostile.texts(size)
    found = [line for name in names for line in hostile.lines(kind, known[name])] * copies
    feed.write("lines.txt", head + "\n".join(found) + "\n")
    changes: dict[str, Any] = {"order": "auto" if kind == "debezium-json" else {"mode": "log", "by": ["c2", "other"]}}
    use(feed.spark, stage_settings(1))
    frame = feed.frame(kind, columns(kind), **changes)
    start = processor_s(gateway.proc.pid)
    frame.write.format("noop").mode("overwrite").save()
    return processor_s(gateway.proc.pid) - start


def processor_s(pid: int) -> float:
    """The processor time that a process has used in user mode (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


@pytest.mark.family("sizes")
@pytest.mark.parametrize(("size", "copies"), SIZES)
@pytest.mark.parametrize("kind", sample(FORMATS, 1, "hostile formats"))
def test_no_text_takes_more_time_than_its_length_explains(feed: Feed, kind: str, size: int, copies: int) -> None:
    others = sample([name for name in hostile.texts(100) if name not in WORST], 5, f"hostile {kind} {size}")
    for group in (others[first : first + 5] for first in range(0, len(others), 5)):
        names = [*WORST, *group]
        seconds(feed, kind, names, 10, 1)  # compiles the plan
        small = seconds(feed, kind, names, size // 4, copies)
        large = seconds(feed, kind, names, size, copies)
        assert large < 8 * small + 3, f"{kind} {names}: {small:.1f} s, four times the size {large:.1f} s"


STARTS = ('{"offset"', '{"offset":', '{"key":null,"topic":', '{"schema":null', '{"payload":', "null", "")


def test_blanks_in_a_damaged_message_take_little_time(feed: Feed) -> None:
    """Each line is compared with the forms of a tombstone."""
    gateway: Any = feed.spark.sparkContext._gateway
    pid = gateway.proc.pid
    feed.lines("debezium-json", ["{"], {"id": "int"})
    start = processor_s(pid)
    rows = feed.lines("debezium-json", [first + " " * 100_000 + "x" for first in STARTS], {"id": "int"})
    assert [row[ERR_KIND] for row in rows] == ["key"] * len(STARTS)
    assert processor_s(pid) - start < 30


def test_a_number_is_right_up_to_the_bound_and_an_err_beyond(feed: Feed) -> None:
    zeros = "0" * (MAX_CHARS - 3)
    lines = [f'{{"id":1,"n":{start}}}' for start in (f'"{zeros}1.5"', f'"0{zeros}1.5"', f"0.5{zeros}", f"0.50{zeros}")]
    rows = feed.lines("json", lines, {"id": "int", "n": "decimal(10,2)"})
    assert [row["n"] for row in rows] == [Decimal("1.50"), None, Decimal("0.50"), None]
    assert [row[ERR_KIND] for row in rows] == [None, "value", None, "value"]
    assert f"bytes, expected at most {MAX_CHARS}" in rows[1][ERR_MESSAGE]


def test_a_million_digits_are_an_err(feed: Feed) -> None:
    rows = feed.lines("json", [f'{{"id":1,"n":{"1" * 1_000_000}}}'], {"id": "int", "n": "decimal(10,2)"})
    assert [row[ERR_KIND] for row in rows] == ["value"]
    assert len(rows[0][ERR_MESSAGE]) < 500


def test_a_first_line_of_csv_with_any_bytes_is_read(feed: Feed) -> None:
    feed.write("a.csv", f'1,"{"x" * 200_000}"\n2,y\n')
    feed.write("b.csv", "3,a\rb\n4,z\n")
    rows = feed.records("csv", {"id": "int", "v": "string"}, source={"header": False})
    assert [row["id"] for row in rows if row[ERR_KIND] is None] == [1, 2, 3, 4]


def test_a_csv_header_that_is_not_utf8_is_no_record(feed: Feed) -> None:
    feed.write("a.csv", "id,größe\n1,x\n".encode("latin-1"))
    rows = feed.records("csv", {"id": "string"})
    assert [(row["id"], row[ERR_KIND]) for row in rows] == [("1", None)]


def _expected(text: str, precision: int, scale: int) -> Decimal | None:
    if re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?\s*", text, re.ASCII) is None:
        return None
    number = Decimal(text.strip())
    is_exact = number == number.quantize(Decimal(1).scaleb(-scale), context=Context(prec=100))
    return number if is_exact and abs(number) < Decimal(10) ** (precision - scale) else None


def test_generated_numbers_are_what_python_reads(spark: SparkSession) -> None:
    rng = random.Random(21)

    def digits(least: int) -> str:
        return "".join(rng.choice("00012359") for _ in range(rng.randint(least, 8)))

    texts = {
        rng.choice(["", " ", "\t"]) + rng.choice(["", "-", "+"]) + digits(0) + rng.choice(["", "."]) + digits(0)
        + rng.choice(["", "", "", "e1", "E-2", "e+3", "e-11", "e", "x"]) + rng.choice(["", "", " ", "\n"])
        for _ in range(20_000)
    }  # fmt: skip
    frame = spark.createDataFrame([(text,) for text in sorted(texts)], "t string")
    for precision, scale in ((38, 9), (10, 2), (9, 0), (6, 6)):
        rows = frame.select("t", exact_decimal(F.col("t"), precision, scale).alias("n")).collect()
        wrong = [(row.t, row.n) for row in rows if row.n != _expected(row.t, precision, scale)]
        assert wrong == [], f"decimal({precision},{scale})"
