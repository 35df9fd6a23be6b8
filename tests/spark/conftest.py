"""The shared fixtures of the Spark tests; their session is the fixture `spark` of tests/conftest.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of real change events; the test is skipped, with a message, if it is absent."""
    beside_repo = Path(__file__).resolve().parents[2].parent / "shared" / "samples"
    folder = Path(os.environ.get("PERSIST_SAMPLES", str(beside_repo))) / "cdc"
    if not folder.is_dir():
        pytest.skip(f"no real samples at {folder}: set PERSIST_SAMPLES to the folder that holds cdc/")
    return folder
