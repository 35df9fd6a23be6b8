"""What a job is told comes out as it went in."""

from __future__ import annotations

import pytest

from persist_core.batch import BatchDescription
from persist_core.config import CollectionConfig
from persist_core.errors import InvalidInput
from persist_core.job_spec import JobSpec

CONFIG = CollectionConfig.model_validate(
    {
        "name": "t",
        "source": {"path": "*", "format": "json"},
        "key": ["z", "a"],
        "columns": {"z": "bigint", "m": "string", "a": "string", "b": "decimal(5,2)"},
        "delete": "none",
    }
)
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
