"""`persist plan`, `persist schema` and `persist snapshot --schema`: docs/changing.md, run block by block."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path

import pytest

from persist_core.cli.main import run_command
from persist_core.config.collection import load_collection
from persist_core.errors import ConfigError
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from tests.plain_commit import commit

PAGE = Path(__file__).resolve().parents[3] / "docs" / "changing.md"
EVOLUTION = PAGE.read_text().partition("## The feed changes")[0]
BLOCK = re.compile(r"```(yaml|console)\n(.*?)```", re.S)
ROWS = {"id": [(1, "pen", Decimal("1.50"), "old")], "title": [(1, "pen", None, Decimal("1.50"))]}


class Page:
    """The world of a reader of the page: a folder with the file, and a location. `persist run` is an append by hand."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "orders.yaml"
        location = PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db")
        self.there = ["--blob-uri", location.blob_uri, "--consensus-uri", location.consensus_uri]
        self.client = PersistClient(open_location(location))
        self.folder = folder

    def run(self) -> None:
        schema, state = load_collection(self.file).collection_schema(), self.client.ensure_shard("orders")
        if state.schema is None:
            commit(self.client, "orders", schema, 10, [((1, "pen", Decimal("1.50"), "old"), 5, 1)])
            return
        rows = [(1, "pen", None, Decimal("1.50")), (2, "ink", "red", Decimal("123456.00"))]
        commit(self.client, "orders", schema, 20, [(rows[0], 15, -1), (rows[1], 15, 1)])

    def say(self, *arguments: str) -> int:
        if arguments == ("run", "orders"):
            self.run()
            return 0
        more = ["--collections", str(self.folder)] if arguments[0] == "plan" else []
        return run_command([*arguments, *more, *self.there])


def test_the_page_shows_what_the_commands_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Page(tmp_path)
    for kind, text in BLOCK.findall(EVOLUTION):
        if kind == "yaml":
            page.file.write_text(text)
            if page.client.machine.fetch("orders") is None:
                assert page.say("plan", "orders") == 0
                assert "the first run makes the shard" in capsys.readouterr().out
                page.run()
            continue
        for each in text.split("$ persist ")[1:]:
            command, _, expected = each.partition("\n")
            code = page.say(*command.split())
            said = capsys.readouterr()
            assert (said.out + said.err) == expected, command
            assert code == (2 if expected.startswith("persist: ") else 0)


def test_the_versions_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Page(tmp_path)
    texts = [text for kind, text in BLOCK.findall(EVOLUTION) if kind == "yaml"]
    for text in (texts[0], texts[2]):
        page.file.write_text(text)
        page.run()
    assert page.say("schema", "orders", "--json") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["version"], first["since"], first["readable_before"]) == (1, 0, 10)
    assert (second["version"], second["since"], len(second["changes"])) == (2, 10, 5)
    page.file.write_text(texts[1].replace("id: bigint", "id: string"))
    assert page.say("plan", "orders", "--json") == 2
    assert json.loads(capsys.readouterr().out.splitlines()[0])["plan"] == "refused"


def test_a_name_is_gone_or_a_column(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    text = BLOCK.findall(EVOLUTION)[0][1]
    file.write_text(f"{text}dropped: [note]\n")
    with pytest.raises(ConfigError, match=r"dropped: .*a column of this name is a new one"):
        load_collection(file)


def test_a_plan_names_a_dropped_column_that_never_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Page(tmp_path)
    texts = [text for kind, text in BLOCK.findall(EVOLUTION) if kind == "yaml"]
    page.file.write_text(texts[0] + "dropped: [nota]\n")
    assert page.say("plan", "orders") == 0
    assert "dropped" not in capsys.readouterr().out, "there is no table yet"
    page.run()
    wrong = "dropped: nota: the shard has never had this column: correct the name, or remove it"
    assert page.say("plan", "orders") == 0
    assert capsys.readouterr().out == f"orders: nothing changes\n  {wrong}\n"
    page.file.write_text(texts[2].replace("[note]", "[note, nota]"))
    page.run()
    assert page.say("plan", "orders") == 0
    assert capsys.readouterr().out == f"orders: nothing changes\n  {wrong}\n"
