"""Which copies of a shard have the same past: `persist copy` replaces a copy only by a later state of the same shard.

    place 1   A: epochs 1 2 3 4 5          A = the first commit of all, in place 1
    place 2   (a copy)   A: 1 2 3, B: 4    B = the first commit that place 2 appended to its copy

A *branch* begins with the first commit that a place appends, and is named by the key of that commit's manifest, which
contains the id of one attempt. Two places that append to copies of one state so have two branches. Within a branch
epochs increase, so branches and epoch together are a position in the past, however many commits a state has forgotten.

The first branch names the shard's *life*, from its creation until it is dropped. Another shard that is created under
the same name, or forked into it, has another life. A swap (`shard.receive`) begins a branch and a life too: the shard
goes on with another history, a new *generation*.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from persist_core.errors import ShardMoved


@dataclass(frozen=True)
class Swap:
    """The begin of a generation. All times before `upper` were final in the generation before it, which is kept as the
    shard `kept` until `kept_until_ms` (`None`: until it is deleted by hand)."""

    upper: int
    swapped_ms: int
    kept: str
    kept_until_ms: int | None


@dataclass(frozen=True)
class Branch:
    """The commits of one place, from `epoch` on. `first_commit` is the key of the first one's manifest. `swap`: if the
    branch is a new generation."""

    first_commit: str
    epoch: int
    swap: Swap | None = None


@dataclass(frozen=True)
class Origin:
    """Where the commits of a state were made, the oldest branch first.

    `received`: the version of this place that was copied from another one, if nothing has been appended here since.
    `moved_to`: the shard accepts no commits any more, they go there; or, if that is this place, no commits yet.
    """

    branches: tuple[Branch, ...] = ()
    received: int | None = None
    moved_to: str | None = None

    @property
    def life(self) -> str | None:
        """Names the shard from its creation, or its newest swap, to the next swap or its drop, in all copies; `None`
        before its first commit.

        What was derived from the state of one life says nothing about another one's.
        """
        begun = [branch.first_commit for branch in self.branches if branch.swap or branch == self.branches[0]]
        return begun[-1] if begun else None

    @property
    def earlier_lives(self) -> frozenset[str]:
        """The lives of earlier generations; what they left behind is deleted by the next checkpoint task."""
        return frozenset(branch.first_commit for branch in self.branches) - {self.life or ""}

    @property
    def swaps(self) -> tuple[Swap, ...]:
        """The swaps of the shard, oldest first."""
        return tuple(branch.swap for branch in self.branches if branch.swap)

    @property
    def generation(self) -> int:
        """How many times another generation was swapped in."""
        return len(self.swaps)

    def swapped(self, shard: str, first_commit: str, epoch: int, swap: Swap) -> Origin:
        """The origin after a swap here. Raises `ShardMoved`."""
        self.check_not_moved(shard)
        return Origin((*self.branches, Branch(first_commit, epoch, swap)))

    def appended(self, shard: str, first_commit: str, epoch: int) -> Origin:
        """The origin after a commit here. Raises `ShardMoved`."""
        self.check_not_moved(shard)
        if self.branches and self.received is None:
            return self
        return Origin((*self.branches, Branch(first_commit, epoch)))

    def check_not_moved(self, shard: str) -> None:
        if self.moved_to is not None:
            raise ShardMoved(
                f"shard {shard} was moved to {self.moved_to}, by `persist copy --move`. It can be read here, and"
                " accepts no commits: use that location (PERSIST_BLOB_URI and PERSIST_CONSENSUS_URI, or the connection)"
                ". If it is this one, the move has not ended: wait for that command, or run it again at the old"
                " location, then clear the dag run"
            )

    def moved(self, shard: str, place: str) -> Origin:
        """The origin once the shard accepts no commits here. Raises `ShardMoved` if it was moved elsewhere before."""
        if self.moved_to != place:
            self.check_not_moved(shard)
        return replace(self, moved_to=place)

    def is_before(self, epoch: int, later: Origin, later_epoch: int) -> bool:
        """True if a state with this origin and this newest epoch is the past of the other one, or the same."""
        shared = len(self.branches)
        if self.branches != later.branches[:shared]:
            return False
        if shared < len(later.branches):
            return epoch < later.branches[shared].epoch
        return epoch <= later_epoch
