"""The work of Python in each commit of a table with many files: mint, append, checkpoint, the first reads of a write.

    python -m tests.benchmarks.files [--files 1000 100000]      (or: make bench BENCH=files)

For each number of files: a shard of one run with so many parts, which are made up, with UUIDs as keys. No data, no
Spark. Commits of one file come on top of it. Then one commit has so many parts itself, as a first load has. Printed for
each phase: processor milliseconds, the median of `TRIES`, and what it reads from blob storage.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from persist_core.compaction.merge import replace_inputs
from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchCounts, Part, PartKind
from persist_core.contents.derived import Run
from persist_core.contents.key_range import KeyRange, exactly
from persist_core.handles.client import PersistClient
from persist_core.handles.load import load_lists
from persist_core.handles.write import manifest_for, stage_manifest
from persist_core.keys import part_key
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.protocol import stages
from persist_core.schema import CollectionSchema

TRIES, ROWS, FILE_BYTES = 5, 500_000, 64 << 20
CONFIG = {"name": "orders", "key": "id", "columns": {"id": "string", "qty": "int"}, "delete": "none", "order": "log"}
MAX_STATE_BYTES, MAX_APPEND_MS, MAX_GROWTH = 256_000, 50, 1.1
ALL = ", if each commit has all files"


class ReadBlob(MemBlob):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.gets, self.read_bytes = 0, 0

    def get(self, key: str) -> bytes | None:
        data = super().get(key)
        self.gets, self.read_bytes = self.gets + 1, self.read_bytes + len(data or b"")
        return data


class Phases:
    """The milliseconds and reads of each phase."""

    def __init__(self, blob: ReadBlob) -> None:
        self._blob = blob
        self.found: dict[str, list[tuple[float, int, int]]] = {}

    def run(self, phase: str, act: Callable[[], Any]) -> Any:
        gets, read_bytes, began = self._blob.gets, self._blob.read_bytes, time.process_time()
        result = act()
        seconds = time.process_time() - began
        found = (seconds * 1000, self._blob.gets - gets, self._blob.read_bytes - read_bytes)
        self.found.setdefault(phase, []).append(found)
        return result

    def ms(self, *phases: str) -> float:
        return sum(statistics.median(ms for ms, _, _ in self.found[phase]) for phase in phases)

    def __str__(self) -> str:
        lines = [
            f"  {phase}: {self.ms(phase):.1f} ms, {each[-1][1]} reads, {each[-1][2] / 1000:,.0f} kB"
            for phase, each in self.found.items()
        ]
        return "\n".join(lines)


def parts_of(client: PersistClient, schema: CollectionSchema, files: int) -> tuple[Part, ...]:
    """So many files of insertions, side by side, that no store holds."""
    attempt = client.ids.uuid7()
    keys = [str(uuid.UUID(int=number * ((1 << 128) - 1) // files)) for number in range(files + 1)]
    return tuple(
        Part(
            part_key("orders", attempt, PartKind.INSERTIONS, number), PartKind.INSERTIONS, FILE_BYTES,
            hashlib.sha256(keys[number].encode()).hexdigest(), schema, ROWS, 5, (keys[number],), (keys[number + 1],),
            index=(30_000, hashlib.sha256(keys[number + 1].encode()).hexdigest()),
        )
        for number in range(files)
    )  # fmt: skip


@contextmanager
def shard_of(files: int) -> Iterator[tuple[PersistClient, CollectionConfig, Phases, Path]]:
    """A shard of one run, and its feed."""
    with tempfile.TemporaryDirectory() as made:
        source = {"path": f"{made}/*.jsonl", "format": "json"}
        config = CollectionConfig.model_validate({**CONFIG, "source": source})
        blob = ReadBlob()
        client = PersistClient(OpenLocation(blob, MemConsensus()))
        commit(Phases(blob), client, config, "", Path(made), 1)
        first = client.state("orders").batches[0]
        manifest = client.manifest(first)
        run = Run((first.manifest_sha256,), 0, first.last_time)
        merged = replace(manifest, parts=parts_of(client, manifest.schema, files), run=run)
        replace_inputs(client, merged, stage_manifest(client.blob, merged, client.ids.uuid7()))
        yield client, config, Phases(blob), Path(made)


def commit(phases: Phases, client: PersistClient, config: CollectionConfig, what: str, feed: Path, files: int) -> None:
    """A commit of so many files, as its three tasks make it."""
    number = len(list(feed.iterdir()))
    (feed / f"{number}.jsonl").write_text('{"id": "a", "qty": 1}\n')
    until = 1000 + 1000 * number
    minted = phases.run(f"mint{what}", lambda: stages.mint(client, config, until=until, writer="benchmark"))
    assert isinstance(minted, stages.Minted), minted
    schema = client.state("orders").schemas.placed(config.collection_schema())
    parts = parts_of(client, schema, files)
    manifest = manifest_for(minted.description, schema, parts, BatchCounts(ROWS * files), rows="made up")
    key = stage_manifest(client.blob, manifest, client.ids.uuid7())
    phases.run(f"append{what}", lambda: stages.append(client, minted.description, key))
    phases.run(f"checkpoint{what}", lambda: stages.checkpoint(client, config))


def opened(client: PersistClient, ranges: list[KeyRange] | None) -> None:
    """Read the manifests as a write does: lists of parts only where the keys of its batch are."""
    for batch in client.state("orders").batches:
        load_lists(client.blob, batch.manifest_key, client.manifest(batch), ranges, threads=client.fetch_threads)


def measure(files: int) -> tuple[Phases, int]:
    with shard_of(files) as (client, config, phases, feed):
        for _ in range(TRIES):
            commit(phases, client, config, "", feed, 1)
        one = str(uuid.UUID(int=5 << 124))
        for _ in range(TRIES):
            phases.run("files of a write of one key", lambda: opened(client, [exactly((one,))]))
            phases.run("files of a write of any keys", lambda: opened(client, None))
        for _ in range(TRIES):
            commit(phases, client, config, ALL, feed, files)
        head = client.location.consensus.head("orders")
        assert head is not None
        return phases, len(head.data)


def main(sizes: list[int]) -> None:
    """Print the phases of each size, and the aims."""
    found = []
    for files in sizes:
        phases, state_bytes = measure(files)
        found.append((phases, state_bytes))
        sys.stdout.write(f"{files:,} files, state {state_bytes / 1000:,.0f} kB\n{phases}\n")
        sys.stdout.flush()
    (least, _), (most, state_bytes) = found[0], found[-1]
    all_files = (f"mint{ALL}", f"append{ALL}")
    aims = (
        ("state, kB", state_bytes / 1000, MAX_STATE_BYTES / 1000),
        ("append, ms", most.ms("append"), MAX_APPEND_MS),
        ("mint and append, most files / least", most.ms("mint", "append") / least.ms("mint", "append"), MAX_GROWTH),
        ("the same, of a commit of all files", most.ms(*all_files) / least.ms(*all_files), MAX_GROWTH),
    )
    for what, value, aim in aims:
        sys.stdout.write(f"{what}: {value:.2f}, aim {aim:g}{'' if value <= aim else ': missed'}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", nargs="*", type=int, default=[1000, 100_000])
    main(parser.parse_args().files)
