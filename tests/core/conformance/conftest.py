"""Failed asserts in the shipped suites show their values, as in test files."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "persist_core.testing.blob_conformance",
    "persist_core.testing.consensus_conformance",
    "persist_core.testing.race_conformance",
)
