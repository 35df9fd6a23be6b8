"""The choice of slow tests that a session runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sampling import leave_out


class Item:
    """As much of a collected test as the choice looks at."""

    def __init__(self, nodeid: str, family: str | None = None) -> None:
        self.nodeid = nodeid
        self.path = Path(nodeid.partition("::")[0])
        self.marks = [pytest.mark.family(family).mark] if family else []
        self.is_left_out = False

    def get_closest_marker(self, name: str) -> Any:
        return next(self.iter_markers(name), None)

    def iter_markers(self, name: str) -> Any:
        return (mark for mark in self.marks if mark.name == name)

    def add_marker(self, mark: Any) -> None:
        self.is_left_out = mark.name == "skip"


def drawn(monkeypatch: pytest.MonkeyPatch, draw: str, *items: Item) -> list[str]:
    """The ids of the items that a session draws."""
    monkeypatch.setattr("tests.sampling.is_long", lambda: False)
    monkeypatch.setenv("PERSIST_DRAW", draw)
    given: Any = list(items)  # they have as much of a test as is looked at
    leave_out(given)
    return [item.nodeid for item in items if not item.is_left_out]


def spark_tests() -> list[Item]:
    return [Item(f"tests/spark/test_a.py::test_{name}") for name in "vwxyz"]


def test_a_sixth_of_each_file_and_all_of_a_file_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Item("tests/core/test_b.py::test_b")
    found = drawn(monkeypatch, "commit", *spark_tests(), fast)
    assert (len(found), found[-1]) == (2, fast.nodeid)
    assert found == drawn(monkeypatch, "commit", *spark_tests(), fast), "each process of a session chooses the same"
    assert len(drawn(monkeypatch, "commit", *spark_tests())) == 5


def test_a_test_is_drawn_with_all_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item(f"tests/core/test_b.py::test_{name}[{case}]", "Sparks") for name in "ab" for case in range(3)]
    found = drawn(monkeypatch, "commit", *items)
    assert len(found) == 3
    assert len({nodeid.partition("[")[0] for nodeid in found}) == 1


def test_what_shows_who_is_trusted_always_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    always = Item("tests/airflow/page/test_browser.py::test_hostile_content_stays_text")
    others = [Item(f"tests/airflow/page/test_browser.py::test_{name}") for name in "vwxyz"]
    for draw in range(9):
        assert always.nodeid in drawn(monkeypatch, f"{draw}", always, *others, *spark_tests())


def test_each_test_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Item("tests/core/test_b.py::test_b")
    found = {nodeid for draw in range(40) for nodeid in drawn(monkeypatch, f"{draw}", *spark_tests(), fast)}
    assert len(found) == 6
