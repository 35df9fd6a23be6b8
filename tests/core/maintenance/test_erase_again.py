"""Second requests to erase a key: it came back since the first one, and was deleted by the source."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from persist_core.contents.erased import Erasure
from persist_core.contents.parts import PARQUET
from persist_core.errors import RunFailed
from persist_core.handles.client import PersistClient
from persist_core.handles.erased import erased_list, last_erased
from persist_core.location import MemBlob
from persist_core.maintenance.erase import _Erasing, erase
from persist_core.maintenance.erase_objects import verify
from tests.core.maintenance.test_erase import in_memory
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.core.protocol.test_restore_faults import A, B, ok
from tests.core.world import SCHEMA
from tests.dying_store import Crash
from tests.plain_commit import commit
from tests.virtual import ManualClock, SeededIds

KEY = (1,)
ANN = (1, "Ann")


@pytest.fixture
def client() -> PersistClient:
    return begun()


def begun() -> PersistClient:
    clock = ManualClock(1_700_000_000_000)
    made = PersistClient(in_memory(), clock, SeededIds(1, clock))
    commit(made, "orders", SCHEMA, 10, [(ANN, 5, 1), ((2, "Bo"), 5, 1)])
    return made


def comes_and_goes(client: PersistClient) -> None:
    """The shard's upper is 40 then."""
    commit(client, "orders", SCHEMA, 20, [(ANN, 15, 1)])
    commit(client, "orders", SCHEMA, 30, [(ANN, 25, -1)])
    commit(client, "orders", SCHEMA, 40, [((3, "Cy"), 35, 1)])


def listed(client: PersistClient) -> tuple[Erasure, ...]:
    return erased_list(client, client.state("orders")).erasures


def test_a_key_that_came_and_went_is_erased_again(client: PersistClient) -> None:
    erase(client, "orders", [KEY], by="ann", reason="first")
    comes_and_goes(client)
    done = erase(client, "orders", [KEY], by="bo", reason="second")
    assert (done.status, done.rows) == ("erased", 1)
    assert [(each.by, each.reason, each.upper) for each in listed(client)] == [
        ("ann", "first", 10),
        ("bo", "second", 40),
    ]
    state = client.state("orders")
    assert [each.time for each in erased_list(client, state).known().values()] == [40], "records before it are dropped"
    assert last_erased(client, state) == 40
    assert verify(client, "orders", [KEY]) == ()
    for _ in range(2):
        assert erase(client, "orders", [KEY], by="bo", reason="second").status == "up_to_date"
        commit(client, "orders", SCHEMA, (client.state("orders").upper.time or 0) + 10)
    assert len(listed(client)) == 2


def test_what_is_dated_after_the_last_input_is_not_from_before(client: PersistClient) -> None:
    """The first erasure moves the upper, into the day whose files come next."""
    for key in (KEY, (2,)):
        erase(client, "orders", [key], by="ann", reason="both")
    assert [(each.upper, *(key.time for key in each.keys)) for each in listed(client)] == [(10, 10), (11, 10)]


@pytest.mark.parametrize("comes", [False, True])
def test_a_killed_request_goes_on(client: PersistClient, monkeypatch: pytest.MonkeyPatch, *, comes: bool) -> None:
    """It covers what has come since it was killed."""

    def killed(_: _Erasing) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(_Erasing, "rewrite", killed)
        with pytest.raises(Crash):
            erase(client, "orders", [KEY], by="ann", reason="first")
    if comes:
        comes_and_goes(client)
    assert erase(client, "orders", [KEY], by="ann", reason="again").status == "erased"
    (only,) = listed(client)
    assert (only.reason, only.rows, only.upper) == (("first", 2, 40) if comes else ("first", 1, 10))
    assert verify(client, "orders", [KEY]) == ()


@pytest.mark.parametrize("erased", [0, 30, 51, 7])
def test_files_whose_bounds_rule_the_key_out_stay_closed(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch, erased: int
) -> None:
    """Nor does another erasure of a key that the table does not hold open them."""
    held: dict[str, set[int]] = {}
    for first in range(0, 60, 10):
        commit(client, "people", SCHEMA, first + 10, [((first + each, "x"), first, 1) for each in (0, 1)])
        newest = client.state("people").batches[-1]
        held |= {part.key: {first, first + 1} for part in client.manifests([newest])[0].parts}
    opened = set[str]()
    get = MemBlob.get

    def watched(blob: MemBlob, key: str) -> bytes | None:
        opened.add(key)
        return get(blob, key)

    monkeypatch.setattr(MemBlob, "get", watched)
    for _ in range(2):
        erase(client, "people", [(erased,)], by="ann", reason="first")
        assert {key for key in opened if key in held} == {key for key, keys in held.items() if erased in keys}
        opened.clear()
        held = {key: keys for key, keys in held.items() if erased not in keys}
    monkeypatch.undo()
    assert verify(client, "people", [(erased,)]) == ()


def test_a_request_that_is_refused_is_not_listed(tmp_path: Path) -> None:
    """Else records of the key would be dropped, though nothing was erased."""
    shard = Collection(tmp_path)
    shard.client.part_format = PARQUET
    shard.drop("1.txt", [ok(A, "one", 1), ok(B, "due", 10)])
    shard.run(10)
    with pytest.raises(RunFailed, match="Nothing was committed: run the collection once"):
        erase(shard.client, SHARD, [A], by="ann", reason="asked")
    assert shard.client.state(SHARD).erased is None
    shard.run(20)
    assert erase(shard.client, SHARD, [A], by="ann", reason="asked").status == "erased"
    shard.check()


def test_another_erasure_deletes_what_this_one_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before every sixth read, and does not count as damage."""
    get = MemBlob.get
    for at in range(1, 200, 6):
        client, reads = begun(), itertools.count(1)

        def overtaken(
            blob: MemBlob, key: str, *, at: int = at, client: PersistClient = client, reads: Iterator[int] = reads
        ) -> bytes | None:
            if next(reads) == at:
                erase(client, "orders", [(2,)], by="bo", reason="other")
            return get(blob, key)

        with monkeypatch.context() as patch:
            patch.setattr(MemBlob, "get", overtaken)
            erase(client, "orders", [KEY], by="ann", reason="first")
        assert verify(client, "orders", [KEY]) == ()
        if next(reads) <= at:
            return
    raise AssertionError("there are more reads than expected")
