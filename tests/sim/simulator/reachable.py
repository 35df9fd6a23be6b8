"""The objects that a shard needs, found without the product's code: by following names in the stored JSON.

Written only from the formats in docs/architecture.md: a need that GC forgets, or one too many, is a difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from persist_core.location.blob import Blob
from persist_core.location.consensus import Consensus


def reachable(blob: Blob, consensus: Consensus, shard: str) -> set[str]:
    """Keys below `shard/` that the newest state, a checkpoint or a fork needs; conflicts, and GC's own."""
    stored = {entry.key for entry in blob.list_keys_and_metadata(f"{shard}/")}
    named = set(_named_by(blob, consensus, shard, stored))
    for key in (key for key in stored if key.startswith(f"{shard}/forks/")):
        record = _load(blob, key)
        shared = set(record["keys"])
        shared |= {named for each in shared if each.endswith("/manifest.json") for named in _parts(blob, each)}
        fork = record["fork"]
        others = {entry.key for entry in blob.list_keys_and_metadata(f"{fork}/")}
        if shared & set(_named_by(blob, consensus, fork, stored | others)):
            named |= {key, *shared}
    records = {key for key in stored if key.split("/")[1] in ("conflicts", "conflict_alerts", "gc")}
    return (named & stored) | records


def _named_by(blob: Blob, consensus: Consensus, shard: str, stored: set[str]) -> Iterator[str]:
    head = consensus.head(shard)
    if head is None:
        return
    state = json.loads(head.data)["state"]
    if state["since"] is None and state["upper"] is None:
        return
    for line in state["batches"]:
        name = line.split(" ")[-1]
        key = name if "/" in name else f"{shard}/batches/{name}/manifest.json"
        yield key
        yield from _parts(blob, key)
    yield from _names(state["sources"], stored)
    for commit in state["commits"]:
        yield commit["manifest_key"]
        manifest = _load(blob, commit["manifest_key"])
        yield from _names([manifest["operators"], manifest["sources"]], stored)
    root = f"{shard}/checkpoints/"
    ids = {commit["checkpoint_id"] for commit in state["commits"]}
    for key in (key for key in stored if key.startswith(root)):
        folder = key.removeprefix(root).split("/")[0]
        if folder in ids | {"_latest", "quarantine"} or f"{root}{folder}/manifest.json" in stored:
            yield key
        if key == f"{root}{folder}/manifest.json":
            yield from _names(_load(blob, key)["source_offsets"], stored)


def _names(value: Any, stored: set[str]) -> Iterator[str]:
    """Every string in a JSON value that is the key of a stored object."""
    if isinstance(value, str) and value in stored:
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names(inner, stored)


def _parts(blob: Blob, key: str) -> Iterator[str]:
    """The parts of a manifest, and the lists in which many of them are."""
    manifest = _load(blob, key)
    yield from (part["key"] for part in manifest.get("parts", ()))
    for number in range(len(manifest.get("lists", ()))):
        listed = key.replace("/manifest.json", f"/parts-{number:06d}.json")
        yield listed
        yield from (part["key"] for part in _load(blob, listed).get("parts", ()))


def _load(blob: Blob, key: str) -> Any:
    data = blob.get(key)
    assert data is not None, f"{key} is needed and missing"
    return json.loads(data)
