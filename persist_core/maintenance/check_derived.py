"""Checks of what is derived from commits: checkpoints, their copies of operator state, offsets files, `_latest`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from persist_core.checkpoint.chains import walk
from persist_core.checkpoint.checkpointer import Checkpointer, Listing
from persist_core.checkpoint.manifest import CheckpointManifest
from persist_core.checkpoint.publish import manifest_of
from persist_core.checkpoint.quarantine import Quarantine
from persist_core.errors import Corruption
from persist_core.keys import offsets_path
from persist_core.maintenance.check_state import Examined
from persist_core.maintenance.violations import Violations
from persist_core.shard.state import ShardState

_MAX_LOOKS = 3  # at `_latest`, which publishers may move while retention deletes


def check_checkpoints(examined: Examined, found: Violations) -> None:
    """Compare every checkpoint with the commit that it derives from, and every file in it with its manifest."""
    state = examined.state
    checkpointer = Checkpointer(examined.client.blob, state.shard, state.origin.life)
    with found.checking("checkpoint", checkpointer.layout.root):
        listing = checkpointer.listing()
        commits = {commit.checkpoint_id: (commit, manifest) for commit, manifest in examined.committed()}
        for checkpoint_id, error in listing.unreadable.items():
            found.add("checkpoint", f"{checkpoint_id}: {error}")
        earlier = {each for each, life in listing.other_lives.items() if life in state.origin.earlier_lives}
        for checkpoint_id in listing.other_lives.keys() - earlier:
            found.add("checkpoint", f"{checkpoint_id} is of another shard {state.shard}, which was dropped")
        for checkpoint_id in _left_behind(examined, checkpointer, listing):
            found.add(
                "checkpoint",
                f"{checkpoint_id}: its manifest is missing, and other files are there: a checkpoint task died, or is"
                " at work. The next one deletes them",
            )
        undone = _undone(examined, listing)
        for manifest in undone:
            found.add(
                "undone",
                f"checkpoint {manifest.checkpoint_id} of epoch {manifest.epoch}: its commit is not in the state, whose"
                f" newest is {_newest_commit(examined.state)}; consensus was restored from a backup that is older than"
                " the blobs: see docs/deploy.md",
            )
        ancestors, broken = _chains(checkpointer, listing)
        for manifest in listing.manifests:
            mine = commits.get(manifest.checkpoint_id)
            expected = None if mine is None else manifest_of(mine[1], mine[0], state.origin.life)
            with found.checking("checkpoint", manifest.checkpoint_id):
                differences = list(_differences(checkpointer, manifest, expected))
                if manifest.checkpoint_id not in ancestors and manifest.checkpoint_id in broken:
                    differences.append(str(broken[manifest.checkpoint_id]))
                # Retention may have deleted it since it was listed; then there is nothing to report.
                if differences and checkpointer.find_readable(manifest.checkpoint_id) is not None:
                    for difference in differences:
                        found.add("checkpoint", f"{manifest.checkpoint_id}: {difference}")
        with found.checking("latest", checkpointer.layout.latest):
            if checkpointer.read_latest() not in earlier:  # until the next checkpoint task moves it
                _check_latest(checkpointer, listing, examined, found, {manifest.checkpoint_id for manifest in undone})


def _left_behind(examined: Examined, checkpointer: Checkpointer, listing: Listing) -> list[str]:
    """Checkpoints that a deletion has left behind, if a second look finds them neither complete nor gone."""
    if not listing.unfinished:
        return []
    commits = examined.client.state(examined.state.shard).commits
    quarantined = Quarantine(checkpointer.blob, checkpointer.layout).ids()
    again = checkpointer.listing().unfinished
    return [each for each in listing.left_behind(commits) if each in again and each not in quarantined]


def _differences(
    checkpointer: Checkpointer, manifest: CheckpointManifest, expected: CheckpointManifest | None
) -> Iterator[str]:
    checkpoint_id, layout = manifest.checkpoint_id, checkpointer.layout
    if expected is not None:
        for difference in expected.differences(manifest):
            yield f"its manifest differs from its commit's: {difference}"
    for name in manifest.operators:
        for artifact in manifest.operators[name].partitions:
            data = checkpointer.blob.get(layout.artifact(checkpoint_id, artifact.path))
            digest = "nothing" if data is None else f"SHA-256 {hashlib.sha256(data).hexdigest()}"
            if data is None or hashlib.sha256(data).hexdigest() != artifact.sha256:
                yield f"{layout.artifact(checkpoint_id, artifact.path)}: found {digest}; expected {artifact.sha256}"
    for name, offsets in manifest.source_offsets.items():
        key = layout.artifact(checkpoint_id, offsets_path(name))
        data = checkpointer.blob.get(key)
        if data != offsets.encode():
            yield f"{key}: found {'nothing' if data is None else data[:80]!r}; expected {offsets.encode()[:80]!r}"


def _chains(checkpointer: Checkpointer, listing: Listing) -> tuple[set[str], dict[str, Corruption]]:
    """Checkpoints that newer ones build on, and broken chains. Retention may keep one operator's chain only."""
    by_id = {manifest.checkpoint_id: manifest for manifest in listing.manifests}

    def load(checkpoint_id: str) -> CheckpointManifest:
        return by_id.get(checkpoint_id) or checkpointer.load_manifest(checkpoint_id)

    ancestors: set[str] = set()
    broken: dict[str, Corruption] = {}
    for manifest in listing.manifests:
        try:
            chain = [link.checkpoint_id for link, _ in walk(manifest, load)]
        except Corruption as error:
            broken[manifest.checkpoint_id] = error
        else:
            ancestors.update(chain[1:])
    return ancestors, broken


def _check_latest(
    checkpointer: Checkpointer, listing: Listing, examined: Examined, found: Violations, undone: set[str]
) -> None:
    """`listing` is older than what is read here, so a pointer that a task moves meanwhile is never too old."""
    readable = {manifest.checkpoint_id: manifest for manifest in listing.manifests}
    published = [commit.checkpoint_id for commit in examined.state.commits if commit.checkpoint_id in readable]
    newest = readable[published[-1]] if published else max(listing.manifests, key=_position, default=None)
    expected = "no checkpoint is published" if newest is None else f"the newest checkpoint is {newest.checkpoint_id}"
    key = checkpointer.layout.latest
    for _ in range(_MAX_LOOKS):
        latest = checkpointer.read_latest()
        named = None if latest is None else readable.get(latest) or checkpointer.find_readable(latest)
        if latest is None or named is not None:
            break
    if latest is None and newest is not None:
        found.add("latest", f"{key} is missing; {expected}")
    elif latest is not None and named is None:
        found.add("latest", f"{key} names {latest}, which has no readable manifest; {expected}")
    elif latest in undone:
        found.add("latest", f"{key} names {latest}, whose commit is not in the state; {expected}")
    elif named is not None and newest is not None and named.position < newest.position:
        found.add("latest", f"{key} names {latest} of epoch {named.epoch}; {expected}, of epoch {newest.epoch}")


def _undone(examined: Examined, listing: Listing) -> list[CheckpointManifest]:
    """Checkpoints whose commits the state has lost, also after a second look: a commit precedes its checkpoint."""

    def unknown(state: ShardState) -> list[CheckpointManifest]:
        known = {commit.checkpoint_id for commit in state.commits}
        first = state.commits[0].epoch if state.commits else 0
        return [each for each in listing.manifests if each.checkpoint_id not in known and each.epoch >= first]

    if not unknown(examined.state):
        return []
    return unknown(examined.client.state(examined.state.shard))


def _newest_commit(state: ShardState) -> str:
    newest = state.newest_commit
    return "none" if newest is None else f"{newest.checkpoint_id} of epoch {newest.epoch}"


def _position(manifest: CheckpointManifest) -> tuple[int, str]:
    return manifest.position
