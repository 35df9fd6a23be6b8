"""Every broken file in `corpus/configs` is refused with exactly the text beside it (`<case>.txt`).

`PERSIST_ACCEPT=1 pytest` of this file writes the texts again: read the diff before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from persist_core.config.collection import load_collection, load_collections
from persist_core.errors import ConfigError

CORPUS = Path(__file__).parents[1] / "corpus" / "configs"
CASES = sorted(CORPUS.glob("*.yaml"))


def told(path: Path, error: ConfigError) -> str:
    """The error, with the file's name in place of its path."""
    return str(error).replace(str(path), path.name) + "\n"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_broken_file_is_refused_with_its_text(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERSIST_PATH_UNSET", raising=False)
    with pytest.raises(ConfigError) as caught:
        load_collection(path)
    text, wanted = told(path, caught.value), path.with_suffix(".txt")
    if os.environ.get("PERSIST_ACCEPT"):
        wanted.write_text(text, encoding="utf-8")
    assert text == wanted.read_text(encoding="utf-8")


def test_every_message_names_file_finding_and_expectation() -> None:
    for path in CASES:
        for line in path.with_suffix(".txt").read_text(encoding="utf-8").splitlines():
            assert line.startswith(f"{path.name}: ")
            assert ("found" in line and "expected" in line and ";" in line) or "more errors" in line


def test_the_corpus_is_not_thinned_out() -> None:
    assert len(CASES) >= 75


def test_each_broken_file_gives_one_error() -> None:
    collections, errors = load_collections(CORPUS)
    assert collections == []
    assert [str(error).partition(": ")[0] for error in errors] == [str(path) for path in CASES]
