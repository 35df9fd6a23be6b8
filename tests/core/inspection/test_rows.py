"""Pages of rows, changes and errors: order, filters, bounds, and values as JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from decimal import Decimal
from hashlib import sha256

import pytest

from persist_core.errors import InvalidInput, OutsideFrontiers
from persist_core.handles.client import PersistClient
from persist_core.handles.limited import ReadBudget
from persist_core.handles.read import ReadHandle
from persist_core.inspection import rows
from persist_core.inspection.rows import Cut, changes_between, differences_between, errors_as_of, rows_as_of
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.protocol.compare import side_of
from persist_core.schema import CollectionSchema, Column
from tests.oracle.consolidate import Err
from tests.oracle.view import inherited
from tests.plain_commit import commit

SCHEMA = CollectionSchema(
    key=(Column("region", "string", nullable=False), Column("id", "bigint", nullable=False)),
    values=(Column("note", "string"), Column("ratio", "double")),
)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def client() -> Iterator[PersistClient]:
    """Ten rows in two regions at time 1, one changed and one deleted at time 5; three errors."""
    with OpenLocation(MemBlob(), MemConsensus()) as opened:
        client = PersistClient(opened)
        first = [((f"r{n % 2}", n, f"note {n}", float("nan")), 1, 1) for n in range(10)]
        errs = [("value", b"k", b"\xff" * 4, 1, 1), ("key", None, HOSTILE.encode(), 2, 1), ("key", None, b"x", 3, 1)]
        commit(client, "orders", SCHEMA, 5, first, errs)
        later = [
            (("r0", 0, "note 0", float("nan")), 5, -1),
            (("r0", 0, "x" * 5_000, None), 5, 1),
            (("r1", 9, "note 9", float("nan")), 5, -1),
        ]
        commit(client, "orders", SCHEMA, 8, later, [("key", None, b"x", 6, -1)])
        yield client


def test_a_page_of_rows(client: PersistClient) -> None:
    newest = rows_as_of(client, "orders", None, Cut(offset=2, limit=3))
    assert [row[:2] for row in newest.rows] == [("r0", 4), ("r0", 6), ("r0", 8)]
    assert (newest.total, newest.offset, newest.as_of, newest.upper) == (9, 2, 7, 8)
    assert [(c.name, c.type, c.is_key) for c in newest.columns][1:3] == [
        ("id", "bigint", True),
        ("note", "string", False),
    ]
    assert rows_as_of(client, "orders", 4, Cut()).total == 10
    assert newest.rows[0][3] == "nan"
    json.dumps(asdict(newest), allow_nan=False)


def test_long_texts_are_cut(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_CELL_CHARS", 10)
    (row,) = rows_as_of(client, "orders", None, Cut(key=("r0", "0"))).rows
    assert row == ("r0", 0, "xxxxxxxxxx... (5000 characters)", None)
    assert rows_as_of(client, "orders", None, Cut(limit=10_000_000)).total == 9


@pytest.mark.parametrize("seed", range(3))
def test_a_browser_rounds_no_integer_of_a_page(client: PersistClient, seed: int) -> None:
    """As doubles the integers are what they are, or they are texts; a text finds its own row."""
    draw = random.Random(seed)
    edges = [sign * (2**power + step) for sign in (-1, 1) for power in (53, 62) for step in (-1, 0, 1)]
    numbers = sorted({*edges, 2**63 - 1, -(2**63), *(draw.randrange(-(2**63), 2**63) for _ in range(20))})
    schema = CollectionSchema(
        key=(Column("id", "bigint", nullable=False),),
        values=(Column("amount", "bigint"), Column("total", "decimal(38,0)"), Column("is_big", "boolean")),
    )
    updates = [((number, -number - 1, Decimal(number), number > 0), 1, 1) for number in numbers]
    commit(client, "big", schema, 5, updates)
    pages = rows_as_of(client, "big", None, Cut()), changes_between(client, "big", 0, None, Cut())
    for page, first in zip(pages, (0, 2), strict=True):
        read = json.loads(json.dumps(page.rows), parse_int=float)  # as a browser reads it
        assert [(int(row[first]), int(row[first + 1])) for row in read] == [(each, -each - 1) for each in numbers]
        assert {type(row[first + 3]) for row in read} == {bool}
        assert {type(row[first]) for row in read} == {float, str}
    for row in pages[0].rows:
        assert rows_as_of(client, "big", None, Cut(key=(str(row[0]),))).rows == (row,)


@pytest.mark.parametrize("key", [("r0", "one"), ("r0", "1.5"), ("r0", "1", "more")])
def test_a_key_that_fits_no_column_is_refused(client: PersistClient, key: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="expected"):
        rows_as_of(client, "orders", None, Cut(key=key))


def test_differences(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (side_of(client, "orders", time, zone="UTC") for time in ("4", "7"))
    monkeypatch.setattr(rows, "MAX_CELL_CHARS", 10)
    page, found = differences_between(client, a, b, Cut(offset=1, limit=2), budget=ReadBudget(1 << 20))
    assert (page.total, page.as_of, found.changed, found.removed) == (3, 7, 1, 1)
    assert [row[:4] for row in page.rows] == [
        ("after", "r0", 0, "xxxxxxxxxx... (5000 characters)"),
        ("removed", "r1", 9, "note 9"),
    ]
    with pytest.raises(InvalidInput, match="expected at most 100 B"):
        differences_between(client, a, b, Cut(), budget=ReadBudget(100))
    monkeypatch.setattr(rows, "MAX_COMPARED", 2)
    with pytest.raises(InvalidInput, match="has changed by"):
        differences_between(client, a, b, Cut(), budget=ReadBudget(1 << 20))


def test_changes(client: PersistClient) -> None:
    page = changes_between(client, "orders", 4, None, Cut(key=("r0",)))
    assert [(row[0], row[1], row[3]) for row in page.rows] == [(5, -1, 0), (5, 1, 0)]
    assert (page.after, page.as_of, page.total) == (4, 7, 2)
    assert changes_between(client, "orders", 0, 4, Cut()).total == 10
    errs = changes_between(client, "orders", 4, 7, Cut(), of_errors=True)
    assert [row[:2] for row in errs.rows] == [(6, -1)]


def test_errors_stand_newest_first(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_CELL_CHARS", 6)
    page = errors_as_of(client, "orders", None, Cut())
    assert [(row[0], row[1], row[5]) for row in page.rows] == [
        (2, "key", f"<img s... ({len(HOSTILE)} characters)"),
        (1, "value", {"hex": "ffffff... (8 characters)"}),
    ]
    assert errors_as_of(client, "orders", 4, Cut()).total == 3


def test_errors_of_a_view_are_shown_without_digests(client: PersistClient) -> None:
    err = inherited(Err("value", b"k", b"secret"), "orders")
    assert err.key_bytes == sha256(b"5:value1:k6:secret").digest()
    commit(client, "view", CollectionSchema((), (Column("n", "int"),)), 5, [], [(err.kind, err.key_bytes, b"", 1, 1)])
    shown = ["_persist_time", "_persist_err_kind", "_persist_err_message"]
    page = errors_as_of(client, "view", None, Cut())
    assert ([column.name for column in page.columns], page.rows[0][:2]) == (shown, (1, "orders/value"))
    changes = changes_between(client, "view", 0, None, Cut(), of_errors=True)
    assert [column.name for column in changes.columns] == [shown[0], "_persist_diff", *shown[1:]]


def test_times_outside_the_frontiers_are_refused(client: PersistClient) -> None:
    with pytest.raises(OutsideFrontiers):
        rows_as_of(client, "orders", 8, Cut())


def test_a_read_that_is_too_large_is_refused_before_it_begins(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MAX_ROWS_READ", 10)
    monkeypatch.setattr(ReadHandle, "read", None)
    with pytest.raises(InvalidInput, match="opens 17 rows"):
        rows_as_of(client, "orders", None, Cut())
    with pytest.raises(InvalidInput, match="Give a key"):
        changes_between(client, "orders", 0, None, Cut())


def test_a_read_of_one_key_counts_only_files_that_can_hold_it(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MAX_ROWS_READ", 16)
    assert rows_as_of(client, "orders", None, Cut(key=("r1",))).total == 4
