"""Numbers that no option of `persist` can mean."""

from __future__ import annotations

import click
import pytest

from persist_core.cli.main import persist, run_command

NUMBERS = [
    (command.name, option.opts[0])
    for command in persist.commands.values()
    for option in command.params
    if isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
]


@pytest.mark.parametrize(("command", "option"), NUMBERS)
@pytest.mark.parametrize("value", ["9" * 20, "nan", "inf", "-1"])
def test_a_number_that_nobody_can_mean_is_refused(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([command, option, value]) == 2
    assert f"Invalid value for '{option}'" in capsys.readouterr().err
