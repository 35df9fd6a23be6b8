"""Rules for the code that no other tool of `make check` checks."""

from __future__ import annotations

import ast
import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = ("persist_core", "jobs", "plugins", "dags", "tests")
TOP_FOLDERS = {*CODE, "docker", "docs", "requirements", ".ci", ".github"}

MAX_FILE_LINES = 400  # a longer file contains two ideas
MAX_FUNCTION_LINES = 70
MAX_LINE_CHARS = 120
MAX_TEST_NAME_CHARS = 60
MAX_FILE_BYTES = 2 * 1024 * 1024
FORBIDDEN_WORDS = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
# Names that other projects' interfaces define.
BORROWED_NAMES = {"airflow.providers.common"}

# Registry hosts and folders of one machine must not be committed. They are in base64, so that this file itself has no
# finding.
_REGISTRIES = (
    "cHlwaS5vcmc=", "cHl0aG9uaG9zdGVkLm9yZw==", "bnBtanMuY29t", "bWF2ZW4ub3Jn", "bWF2ZW4uYXBhY2hlLm9yZw==",
    "Y3JhdGVzLmlv", "cHJveHkuZ29sYW5n", "ZGViLmRlYmlhbg==",
)  # fmt: skip
_MACHINE_PATHS = ("L3Jvb3Qv", "L3dvcmsv", "L2Zhcm0v")


def _spelled(words: tuple[str, ...]) -> str:
    return "|".join(re.escape(base64.b64decode(word).decode()) for word in words)


@cache
def files() -> tuple[Path, ...]:
    """Every file that is or would be committed, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    names = [Path(name.decode()) for name in listed.stdout.split(b"\0") if name]
    return tuple(sorted(name for name in names if (ROOT / name).is_file()))


@cache
def python_files() -> tuple[tuple[Path, str], ...]:
    """Path and text of every Python file."""
    return tuple((path, (ROOT / path).read_text()) for path in files() if path.suffix == ".py")


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a module."""
    return tuple(ast.walk(ast.parse(text)))


def text_files() -> Iterator[tuple[Path, str]]:
    """Path and text of every UTF-8 file."""
    for path in files():
        try:
            yield path, (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue


def report(found: list[str], rule: str) -> None:
    """Fail with the rule and every place that breaks it."""
    if found:
        pytest.fail(f"{rule}:\n  " + "\n  ".join(found), pytrace=False)


def functions(text: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a module, including nested ones."""
    for node in nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_files_are_one_idea_long() -> None:
    found = [f"{path}: {count} lines" for path, text in python_files() if (count := text.count("\n")) > MAX_FILE_LINES]
    report(found, f"expected at most {MAX_FILE_LINES} lines per file")


def test_functions_fit_on_a_screen() -> None:
    found = []
    for path, text in python_files():
        for function in functions(text):
            lines = (function.end_lineno or 0) - function.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                found.append(f"{path}:{function.lineno} {function.name}: {lines} lines")
    report(found, f"expected at most {MAX_FUNCTION_LINES} lines per function")


def test_names_say_what_a_thing_is() -> None:
    found = []
    for path, text in python_files():
        names = [(0, part) for part in path.with_suffix("").parts]
        names += [
            (node.lineno, node.name)
            for node in nodes(text)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        for line, name in names:
            words = {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}
            found += [f"{path}:{line} {name}" for _ in words & FORBIDDEN_WORDS]
    report(found, f"names that say nothing ({', '.join(sorted(FORBIDDEN_WORDS))})")


def test_names_of_tests_are_short() -> None:
    found = [
        f"{path}:{function.lineno} {function.name}: {len(function.name)} characters"
        for path, text in python_files()
        for function in functions(text)
        if function.name.startswith("test_") and len(function.name) > MAX_TEST_NAME_CHARS
    ]
    report(found, f"expected at most {MAX_TEST_NAME_CHARS} characters: say what is tested")


def test_docstrings_begin_with_a_verb_or_the_thing() -> None:
    avoided = ("What ", "Whether ", "The same ", "Those ", "That ", "Of ")
    found = [
        f"{path}:{node.body[0].lineno}: {said.split()[0]}"
        for path, text in python_files()
        for node in nodes(text)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (said := ast.get_docstring(node) or "").startswith(avoided)
    ]
    report(found, "docstrings begin with a verb or the thing: `Returns ...`, `True if ...`, `The keys that ...`")


def test_nothing_is_left_unfinished() -> None:
    unfinished = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImplemented" + r"Error)\b|pragma: no " + "cover")
    found = [
        f"{path}:{number} {line.strip()}"
        for path, text in python_files()
        for number, line in enumerate(text.splitlines(), 1)
        if unfinished.search(line)
    ]
    report(found, "stubs and notes to self")


def test_silenced_checks_say_why() -> None:
    """`noqa`, `type: ignore` and `pyproject` exceptions carry a code and, after it, a reason in words."""
    silenced = re.compile(r"#\s*(?:noqa|type:\s*ignore)(?P<rest>.*)$")
    explained = re.compile(r"^(?::\s*|\[)[\w-]+(?:,\s*[\w-]+)*\]?\s*(?:#|-|--)\s*\S+ \S+")
    found = [
        f"{path}:{number} {line.strip()}"
        for path, text in python_files()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := silenced.search(line)) and not explained.match(match["rest"]) and "re.compile" not in line
    ]
    report(found, "a silenced check without code and reason (expected: `# noqa: CODE - the reason`)")


def test_keys_of_blob_storage_are_made_in_one_place() -> None:
    """A string with a folder of a shard in it, docstrings apart, is a key that `keys.py` does not know of."""
    folder = re.compile(r"(?:^|/)(?:batches|checkpoints|conflict_alerts|conflicts|forks|inputs|jobs|sources|dry-runs)/")
    found = []
    for path, text in python_files():
        if path.parts[0] in ("persist_core", "jobs", "plugins") and path != Path("persist_core/keys.py"):
            prose = {node.value for node in nodes(text) if isinstance(node, ast.Expr)}
            found += [
                f"{path}:{node.lineno} {node.value!r}"
                for node in nodes(text)
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose
                if folder.search(node.value)
            ]
    report(found, "a key of blob storage outside persist_core/keys.py")


# Integers that are times. `since` and `upper` of a state are frontiers, whose text is what `show_time` says.
_TIMES = re.compile(
    r"lower|floor|as_of|until|time|(?:expected|found|description)_upper"
    r"|(?:committed|detected|made|expires|released|mtime|now|start|end|heartbeat|timestamp)_ms"
)
_STATES = re.compile(r"(?:state|before|after|behind|\S+\.state\(\w+\))\.(?:since|upper)")
_SQL = re.compile(r"\b(?:AS|CASE|WHEN|THEN|AND|NOT)\b|\w+\('")


def bare_times(text: str) -> Iterator[tuple[int, str]]:
    """Line and expression of each time that an f-string prints as an integer."""
    for template in nodes(text):
        parts = template.values if isinstance(template, ast.JoinedStr) else []
        if any(isinstance(part, ast.Constant) and _SQL.search(str(part.value)) for part in parts):
            continue
        for part in parts:
            shown = part.value if isinstance(part, ast.FormattedValue) else None
            if not isinstance(shown, ast.Name | ast.Attribute):
                continue
            name = shown.id if isinstance(shown, ast.Name) else shown.attr
            is_frontier = isinstance(shown, ast.Attribute) and name in ("since", "upper")
            if _TIMES.fullmatch(name) or (is_frontier and not _STATES.fullmatch(ast.unparse(shown))):
                yield part.lineno, ast.unparse(shown)


def test_messages_print_times_as_iso_text() -> None:
    found = [
        f"{path}:{line} {{{shown}}}"
        for path, text in python_files()
        if path.parts[0] != "tests" and "testing" not in path.parts and path.name != "time_text.py"
        for line, shown in bare_times(text)
    ]
    report(found, "times printed as integers (persist_core.time_text has show_time, show_interval and format_time)")


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ('f"upper {manifest.upper}, {until}"', ["manifest.upper", "until"]),
        ('f"at {commit.committed_ms}"', ["commit.committed_ms"]),
        ('f"upper {state.upper}, {show_time(until)}, {timeout_ms} ms"', []),
        ('f"{time} AS t"', []),
    ],
)
def test_a_time_printed_as_an_integer_is_found(template: str, found: list[str]) -> None:
    assert [shown for _, shown in bare_times(template)] == found


def test_no_registry_host_and_no_machine_path() -> None:
    pattern = re.compile(rf"{_spelled(_REGISTRIES)}|(?<![\w}}])(?:{_spelled(_MACHINE_PATHS)})")
    found = [
        f"{path}:{number} {match[0]}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := pattern.search(line))
    ]
    report(found, "package registry hosts and absolute paths of one machine")


def test_top_level_holds_only_known_folders() -> None:
    folders = {path.parts[0] for path in files() if len(path.parts) > 1}
    report(sorted(folders - TOP_FOLDERS), f"top-level folders other than {', '.join(sorted(TOP_FOLDERS))}")


def test_committed_files_are_small() -> None:
    found = [f"{path}: {size} bytes" for path in files() if (size := (ROOT / path).stat().st_size) > MAX_FILE_BYTES]
    report(found, f"expected at most {MAX_FILE_BYTES} bytes per file")


def asked_in(path: Path) -> set[str]:
    """The names of packages that a file of requirements asks for, and of all that the files it includes ask for."""
    found = set[str]()
    for line in path.read_text().splitlines():
        if line.startswith("-r "):
            found |= asked_in(path.parent / line[3:].strip())
        elif name := re.match(r"[A-Za-z0-9-]+", line):
            found.add(name[0].lower())
    return found


def test_every_lock_is_whole_hashed_and_names_no_index() -> None:
    found = []
    for lock in sorted((ROOT / "requirements").glob("*.txt")):
        if lock.name == "overrides.txt":
            continue
        text = lock.read_text()
        if not lock.with_suffix(".in").is_file():
            found.append(f"{lock.name}: no {lock.stem}.in beside it")
            continue
        missing = asked_in(lock.with_suffix(".in")) - set(re.findall(r"^([a-z0-9-]+)", text, re.MULTILINE))
        found += [f"{lock.name}: {name} is in {lock.stem}.in alone" for name in sorted(missing)]
        pins = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
        found += [f"{lock.name}: {pin.split()[0]} has no hash" for pin in pins if "--hash=sha256:" not in pin]
        found += [f"{lock.name}: {word}" for word in ("index-url", "find-links", "://") if word in text]
        # It installs over the same folder as pyspark; the image of Airflow is the one environment without pyspark.
        pins = [] if lock.name == "image-airflow.txt" else re.findall(r"^pyspark-client.*", text, re.M)
        found += [f"{lock.name}: {pin}" for pin in pins if "'never'" not in pin]
    report(found, "locked requirement files (make lock writes them)")


SERVER_ONLY = "persist_airflow.page.app"  # imports the API server, which alone loads it
IMPORT_ALL = """
import importlib, pathlib, sys
for folder, package in {places!r}:
    for path in sorted(pathlib.Path(folder, package).rglob("*.py")):
        name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith("__main__") and ".testing" not in name and name != {server_only!r}:
            importlib.import_module(name)
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


@pytest.mark.parametrize(
    ("places", "banned"),
    [
        pytest.param([(".", "persist_core")], {"pyspark", "pandas", "airflow", "boto3"}, id="core"),
        pytest.param([("plugins", "persist_airflow")], {"pyspark", "pandas", "persist_spark", "boto3"}, id="airflow"),
        pytest.param([("jobs", "persist_spark")], {"airflow", "persist_airflow", "boto3"}, id="spark"),
    ],
)
def test_importing_stays_light(places: list[tuple[str, str]], banned: set[str]) -> None:
    """Mint, append and checkpoint tasks pay for every import, so they must not import what they do not need."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL.format(places=places, server_only=SERVER_ONLY)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report(sorted(banned & set(done.stdout.split())), f"imported with {places[0][1]}")
