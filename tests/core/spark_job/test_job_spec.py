"""What a job is told comes out as it went in."""

from __future__ import annotations

import base64
import random
import subprocess
import sys
import zlib
from typing import Any

import pytest

from persist_core.config.collection import CollectionConfig
from persist_core.errors import InvalidInput
from persist_core.shard.batch import BatchDescription
from persist_core.spark_job.spec import JobSpec

BODY: dict[str, Any] = {
    "name": "t",
    "source": {"path": "*", "format": "json"},
    "key": ["z", "a"],
    "columns": {"z": "bigint", "m": "string", "a": "string", "b": "decimal(5,2)"},
    "delete": "none",
}
CONFIG = CollectionConfig.model_validate(BODY)
DESCRIPTION = BatchDescription("t", 0, 5, token="x", checkpoint_id="c", epoch=1, parent_id=None, writer="w")


def test_a_spec_survives_argv_with_its_columns_in_the_files_order() -> None:
    spec = JobSpec(DESCRIPTION, CONFIG, "attempt")
    again = JobSpec.from_argv(spec.to_argv())
    assert again == spec
    assert [column.name for column in again.collection.collection_schema().columns] == ["z", "a", "m", "b"]


@pytest.mark.parametrize("argv", [[], ["--spec"], ["--other", "{}"], ["--spec", '{"version":2}']])
def test_other_arguments_are_refused(argv: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"wanted --spec|this release reads 1"):
        JobSpec.from_argv(argv)


def test_a_collection_of_thousands_of_columns_fits_one_argument() -> None:
    columns = {f"measurement_{index}_of_sensor": "double" for index in range(1_900)}
    config = CollectionConfig.model_validate({**BODY, "columns": {**BODY["columns"], **columns}})
    spec = JobSpec(DESCRIPTION, config, "attempt")
    argv = spec.to_argv()
    command = [sys.executable, "-c", "import sys; print(sys.argv[1])", *argv]
    said = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert said.stdout == b"--spec-zlib\n"
    assert JobSpec.from_argv(argv) == spec


@pytest.mark.parametrize("text", ["%%%", "bm8gemxpYg==", ""])
def test_a_damaged_spec_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="spec-zlib"):
        JobSpec.from_argv(["--spec-zlib", text])


def test_a_spec_that_is_cut_off_is_refused() -> None:
    packed = base64.b64encode(zlib.compress(b'{"version":1}' * 100)[:-8]).decode()
    with pytest.raises(InvalidInput, match="cut off"):
        JobSpec.from_argv(["--spec-zlib", packed])


def test_a_spec_that_no_argument_can_hold_is_refused_by_name() -> None:
    dice = random.Random(1)
    columns = {f"c{dice.getrandbits(480):0120x}": "double" for _ in range(1_900)}
    config = CollectionConfig.model_validate({**BODY, "columns": {**BODY["columns"], **columns}})
    with pytest.raises(InvalidInput, match="collection t: the job's spec takes"):
        JobSpec(DESCRIPTION, config, "attempt").to_argv()
