"""Pins: a user's mark that keeps a checkpoint restorable, both its files and the shard's history since.

    hold pin/<checkpoint id>      in the shard's state: keeps `since` at what a restore reads
    <checkpoint id>/pinned        in blob storage: keeps retention from deleting the checkpoint

Both calls do the hold first and then the mark, and `pin` looks at the hold again: an `unpin` of another process may
have released it before the mark was there. So after any calls that have returned, what is marked is held. If a call
dies between the two, the same call again completes it; a hold that is left alone shows in `persist holds`.
"""

from __future__ import annotations

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.contents.batch import last_time
from persist_core.errors import NotReadable, OutsideFrontiers, PersistError, RunFailed
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.shard.history import PIN

MAX_TRIES = 10  # each but the first because another process has unpinned the checkpoint in between


def pin(client: PersistClient, shard: str, checkpoint_id: str) -> None:
    """Keep the checkpoint until `unpin`. Does nothing if it is pinned already.

    Raises `CheckpointNotFound`, `CorruptArtifact` if it is damaged, and `OutsideFrontiers` if the shard's history no
    longer reaches back to it. Then it is not pinned.
    """
    checkpointer = Checkpointer(client.blob, shard, client.state(shard).origin.life)
    checkpointer.check_known(checkpoint_id)
    needed = Frontier(last_time(checkpointer.load_manifest(checkpoint_id).upper))
    for _ in range(MAX_TRIES):
        try:
            hold = client.open_since(shard, f"{PIN}{checkpoint_id}", since=needed)
        except NotReadable as error:
            checkpointer.unpin(checkpoint_id)  # a mark that an earlier try left
            raise OutsideFrontiers(
                f"checkpoint {checkpoint_id} of shard {shard} can't be restored any more, so it can't be pinned: that"
                f" takes the history since {needed}, and the shard can be read from since {client.state(shard).since}"
                " on. To be able to go back further, keep more with `history:`, or pin checkpoints earlier"
            ) from error
        try:
            checkpointer.pin(checkpoint_id)
        except PersistError:
            if checkpoint_id not in checkpointer.pinned():
                hold.release()
            raise
        if hold.holder in client.state(shard).holds:
            return
    raise RunFailed(f"checkpoint {checkpoint_id} of shard {shard}: other processes keep unpinning it; retry later")


def unpin(client: PersistClient, shard: str, checkpoint_id: str) -> bool:
    """Leave the checkpoint to retention and the history again. False if it was not pinned."""
    holder = f"{PIN}{checkpoint_id}"
    was_held = holder in client.state(shard).holds and client.open_since(shard, holder).release()
    return Checkpointer(client.blob, shard).unpin(checkpoint_id) or was_held
