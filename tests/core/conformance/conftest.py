"""Failed asserts in the suites show their values, as in test files."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "tests.suites.blob_conformance",
    "tests.suites.consensus_conformance",
    "tests.suites.race_conformance",
)
