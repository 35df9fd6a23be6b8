"""`docs/first-week.md`: its commands run, one after the other, and print the lines that it shows."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persist_core.cli.main import run_command
from persist_core.config.collection import load_collection

if TYPE_CHECKING:
    from tests.servers.spark_connect import ConnectServer

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "first-week.md").read_text()
_FILE = re.compile(r"`(feed/[\w./-]+)`:\n\n```json\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, list[str]]]:
    """Each command of the page, with the lines that it shows."""
    blocks = "".join(_CONSOLE.findall(PAGE))
    shown = (each.splitlines() for each in re.split(r"^\$ ", blocks, flags=re.MULTILINE)[1:])
    return [(command, lines) for command, *lines in shown]


def run(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the output of the command; a `persist` runs in this process."""
    first, *words = shlex.split(command)
    if first == "cd":
        monkeypatch.chdir(words[0])
        return ""
    if first != "persist":
        return subprocess.run([first, *words], capture_output=True, text=True, check=True, timeout=60).stdout
    capsys.readouterr()
    code = run_command(words)
    printed = capsys.readouterr()
    assert code == 0, f"{command}: {printed.err}"
    return printed.out


@pytest.mark.family("commands")
@pytest.mark.skipif(shutil.which("sed") is None, reason="the page uses sed")
def test_the_commands_of_the_first_week(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, connect_server: ConnectServer
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PERSIST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PERSIST_SPARK_MASTER", connect_server.url)
    for name, text in _FILE.findall(PAGE):
        (tmp_path / "shop" / name).parent.mkdir(parents=True)
        (tmp_path / "shop" / name).write_text(text)
    for command, lines in commands():
        printed = run(command, capsys, monkeypatch)
        for line in lines:
            assert line in printed, f"{command} printed:\n{printed}"
    file = Path("dags/collections/payments.yaml")
    (end,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    file.write_text(file.read_text() + end)
    config = load_collection(file)
    assert config.schedule == "@daily"
