"""docs/completion.md names every option whose value is completed."""

from pathlib import Path

import click

from ptq_cli.cli.main import COMMANDS, cli

PAGE = (Path(__file__).parents[2] / "docs" / "completion.md").read_text(encoding="utf-8")


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
