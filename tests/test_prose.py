"""The prose of documents and code is plain technical English, as far as a list of phrases can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prose import findings, paragraphs, prose_of, rules, written_files


def test_prose_is_plain_english() -> None:
    found = findings(written_files())
    if found:
        pytest.fail("phrases to rewrite (tests/prose_rules.toml):\n  " + "\n  ".join(map(str, found)), pytrace=False)


def _phrases(text: str, name: str) -> list[str]:
    lines = prose_of(Path(name), text)
    return [match[0] for _, text in paragraphs(lines) for rule in rules() for match in rule.pattern.finditer(text)]


def test_documents_are_read_without_their_code() -> None:
    text = "Nobody reads\n`nobody` or\n```\nnobody\n```\n[so](nobody.md) it was\ntold so.\n"
    assert _phrases(text, "a.md") == ["Nobody", "was told"]


def test_code_is_read_for_docstrings_comments_and_texts() -> None:
    text = (
        'def nobody():\n    """Nobody, at\n    once."""\n    nobody = "nobody"  # mend it\n'
        '    raise E(f"{a} is no file; mend {b}")\n'
    )
    assert sorted(_phrases(text, "persist_core/a.py")) == ["Nobody", "at once", "is no file", "mend", "mend"]
    assert sorted(_phrases(text, "tests/a.py")) == ["Nobody", "at once", "mend"]


def test_spelling_is_american(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.prose.ROOT", tmp_path)
    (tmp_path / "a.md").write_text("Fine.\n\nIts colour and `colour`.\n")
    assert [str(finding) for finding in findings([Path("a.md")])] == ["a.md:3 'colour': write color"]
