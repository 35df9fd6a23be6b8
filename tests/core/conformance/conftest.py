"""Asserts in the shipped suites explain themselves as those in test files do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "persist_core.testing.blob_conformance",
    "persist_core.testing.consensus_conformance",
    "persist_core.testing.race_conformance",
)
