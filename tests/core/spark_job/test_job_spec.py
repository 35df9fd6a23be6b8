"""A job's spec arrives as it was, whatever its size, or is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.operator_state import StateArtifact
from persist_core.errors import CorruptArtifact, InvalidInput, UnknownVersion
from persist_core.location.mem import MemBlob
from persist_core.sealed import seal
from persist_core.spark_job.spec import SPEC_VERSION, JobSpec, load_spec, stored

BODY: dict[str, Any] = {
    "name": "t",
    "source": {"path": "*", "format": "json"},
    "key": ["z", "a"],
    "columns": {"z": "bigint", "m": "string", "a": "string", "b": "decimal(5,2)"},
    "delete": "none",
}
CONFIG = CollectionConfig.model_validate(BODY)
DESCRIPTION = BatchDescription("t", 0, 5, token="x", checkpoint_id="c", epoch=1, parent_id=None, writer="w")
SPEC = JobSpec(DESCRIPTION, CONFIG, "attempt")


def test_a_spec_has_the_columns_in_the_files_order() -> None:
    blob = MemBlob()
    with stored(blob, SPEC) as argv:
        again = load_spec(blob, argv)
    assert again == SPEC
    assert [column.name for column in again.collection.collection_schema().columns] == ["z", "a", "m", "b"]
    assert list(blob.list_keys_and_metadata("")) == [], "deleted when its job has ended"


def test_a_chain_of_5000_artifacts_goes_through_one_command_line() -> None:
    chain = tuple(
        StateArtifact(0, f"t/checkpoints/{number:032x}/operators/stash/partition-0", 10_000, "a" * 64)
        for number in range(5_000)
    )
    blob = MemBlob()
    spec = replace(SPEC, description=replace(DESCRIPTION, operators={"stash": chain}))
    with stored(blob, spec) as argv:
        command = [sys.executable, "-c", "import sys; print(*sys.argv[1:])", *argv]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert load_spec(blob, done.stdout.split()) == spec


@pytest.mark.parametrize("argv", [[], ["--spec-key", "k"], ["--spec-key", "k", "--other", "0"], ["--spec", "{}"] * 2])
def test_other_arguments_are_refused(argv: list[str]) -> None:
    with pytest.raises(InvalidInput, match="expected --spec-key KEY --spec-sha256 HEX"):
        load_spec(MemBlob(), argv)


def test_every_flipped_bit_is_found() -> None:
    blob = MemBlob()
    with stored(blob, SPEC) as argv:
        data = SPEC.encode()
        for bit in range(len(data) * 8):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            blob.set(SPEC.key, bytes(damaged))
            with pytest.raises(CorruptArtifact, match=r"is damaged|found sha256"):
                load_spec(blob, argv)
    with pytest.raises(CorruptArtifact, match="not found"):
        load_spec(blob, argv)


def test_a_spec_of_another_release_names_both_versions() -> None:
    later = seal("job_spec", SPEC_VERSION + 1, {})
    with pytest.raises(UnknownVersion, match="has version 2; this release reads version 1"):
        JobSpec.decode(later)
