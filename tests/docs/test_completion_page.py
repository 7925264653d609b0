"""docs/completion.md: its commands write scripts, and it names every option whose value is completed."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from ptq_cli.cli.main import COMMANDS, cli

PAGE = (Path(__file__).parents[2] / "docs" / "completion.md").read_text(encoding="utf-8")
BLOCKS = [block for block in re.findall(r"```bash\n(.*?)\n```", PAGE, re.DOTALL) if "_PTQ_COMPLETE" in block]

RunShell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("block", BLOCKS, ids=re.findall(r"(\w+)_source", PAGE))
def test_the_commands_write_a_script(block: str, tmp_path: Path, shell: RunShell) -> None:
    result = shell(block, tmp_path, HOME=str(tmp_path))
    assert (result.returncode, result.stdout) == (0, "")
    (script,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "_ptq_completion" in script.read_text(encoding="utf-8")


def test_every_option_whose_value_is_completed_is_named() -> None:
    context = click.Context(cli)
    missing = set()
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            completed = (
                isinstance(parameter.type, click.Choice) or parameter._custom_shell_complete is not None
            )
            if completed and isinstance(parameter, click.Option) and f"`{parameter.opts[0]}`" not in PAGE:
                missing.add(parameter.opts[0])
    assert not missing
