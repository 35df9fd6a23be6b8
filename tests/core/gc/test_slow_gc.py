"""GC whose steps are far apart, beside writers, merges and readers that are slow too. Time is counted in eras."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persist_core.compaction.merge import Merge, merge_here
from persist_core.contents import pieces
from persist_core.contents.parts import updates_schema
from persist_core.errors import ReadTooSlow
from persist_core.gc.collect import collect
from persist_core.handles.read import schema_of
from persist_core.keys import MANIFEST, gc_prefix
from persist_core.location.open import OpenLocation
from persist_core.protocol import stages
from persist_core.shard import invariants
from persist_core.shard import state as transitions
from persist_core.shard.replace import NotReplaced
from persist_core.shard.state import Committed
from tests.core.gc.test_collect import ERAS_TO_SWEEP, A, merge_all, ok, pass_eras
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.core.protocol.test_restore_faults import client_on


@pytest.fixture
def shard(tmp_path: Path) -> Collection:
    """Four commits."""
    return four_commits(tmp_path)


def four_commits(folder: Path) -> Collection:
    made = Collection(folder)
    for number in range(1, 5):
        made.drop(f"{number}.txt", [ok(A, f"a{number}", 10 * number - 1)])
        made.run(10 * number)
    return made


class SlowBlob:
    """Calls `meanwhile` once, before the first call of `operation` whose key or prefix `picks` selects."""

    def __init__(
        self, blob: Any, operation: str, picks: Callable[[str], bool], meanwhile: Callable[[], object]
    ) -> None:
        self._blob, self._operation, self._picks, self._meanwhile = blob, operation, picks, meanwhile
        self._is_over = False

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._blob, name)
        if name != self._operation:
            return inner

        def call(key: str, *others: Any) -> Any:
            if self._picks(key) and not self._is_over:
                self._is_over = True
                self._meanwhile()
            return inner(key, *others)

        return call


def stage_fifth(shard: Collection) -> tuple[Any, str]:
    """Describe and stage a fifth commit."""
    shard.drop("5.txt", [ok(A, "a5", 49)])
    description = shard.mint(50)
    return description, shard.write(description)


def append(shard: Collection, staged: tuple[Any, str]) -> None:
    assert isinstance(stages.append(shard.client, *staged), Committed)


def slowly(shard: Collection, operation: str, picks: Callable[[str], bool], meanwhile: Callable[[], object]) -> Any:
    """A client that is slow once."""
    blob: Any = SlowBlob(shard.location.blob, operation, picks, meanwhile)
    return client_on(shard, OpenLocation(blob, shard.location.consensus))


def test_a_late_list_deletes_nothing_appended_meanwhile(shard: Collection) -> None:
    """A collector stops between looking and storing its list. Another one finds that list old enough to be swept."""
    staged = stage_fifth(shard)

    def meanwhile() -> None:
        collect(shard.client, SHARD)
        append(shard, staged)
        pass_eras(shard, ERAS_TO_SWEEP)

    def is_list(key: str) -> bool:
        return key.startswith(f"{gc_prefix(SHARD)}0/")

    collect(slowly(shard, "set", is_list, meanwhile), SHARD)
    (swept,) = pass_eras(shard, 1)
    assert swept.kept
    shard.check()


def test_files_staged_during_a_listing_belong_to_its_era(shard: Collection) -> None:
    """A collector stops before it lists. A batch that was described eras later is listed, and appended eras after."""
    staged = []

    def meanwhile() -> None:
        collect(shard.client, SHARD)
        pass_eras(shard, 3)
        staged.append(stage_fifth(shard))

    collect(slowly(shard, "list_keys_and_metadata", f"{SHARD}/batches/".__eq__, meanwhile), SHARD)
    pass_eras(shard, 2)
    append(shard, staged[0])
    shard.check()


def test_what_was_appended_and_merged_away_stays_for_its_readers(shard: Collection) -> None:
    """An attempt is on a list, is appended in the last era in which that is allowed, and replaced in the next one."""
    staged = stage_fifth(shard)
    collect(shard.client, SHARD)
    pass_eras(shard, ERAS_TO_SWEEP - 2)
    append(shard, staged)
    pass_eras(shard, 1)
    reader = shard.client.open_reader(SHARD)
    begun = reader.state()
    merge_all(shard)
    pass_eras(shard, 1)
    reader.read(begun.batches, updates_schema(schema_of(begun)), lambda b, m: pieces.oks_as_of(b, m, 49))


def test_a_merge_staged_too_long_ago_is_refused(shard: Collection) -> None:
    """A merge stops before it stages its manifest, until GC has deleted its files."""

    def meanwhile() -> None:
        collect(shard.client, SHARD)
        pass_eras(shard, ERAS_TO_SWEEP)

    client = slowly(shard, "set", lambda key: key.endswith(MANIFEST), meanwhile)
    state = client.state(SHARD)
    done = merge_here(client, Merge.of(client, state, state.batches), attempt=client.ids.uuid7())
    shard.check()
    assert isinstance(done, NotReplaced)


@pytest.mark.parametrize("file", [MANIFEST, ".parquet"])
def test_a_merge_whose_inputs_are_collected_is_too_slow(shard: Collection, file: str) -> None:
    """Others merge the same inputs, and GC deletes these before the slow merge has read them."""
    state = shard.client.state(SHARD)
    merge_here(shard.client, Merge.of(shard.client, state, state.batches[:2]), attempt=shard.client.ids.uuid7())
    state = shard.client.state(SHARD)
    run = state.batches[0].manifest_key.removesuffix(MANIFEST)

    def meanwhile() -> None:
        merge_all(shard)
        collect(shard.client, SHARD)
        pass_eras(shard, ERAS_TO_SWEEP)

    client = slowly(shard, "get", lambda key: key.startswith(run) and key.endswith(file), meanwhile)
    with pytest.raises(ReadTooSlow, match="is missing"):
        merge_here(client, Merge.of(client, state, state.batches), attempt=client.ids.uuid7())
    shard.check()


def test_a_checkpoint_older_than_all_commits_is_restored(shard: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state lists its newest commits only. Retention may keep a checkpoint longer, and the progress that it names."""
    first = shard.client.state(SHARD).commits[0].checkpoint_id
    monkeypatch.setattr(transitions, "MIN_COMMITS_KEPT", 2)
    monkeypatch.setattr(transitions, "MAX_COMMITS_KEPT", 2)
    monkeypatch.setattr(invariants, "MIN_COMMITS_KEPT", 2)
    append(shard, stage_fifth(shard))
    stages.checkpoint(shard.client, shard.config)
    assert len(shard.client.state(SHARD).commits) == 2
    collect(shard.client, SHARD)
    pass_eras(shard, ERAS_TO_SWEEP)
    shard.go_back(first)
    shard.check()
