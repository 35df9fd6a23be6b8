"""Documents and code name only what exists in each other: links, cited documents, sections and headings."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from persist_core.errors import PersistError
from persist_core.spark_job.causes import KNOWN
from tests.env.reference import family, pages
from tests.test_house import files, report, text_files

ROOT = Path(__file__).resolve().parents[1]
OF_THE_USER = ("dags/collections/", "dags/views/")  # example files that a reader of the documents writes
_LINK = re.compile(r"(?:\]\(|src=\")([^)\"\s]+)")
# docs/NAME.md, then perhaps `, section 4`, `, sections 5 and 6` or `, "A heading"`, perhaps after a line break.
_CITATION = re.compile(
    r"(?P<document>docs/[\w/-]+\.md)(?:,?[\s#*]+(?:sections?\s+(?P<sections>\d+(?:(?:\s+and\s+|,\s+)\d+)*)|\"(?P<heading>[^\"\n]+)\"))?"
)
_NAME = re.compile(r"`(\w+)`")
_HEADING_IN = re.compile(r"`(?P<heading>[^`\n]+)` in (?P<document>docs/[\w/-]+\.md)")


@cache
def headings(document: Path) -> tuple[str, ...]:
    """The headings of a document (relative to the root), without their marks."""
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    return tuple(re.findall(r"^#+ (.+)$", text, re.MULTILINE))


def anchor(heading: str) -> str:
    """The fragment by which a page's heading is linked to, as Git hosts make it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_links_lead_to_files_and_headings_that_exist() -> None:
    found = []
    for path in files():
        if path.suffix != ".md":
            continue
        for link in _LINK.findall((ROOT / path).read_text()):
            target, _, fragment = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            document = path if not target else Path((ROOT / path.parent / target).resolve().relative_to(ROOT))
            if not (ROOT / document).exists():
                found.append(f"{path}: {link}")
            elif fragment and fragment not in map(anchor, headings(document)):
                found.append(f"{path}: {link} has no such heading")
    report(found, "links to nowhere")


def faults_of_citations(text: str) -> list[str]:
    """The citations in a text of documents, or of parts, that do not exist."""
    found = []
    for cited in _CITATION.finditer(text):
        document = Path(cited["document"])
        if not (ROOT / document).is_file():
            found.append(f"{document} does not exist")
            continue
        for section in re.findall(r"\d+", cited["sections"] or ""):
            if not any(heading.startswith(f"{section}. ") for heading in headings(document)):
                found.append(f"{document} has no section {section}")
    for cited in [*_CITATION.finditer(text), *_HEADING_IN.finditer(text)]:
        document, heading = Path(cited["document"]), cited["heading"]
        if heading and (ROOT / document).is_file() and heading not in headings(document):
            found.append(f'{document} has no heading "{heading}"')
    return found


def test_cited_documents_sections_and_headings_exist() -> None:
    """Design notes that are not in the repository are not cited either."""
    found = [
        f"{path}: {fault}"
        for path, text in text_files()
        if path != Path("tests/test_documents.py")
        for fault in [*faults_of_citations(text), *re.findall(r"\b(?:SEMANTICS|PLATFORM)\b", text)]
    ]
    report(found, "citations of what is not in the repository")


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("See docs/semantics.md, sections 5 and 6, and docs/semantics.md.", []),
        ('as docs/architecture.md, "Parts" says', []),
        ("docs/semantics.md, section 4 and 77", ["docs/semantics.md has no section 77"]),
        ("# docs/semantics.md,\n# section 88", ["docs/semantics.md has no section 88"]),
        ("docs/nothing.md, section 1", ["docs/nothing.md does not exist"]),
        ("`Damage` in docs/operations.md", []),
        ("`Harm` in docs/operations.md", ['docs/operations.md has no heading "Harm"']),
        ('docs/architecture.md, "Pieces"', ['docs/architecture.md has no heading "Pieces"']),
    ],
)
def test_a_citation_of_nothing_is_found(text: str, faults: list[str]) -> None:
    assert faults_of_citations(text) == faults


def test_pages_made_from_the_code_are_current() -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in pages().items() if path.read_text() != text]
    report(stale, "pages that are not what the code says (make docs writes them)")


def test_import_linter_checks_the_layers_of_the_architecture() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == ["persist_core"])
    table = (ROOT / "docs" / "architecture.md").read_text().partition("| layer |")[2].partition("\n\n")[0]
    named = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines()[2:]]
    assert named == [layer.split(" | ") for layer in layers]


def test_the_operators_table_names_each_error_as_a_log_does() -> None:
    """By kind and class, and no failure of a run is missing."""
    table = (ROOT / "docs" / "operations.md").read_text().partition("| kind (class) |")[2].partition("\n\n")[0]
    named = dict(re.findall(r"`(\w+)` \(`(\w+)`\)", table))
    known = {kind.kind: kind.__name__ for kind in family(PersistError)}
    assert named == {kind: known[kind] for kind in named}
    assert known.keys() - named.keys() == {PersistError.kind}


def test_the_operators_table_quotes_what_the_code_says() -> None:
    """Texts in quotes exist in messages, and names of exceptions as classes."""
    text = (ROOT / "docs" / "operations.md").read_text().partition("## A dag run failed")[2].partition("\n## ")[0]
    code = "".join(path.read_text() for folder in ("persist_core", "plugins") for path in (ROOT / folder).rglob("*.py"))
    quoted = [part for quote in re.findall(r'"([^"\n]+)"', text) for part in re.split(r"\.\.\.", quote)]
    report(
        [part for part in quoted if re.sub(r"^is |^found ", "", part.strip("; ")) not in code], "words of no message"
    )
    raised = re.findall(r"^([A-Z]\w+): ", text, re.MULTILINE)
    assert {*raised} == {"AirflowFailException", "PersistCasConflict", "PersistStepFailed", "SparkJobFailed"}
    assert all(name in code for name in raised)


def test_the_operators_table_names_each_cause_of_a_dead_job() -> None:
    table = (ROOT / "docs" / "operations.md").read_text().partition("| the message starts with |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    named = {cause.strip() for row in rows for cause in row.split("|")[1].split(";")}
    assert named == {*(what for what, _, _ in KNOWN), "the job was killed with exit status 137"}


def test_paths_in_documents_exist() -> None:
    """A name in backticks that begins with one of our folders, or is a test module. It may contain wildcards."""
    pattern = re.compile(r"`((?:(?:persist_core|jobs|plugins|tests|dags|requirements)/|test_)[\w./*-]+)`")
    found = [
        f"{path}: {name}"
        for path in files()
        if path.suffix == ".md"
        for name in pattern.findall((ROOT / path).read_text())
        if not any(ROOT.glob(name.rstrip("/"))) and not name.startswith(OF_THE_USER)
    ]
    report(found, "paths to nowhere")


def test_the_operators_table_names_every_check_of_fsck() -> None:
    table = (ROOT / "docs" / "operations.md").read_text().partition("| check | what is damaged |")[2]
    named = {name for row in table.partition("\n\n")[0].splitlines()[2:] for name in _NAME.findall(row.split("|")[1])}
    modules = ROOT.glob("persist_core/maintenance/[!d]*.py")  # all but doctor.py, which examines stores
    code = "".join(module.read_text() for module in modules)
    calls = (
        r"(?:checking|\.add)\(\s*\"(\w+)\"",
        r"\(\"(\w+)\", (?:alternates|carries|check_\w+)\)",
        r"_check_each\([^\n]*\"(\w+)\", ",
    )
    assert named == {check for call in calls for check in re.findall(call, code)}


def test_the_document_of_the_page_names_every_endpoint() -> None:
    table = (ROOT / "docs" / "page.md").read_text().partition("| endpoint |")[2]
    named = {name for row in table.partition("\n\n")[0].splitlines()[2:] for name in _NAME.findall(row.split("|")[1])}
    code = (ROOT / "plugins" / "persist_airflow" / "page" / "answers.py").read_text().partition("ENDPOINTS: ")[2]
    assert named == set(re.findall(r"^    \"(\w+)\": ", code.partition("\n}")[0], re.MULTILINE))


def test_tests_that_show_who_is_trusted_exist() -> None:
    """docs/trust.md names the test for each of its rows, or gives the reason why one is missing."""
    text = (ROOT / "docs" / "trust.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(("| it may", "| they may", "| ---"))
    ]
    assert len(named) > 10
    assert not [row for row in rows if not re.search(r"\| (`tests/[^|]+::\w+`|none: [^|]+) \|$", row)]
    found = [
        f"docs/trust.md: {path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or f"\ndef {name}(" not in (ROOT / path).read_text()
    ]
    report(found, "tests that are not there")
