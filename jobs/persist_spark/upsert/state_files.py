"""Files of operator state for a batch to open: whole ones, or their copies.

    file ─ its digest is the recorded one ────────────> itself
         └ damaged or missing ─ checkpoints ──────────> an intact copy, which the next full state rewrites

A damaged file of rows is found by the checksums of its pages. Operator state has its digests verified as well: a record
that is lost here is missed by no count of a later batch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from persist_core.checkpoint.recovery import recover_newest
from persist_core.contents.operator_state import StateArtifact
from persist_core.errors import CorruptArtifact
from persist_core.handles.client import PersistClient
from persist_core.location.blob import BlobMetadata
from persist_spark.footers import digests_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StateFiles:
    """Finds what stands for each file of a shard's operator state, and verifies each file once."""

    client: PersistClient
    shard: str
    _verified: dict[str, StateArtifact] = field(default_factory=dict)  # by digest

    def whole(self, files: Sequence[StateArtifact]) -> list[StateArtifact]:
        """These files, with copies instead of damaged ones. Costs reading them.

        Raises `CorruptArtifact` if a file and its copy are damaged or missing.
        """
        unknown = [each for each in files if each.sha256 not in self._verified]
        if self._are_whole(unknown):
            self._verified.update({each.sha256: each for each in unknown})
            return self.known(files)
        recovered = recover_newest(self.client, self.client.state(self.shard), verified_bytes=None)
        for notice in recovered.notices:
            log.warning("%s", notice)
        self._verified.update({each.sha256: each for chain in recovered.operators.values() for each in chain})
        if lost := [each.key for each in unknown if each.sha256 not in self._verified]:
            raise CorruptArtifact(f"{lost[0]} is damaged or gone, and the state of shard {self.shard} does not name it")
        return self.known(files)

    def known(self, files: Sequence[StateArtifact]) -> list[StateArtifact]:
        """These files, with copies in place of damaged ones. Reads nothing."""
        return [self._verified.get(each.sha256, each) for each in files]

    def _are_whole(self, files: Sequence[StateArtifact]) -> bool:
        try:
            found = digests_of(self.client.blob, [BlobMetadata(each.key, each.size_bytes) for each in files])
        except CorruptArtifact:
            return False
        return found == [each.sha256 for each in files]
