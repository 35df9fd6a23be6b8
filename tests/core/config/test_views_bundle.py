"""The bundled views and their inputs are complete and valid."""

from __future__ import annotations

from pathlib import Path

from persist_core.config.collection import load_collections
from persist_core.config.view import load_views

DAGS = Path(__file__).resolve().parents[3] / "dags"


def test_the_bundled_views_load_and_read_bundled_collections() -> None:
    views, errors = load_views(DAGS / "views")
    collections, wrong = load_collections(DAGS / "collections")
    assert not errors
    assert not wrong
    assert [view.name for view in views] == ["regions"]
    names = {config.name for config in (*views, *collections)}
    assert {name for view in views for name in view.inputs} <= names
