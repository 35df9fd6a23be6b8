"""Pages within a budget: the rows of the whole read, in a bounded part of its memory, stopped when it should."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from persist_core.compaction.merge import Merge, merge_here
from persist_core.errors import InvalidInput, StorageError
from persist_core.handles.client import PersistClient
from persist_core.handles.limited import LimitedReader, ReadBudget
from persist_core.inspection.rows import (
    Cut,
    changes_between,
    errors_as_of,
    first_changes,
    first_rows,
    in_key_order,
    in_time_order,
    rows_as_of,
)
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.schema import CollectionSchema, Column
from tests.plain_commit import ErrUpdate, Update, commit

KEYED = CollectionSchema(
    (Column("region", "string", nullable=False), Column("id", "bigint", nullable=False)),
    (Column("note", "string"), Column("blob", "binary"), Column("amount", "double")),
)
COUNTED = CollectionSchema((), (Column("note", "string"), Column("amount", "bigint")))
TEXT_CHARS, TEXTS = 100_000, 4_000
MOST_BYTES = 250 << 20  # peak of a process that reads a page of `TEXTS` equal texts, Python and Arrow included
PLENTY = 1 << 30


@pytest.fixture
def client() -> Iterator[PersistClient]:
    with OpenLocation(MemBlob(), MemConsensus()) as opened:
        yield PersistClient(opened)


def fill(client: PersistClient, draw: random.Random, *, keyed: bool) -> None:
    """A dozen commits of inserts, updates and deletes of few keys; some of them merged, into runs with history."""
    alive: dict[tuple[str, int], tuple[object, ...]] = {}
    for time in range(1, 13):
        updates: list[Update] = []
        for _ in range(draw.randrange(30)):
            key = (draw.choice(["é", "n", "s"]), draw.randrange(12))
            note = draw.choice([None, "", "x" * draw.randrange(300), "same"])
            row = (*key, note, draw.choice([None, b"\xff"]), draw.random()) if keyed else (note, key[1] % 3)
            if any(update[0][:2] == key and update[1] == time for update in updates) and keyed:
                continue
            if key in alive:
                updates.append((alive.pop(key), time, -1))
            if draw.random() < 0.7:
                alive[key] = row
                updates.append((row, time, 1))
        errs: list[ErrUpdate] = [("value", b"k", bytes([time]), time, 1)]
        commit(client, "s", KEYED if keyed else COUNTED, time + 1, updates, errs)
        state = client.state("s")
        if draw.random() < 0.3 and len(state.batches) > 2:
            first = draw.randrange(len(state.batches) - 1)
            merge_here(client, Merge.of(client, state, state.batches[first:]), attempt=client.ids.uuid7())


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("salt", range(4))
def test_pages_are_the_whole_read_in_pieces(client: PersistClient, salt: int, keyed: bool) -> None:
    draw = random.Random(f"{os.environ['PERSIST_SEED']}/{salt}")
    fill(client, draw, keyed=keyed)
    state, whole = client.state("s"), client.open_reader("s")

    def reader() -> LimitedReader:
        return LimitedReader(client, "s", ReadBudget(PLENTY))

    for time in range(1, 13):
        rows = in_key_order(state, whole.snapshot(time))
        start, limit = draw.randrange(5), draw.randrange(1, 20)
        page, total = first_rows(reader(), state, time, None, start, limit)
        assert total == len(rows)
        assert page.to_pylist() == rows.slice(start, limit).to_pylist()
        assert page.schema.equals(rows.schema)
        after = draw.randrange(1, time + 1)
        for of_errors in (False, True):
            read = whole.error_changes if of_errors else whole.changes
            changes = in_time_order(state, read(after, time))
            page, total = first_changes(reader(), state, after, time, None, start, limit, of_errors=of_errors)
            assert total == len(changes)
            expected = changes.slice(start, limit)
            assert sorted(map(repr, page.to_pylist())) == sorted(map(repr, expected.to_pylist()))


def test_the_budget_counts_decoded_bytes(client: PersistClient) -> None:
    """A file of a few hundred bytes, whose rows take a thousand times as much."""
    text = "a long text" * 1_000
    commit(client, "s", COUNTED, 5, [((text, 1), time % 4 + 1, 1) for time in range(400)])
    assert client.state("s").batches[0].size_bytes < len(text)
    with pytest.raises(InvalidInput, match=r"holds .* of decoded rows so far, expected at most 1.0 MiB\. Give a key"):
        rows_as_of(client, "s", None, Cut(limit=1), budget=ReadBudget(1 << 20))
    with pytest.raises(InvalidInput, match="expected at most"):
        changes_between(client, "s", 1, None, Cut(limit=1), budget=ReadBudget(1 << 20))
    assert rows_as_of(client, "s", None, Cut(limit=1), budget=ReadBudget(PLENTY)).total == 400


def test_copies_of_a_row_are_counted_before_they_are_made(client: PersistClient) -> None:
    commit(client, "s", COUNTED, 5, [(("x" * 100, 1), 1, 5_000_000)])
    with pytest.raises(InvalidInput, match=r"expected at most 128\.0 MiB"):
        rows_as_of(client, "s", None, Cut(limit=1))


def test_a_large_page_of_few_rows_is_refused_with_what_to_do(client: PersistClient) -> None:
    commit(client, "s", KEYED, 5, [(("r", n, "x" * 100_000, None, 0.0), 1, 1) for n in range(20)])
    assert len(rows_as_of(client, "s", None, Cut(limit=5), budget=ReadBudget(1 << 20)).rows) == 5
    with pytest.raises(InvalidInput, match="smaller limit"):
        rows_as_of(client, "s", None, Cut(limit=20), budget=ReadBudget(1 << 20))


def test_a_read_ends_between_two_batches(client: PersistClient) -> None:
    """Each of ten files is one batch: a budget that says stop at the third check opens no more than that."""
    for time in range(1, 11):
        commit(client, "s", KEYED, time + 1, [(("r", time, "n", None, 0.0), time, 1)], [("value", b"", b"", time, 1)])
    reads: tuple[Callable[[ReadBudget], object], ...] = (
        lambda budget: rows_as_of(client, "s", None, Cut(), budget=budget),
        lambda budget: changes_between(client, "s", 0, None, Cut(), budget=budget),
        lambda budget: changes_between(client, "s", 0, None, Cut(), of_errors=True, budget=budget),
        lambda budget: errors_as_of(client, "s", None, Cut(), budget=budget),
    )
    for read in reads:
        checks: list[int] = []

        def check(checks: list[int] = checks) -> None:
            checks.append(1)
            if len(checks) == 3:
                raise StorageError("stop")

        with pytest.raises(StorageError, match="stop"):
            read(ReadBudget(PLENTY, check))
        assert len(checks) == 3


READ_IN_ITS_OWN_PROCESS = """
import re, sys
from persist_core.cli.main import run_command
from persist_core.handles.client import PersistClient
from persist_core.inspection.rows import Cut, changes_between, rows_as_of
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
place = PersistLocation(*sys.argv[1:3])
with open_location(place) as opened:
    client = PersistClient(opened)
    if sys.argv[3] == "page":
        page = rows_as_of(client, "s", None, Cut(limit=1))
        assert (page.total, len(page.rows[0][1])) == (4_000, 2_023), (page.total, len(page.rows[0][1]))
        assert changes_between(client, "s", 0, None, Cut(limit=1)).total == 4_000
    else:
        at = ["--blob-uri", sys.argv[1], "--consensus-uri", sys.argv[2]]
        assert run_command(["snapshot", "s", "--limit", "1", *at]) == 0
        assert run_command(["changes", "s", "--after", "0", "--limit", "1", *at]) == 0
        assert run_command(["errors", "s", "--limit", "1", *at]) == 0
# Not getrusage: that begins with the memory of the process that started this one.
print("peak", re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


@pytest.fixture(scope="module")
def equal_texts(tmp_path_factory: pytest.TempPathFactory) -> PersistLocation:
    """A shard whose rows take 400 MB: each has the same text of 100 kB, which is stored once in each of eight files."""
    folder = tmp_path_factory.mktemp("texts")
    place = PersistLocation(f"file://{folder}/blob", f"sqlite:///{folder}/consensus.db")
    schema = CollectionSchema((Column("id", "bigint", nullable=False),), (Column("text", "string"),))
    text = "".join(random.Random(1).choices("abcdefgh", k=TEXT_CHARS))
    with open_location(place) as opened:
        client = PersistClient(opened)
        for time in range(1, 9):
            rows: list[Update] = [((number, text), time, 1) for number in range(time, TEXTS + time, 8)]
            commit(client, "s", schema, time + 1, rows, [("value", b"", text.encode(), time, 1)])
        assert client.state("s").batches[-1].size_bytes < 2 * TEXT_CHARS
    return place


@pytest.mark.parametrize("way", ["page", "command line"])
def test_equal_texts_take_the_memory_of_one(equal_texts: PersistLocation, way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ_IN_ITS_OWN_PROCESS, equal_texts.blob_uri, equal_texts.consensus_uri, way],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    peak_bytes = int(done.stdout.split()[-1]) * 1024
    assert peak_bytes < MOST_BYTES, f"{peak_bytes >> 20} MB"
