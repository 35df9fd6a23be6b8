"""The prose of a file, and its defects. `python -m tests.prose [PATH...]` lists every finding.

    file --prose_of--> its prose, line by line, without code --paragraphs--> prose_rules.toml --> Finding
                                                             --codespell---> misspelled or British words

Documents are read without their code blocks. Of Python files the docstrings and comments are read, and of product code
also texts such as error messages.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DICTIONARIES = "clear,en-GB_to_en-US"  # of codespell: certain mistakes only, and American spelling
KNOWN_WORDS = "iff,CAS"  # "if and only if", "compare and swap"
MADE_BY_A_PROGRAM = tuple(
    f"docs/reference/{name}.md" for name in ("cli", "errors", "inspection")
)  # checked in the code
_RULES_FILE = ROOT / "tests" / "prose_rules.toml"
_CODE_IN_LINE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)|\]\([^)\s]*\)|<[^>\s]+>")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_LIST_ITEM = re.compile(r"\s*(?:[*-]|\d+\.|\|)\s")
_WORD_IN_LOWER_CASE = re.compile(r"(?:^|\s)[a-z][a-z'-]+(?=[\s,.;:)]|$)")
_HIDDEN = "\N{MIDDLE DOT}"  # stands for code, so that words on both sides of it are not read as neighbors


@dataclass(frozen=True)
class Finding:
    """A phrase in `path` (relative to the root), in the paragraph that begins at `line`."""

    path: Path
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} '{self.phrase}': write {self.instead}"


@dataclass(frozen=True)
class Rule:
    """A phrase to avoid, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str


@cache
def rules() -> tuple[Rule, ...]:
    """The rules of prose_rules.toml."""
    data = tomllib.loads(_RULES_FILE.read_text())
    return tuple(Rule(re.compile(rule["pattern"], re.IGNORECASE), rule["instead"]) for rule in data["rule"])


def written_files() -> list[Path]:
    """Every document and Python file that is or would be committed, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md", "*.py"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return sorted(
        Path(name)
        for name in listed.stdout.split("\0")
        if name and name not in MADE_BY_A_PROGRAM and (ROOT / name).is_file()
    )


def findings(paths: Iterable[Path]) -> list[Finding]:
    """Every breach of a rule and every misspelling in the files, in their order."""
    prose = {path: prose_of(path, (ROOT / path).read_text()) for path in paths}
    found = [
        Finding(path, line, match[0], rule.instead)
        for path, lines in prose.items()
        for line, paragraph in paragraphs(lines)
        for rule in rules()
        for match in rule.pattern.finditer(paragraph)
    ]
    return sorted([*found, *_misspelled(prose)], key=lambda finding: (finding.path, finding.line))


def prose_of(path: Path, text: str) -> list[str]:
    """The lines of a file with nothing but prose in them."""
    if path.suffix == ".md":
        return prose_of_markdown(text)
    return prose_of_python(text, with_strings=path.parts[0] != "tests")


def prose_of_markdown(text: str) -> list[str]:
    """The lines of a document; code blocks, code in a line, links' targets and HTML tags are taken out."""
    lines, in_code = [], False
    for line in text.splitlines():
        is_fence = _FENCE.match(line) is not None
        lines.append("" if is_fence or in_code else _CODE_IN_LINE.sub(_HIDDEN, line))
        in_code ^= is_fence
    return lines


def prose_of_python(text: str, *, with_strings: bool) -> list[str]:
    """The docstrings and comments of a module; with `with_strings` also strings of two words or more."""
    lines, source = [""] * (text.count("\n") + 2), text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            _add(lines, token.start[0], token.string.lstrip("#:! "))
    tree = ast.parse(text)
    docstrings = {id(node) for node in _docstrings(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) in docstrings:
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                line = source[number - 1][node.col_offset if number == node.lineno else 0 :]
                _add(lines, number, line.replace('"""', ""))
        elif with_strings and len(_WORD_IN_LOWER_CASE.findall(node.value)) > 1:
            _add(lines, node.lineno, " ".join(node.value.split()))
    return lines


def paragraphs(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The first line's number and the text of each paragraph. List items and table rows are paragraphs."""
    start, held = 0, ""
    for number, line in enumerate([*lines, ""], 1):
        if held and (not line.strip() or _LIST_ITEM.match(line)):
            yield start, held
            held = ""
        if line.strip():
            start = start if held else number
            held = f"{held} {line.strip()}".strip()


def _add(lines: list[str], number: int, text: str) -> None:
    lines[number - 1] = f"{lines[number - 1]} {_CODE_IN_LINE.sub(_HIDDEN, text)}".strip()


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def _misspelled(prose: dict[Path, list[str]]) -> Iterator[Finding]:
    """The findings of codespell in the prose: it reads it from files with the same names and lines."""
    with tempfile.TemporaryDirectory() as folder:
        for path, lines in prose.items():
            copy = Path(folder, path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text("\n".join(lines))
        done = subprocess.run(
            [sys.executable, "-m", "codespell_lib", "--builtin", DICTIONARIES, "-L", KNOWN_WORDS, *map(str, prose)],
            cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    if done.returncode not in (0, 65):  # 65: it found something
        raise RuntimeError(f"codespell ended with {done.returncode}: {done.stderr}")
    for name, line, wrong, correct in re.findall(r"^(.+?):(\d+): (\S+) ==> (.+)$", done.stdout, re.MULTILINE):
        yield Finding(Path(name), int(line), wrong, correct)


def main(names: list[str]) -> int:
    """Print the findings in the named files, or in all."""
    asked = [path for path in written_files() if not names or str(path).startswith(tuple(names))]
    found = findings(asked)
    lines = [*map(str, found), f"{len(found)} findings in {len({finding.path for finding in found})} files"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
