"""Every example in a command's help is a command line that ptq takes."""

import inspect
import shlex
from collections.abc import Iterator

import click

from ptq_cli.cli.main import COMMANDS, cli
from ptq_cli.recipe.assignments import FLAG_KEYS, OVERRIDE, OVERRIDE_FLAGS, settings_to_table
from ptq_cli.terminal.options.shared_options import settings_from
from tests.each_case import each_case

SETTINGS = {*FLAG_KEYS, *OVERRIDE_FLAGS, OVERRIDE, "minimum", "assignments"}


def examples() -> Iterator[str]:
    """Yields the command lines in the help of ptq, of its commands, and of theirs."""
    context = click.Context(cli)
    waiting: list[click.Command] = [
        cli,
        *(found for name in COMMANDS if (found := cli.get_command(context, name))),
    ]
    while waiting:
        command = waiting.pop(0)
        lines = inspect.cleandoc(command.epilog or "").splitlines()
        yield from (line.strip() for line in lines if line.startswith("  "))
        if isinstance(command, click.Group) and command is not cli:
            waiting += command.commands.values()


EXAMPLES = list(dict.fromkeys(examples()))


def test_there_are_examples_of_every_command() -> None:
    assert {line.split()[1] for line in EXAMPLES if line.startswith("ptq ")} == set(COMMANDS)


@each_case("line", [line for line in EXAMPLES if not line.startswith("cd ")])
def test_an_example_is_read_as_it_is_meant(line: str) -> None:
    _, *words = shlex.split(line.replace("torchrun --nproc-per-node=4 -m ptq_cli --", "ptq"))
    context = cli.make_context("ptq", words)
    # Raises what a wrong option, value or missing argument raises; nothing is run.
    while isinstance(context.command, click.Group) and context._protected_args:
        rest = [*context._protected_args, *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    given = {name: value for name, value in context.params.items() if name in SETTINGS}
    if isinstance(given.get("metric"), str):  # ptq analyze takes one.
        given["metric"] = (given["metric"],)
    settings_to_table(settings_from(given))
