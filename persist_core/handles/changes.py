"""The changes at the end of a shard's history: commits that have moved its upper and took in no input."""

from __future__ import annotations

from itertools import takewhile

from persist_core.handles.client import PersistClient
from persist_core.shard.state import ShardState


def in_time_from(client: PersistClient, state: ShardState) -> int | None:
    """The end of the newest commit that took in input, if changes have moved the upper since; else `None`.

    Input dated between the two could not be taken in before, so it is not late. A hidden shard comes up to an upper of
    its shard, and leaves to the next run what that has left: so the shard's changes count. Raises `CorruptArtifact`.
    """
    shard, newest = state.shard.partition("~")[0], state.newest_commit
    if newest is not None and not newest.is_change and shard != state.shard:
        commits = (client.machine.fetch(shard) or state).commits
        newest = next((commit for commit in commits if commit.upper == newest.upper), newest)
    return client.manifest(newest).in_time_from if newest is not None and newest.is_change else None


def listed_to(client: PersistClient, state: ShardState) -> int | None:
    """Up to which time the input was listed for the shard's progress; `None`: up to its upper.

    0 if a change has put the progress back: input of any date may be unread again. Also if there may have been one.
    """
    changes = list(takewhile(lambda commit: commit.is_change, reversed(state.commits)))
    if changes and (len(changes) == len(state.commits) or any(each.restored_from for each in changes)):
        return 0
    return in_time_from(client, state)
