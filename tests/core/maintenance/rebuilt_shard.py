"""A collection whose file may name another key, so that it needs a rebuild; its write stage is the oracle's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.handles.write import WriteHandle
from persist_core.location.open import OpenLocation
from persist_core.maintenance.rebuild import Rebuilt, Request, rebuild
from persist_core.maintenance.violations import Violation
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.oracle.upsert import Record

KEYS = (("region", "id"), ("id", "region"))
A, B, C = ("eu", 1), ("eu", 2), ("", 0)


class Keyed(Collection):
    """Its key is `KEYS[0]` until its file says another one (`define`)."""

    def __init__(self, folder: Path, location: OpenLocation | None = None, shard: str = SHARD) -> None:
        super().__init__(folder, location, shard)

    def define(self, key: int, **changes: Any) -> None:
        """Change the file."""
        body = {**self.config.model_dump(mode="json"), "key": KEYS[key], **changes}
        self.config = CollectionConfig.model_validate(body)

    def beside(self, shard: str) -> Keyed:
        other = Keyed(self.folder, self.location, shard)
        other.feed, other.stashed, other.clock = self.feed, self.stashed, self.clock
        other.client.ids, other.client.clock = self.client.ids, self.clock
        other.config = self.config.model_copy(update={"name": shard})
        return other

    def write(self, description: BatchDescription) -> str:
        with columns_in_order():
            return super().write(description)


def made(folder: Path, *, is_swapped: bool = False) -> Keyed:
    """Three commits; then its file names another key. `is_swapped`: it was rebuilt, and the file is as it was."""
    shard = Keyed(folder)
    fill(shard, is_swapped=is_swapped)
    shard.define(int(not is_swapped))
    return shard


def fill(shard: Keyed, *, is_swapped: bool = False) -> None:
    """Three commits. `is_swapped`: and a rebuild by another key."""
    for number, records in enumerate(([ok(A, "one"), ok(B, "b")], [ok(C, "two", 1)], [ok(C, "three", 2)])):
        shard.drop(f"{number}.txt", records)
        shard.run(10 * (number + 1))
    if is_swapped:
        shard.define(1)
        rebuilt(shard)


@contextmanager
def columns_in_order() -> Iterator[None]:
    """Stage tables whatever the order of their columns is."""
    stage = WriteHandle.stage

    def ordered(writer: Any, description: Any, schema: Any, attempt: str, oks: Any, errs: Any, **more: Any) -> str:
        key, rest = list(schema.key_names), oks.column_names[len(schema.key) :]
        oks, errs = oks.select([*key, *rest]), errs.select([*key, *errs.column_names[len(key) :]])
        return stage(writer, description, schema, attempt, oks, errs, **more)

    with patch.object(WriteHandle, "stage", ordered):
        yield


def rebuilt(
    shard: Collection,
    client: PersistClient | None = None,
    *,
    first: Callable[[BatchDescription], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    report: Callable[[Rebuilt], None] = lambda _: None,
    **request: Any,
) -> Rebuilt:
    """`persist rebuild --yes`."""

    def write(config: CollectionConfig, description: BatchDescription) -> str:
        first(description)
        return shard.beside(config.name).write(description)

    asked = Request(**{"is_confirmed": True, **request})
    return rebuild(
        client or shard.client, shard.config, asked, write=write, writer="test/rebuild", say=say, report=report
    )


def ok(slot: tuple[str, int], name: str, file: int = 0) -> Record:
    return Record(slot, (name, None, None), None, (0, "f", file, 0))


def names(shard: Collection) -> dict[Any, str]:
    rows = shard.client.open_reader(shard.shard).snapshot().to_pylist()
    return {(row["region"], row["id"]): row["name"] for row in rows}


def check_only_left(violations: Iterable[Violation]) -> None:
    """`fsck` has found nothing but operator state that a checkpoint task has not ended."""
    left = ", or is at work. The next one deletes them"
    assert [each for each in violations if each.message.partition("died")[2] != left] == []
