"""Random sequences of calls on a real S3 server, compared with a plain dict after each: both stores."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from persist_core.location import Blob, Consensus, open_blob, open_consensus
from tests.core.location.test_models import MemBlobModel, MemConsensusModel
from tests.servers.s3 import S3Server

STEPS = 20
SHARE = 16  # each step is a dozen requests, so there is one sequence per this many of a store in memory


@pytest.mark.parametrize("model", [MemConsensusModel, MemBlobModel])
def test_against_a_dict(versitygw: S3Server, model: type[RuleBasedStateMachine]) -> None:
    bucket, numbers = versitygw.make_bucket(), itertools.count()

    def new_uri() -> str:
        return versitygw.uri(f"{bucket}/{next(numbers)}")

    class S3ConsensusModel(MemConsensusModel):
        shared = True

        def make(self, folder: Path) -> Consensus:
            location = folder / "location"  # the same one where it is opened again
            if not location.exists():
                location.write_text(new_uri())
            return open_consensus(location.read_text())

    class S3BlobModel(MemBlobModel):
        shared = True
        key_may_be_prefix = False  # the gateway keeps objects as files

        def make(self, folder: Path) -> Blob:
            assert folder.is_dir()
            return open_blob(new_uri())

    tried = S3ConsensusModel if model is MemConsensusModel else S3BlobModel
    examples = max(1, settings().max_examples // SHARE)
    run_state_machine_as_test(tried, settings=settings(max_examples=examples, stateful_step_count=STEPS))
