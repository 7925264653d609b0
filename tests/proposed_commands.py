"""The commands that ptq proposes, in what it prints and in its code: they must exist as they are written."""

import ast
import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

import click

from ptq_cli.cli.main import COMMANDS, cli
from ptq_cli.core.errors import PtqError
from ptq_cli.recipe.assignments import parse_assignments, setting_types
from tools.pages.page_commands import every_option

ADVICE = re.compile(r"^(?:hint|warning|note|next|to try)\b.*?: (.*)$", re.MULTILINE)
# Lines that are nothing but a command, which a user pastes.
WHOLE = re.compile(r"^(?:next|to try)\b[^:]*: (ptq .*)$", re.MULTILINE)
MENTION = re.compile(r"\bptq ([a-z]+.*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])")
ASSIGNMENT = re.compile(r"--set '?([a-z]+\.[a-z_]+)")
MARKS = "`'\"().,;:[]"
OF_OTHERS = {"--nproc-per-node"}  # Options of torchrun


def require_proposals(*printed: str | None) -> None:
    """Fail if an output proposes a command or an option that there is not."""
    problems = [problem for text in printed if text for problem in problems_of_printed(text)]
    assert not problems, "\n".join(problems)


def problems_of_printed(text: str) -> list[str]:
    """Return what is wrong with the commands and options that the lines of advice in an output name.

    Example:
        >>> problems_of_printed("hint: ptq export --exclud LAYER keeps it in float")
        ["ptq export has no option '--exclud': ptq export --exclud LAYER keeps it in float"]
        >>> problems_of_printed("error PTQ-USAGE-001: unknown option '--color'")
        []
    """
    found = [problem for line in WHOLE.findall(text) for problem in _problems_of_command(line)]
    return found + [problem for line in ADVICE.findall(text) for problem in problems_of_prose(line)]


def problems_of_prose(text: str) -> list[str]:
    """Return what is wrong with the commands and options in a sentence.

    Example:
        >>> problems_of_prose("run ptq calibrate again with --tarjet NAME")
        ["no command has the option '--tarjet': run ptq calibrate again with --tarjet NAME"]
        >>> problems_of_prose("pass --set amax.bin=8")
        ['amax.bin is not a key: pass --set amax.bin=8']
    """
    found = [problem for mention in MENTION.findall(text) for problem in _problems_of_mention(mention, text)]
    strange = [name for name in OPTION.findall(text) if name not in every_option() | OF_OTHERS]
    found += [f"{key} is not a key: {text}" for key in ASSIGNMENT.findall(text) if key not in setting_types()]
    named = " ".join(found)
    return found + [f"no command has the option '{name}': {text}" for name in strange if name not in named]


def texts_of(source: str) -> Iterator[str]:
    r"""Yield the texts in a Python file, with ``X`` for what is only known when it runs.

    Example:
        >>> list(texts_of('f"ptq export {flags} again"'))
        ['ptq export X again']
    """
    inner: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inner.update(node.values)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner:
            yield node.value


def _options(command: click.Command) -> dict[str, click.Option]:
    context = click.Context(command, info_name=command.name, parent=click.Context(cli, info_name="ptq"))
    options = [item for item in command.get_params(context) if isinstance(item, click.Option)]
    return {name: option for option in options for name in (*option.opts, *option.secondary_opts)}


def _problems_of_command(line: str) -> list[str]:
    """Let click parse a whole command: its options, their values and its arguments."""
    words = shlex.split(line)[1:]
    command, names = _command(words)
    if command is None:
        return [f"'ptq {words[0]}' is not a command: {line}"]
    try:
        context = click.Context(cli, info_name="ptq")
        made = command.make_context(" ".join(names), words[len(names) :], parent=context)
        parse_assignments(made.params.get("assignments", ()))
    except (click.UsageError, PtqError) as error:
        return [f"{error.message}: {line}"]
    return []


def _problems_of_mention(mention: str, text: str) -> list[str]:
    words = [word.strip(MARKS) for word in mention.split()]
    command, names = _command(words)
    if command is None or isinstance(command, click.Group):
        known = command.commands if isinstance(command, click.Group) else COMMANDS
        following = words[len(names)] if len(words) > len(names) else ""
        if _is_misspelt(following, known):
            return [f"'ptq {' '.join([*names, following])}' is not a command: {text}"]
    if command is None:
        return []
    options, rest = _options(command), words[len(names) :]
    while rest and rest[0].startswith("--") and rest[0] != "--":
        option = options.get(rest[0].partition("=")[0])
        if option is None:
            return [f"ptq {' '.join(names)} has no option '{rest[0]}': {text}"]
        takes = 0 if option.is_flag or option.count or "=" in rest[0] else 1
        rest = rest[1 + takes :]
    return []


def _command(words: Sequence[str]) -> tuple[click.Command | None, list[str]]:
    """Return the command that words begin with, if any, and its names."""
    command = cli.get_command(click.Context(cli, info_name="ptq"), words[0])
    if isinstance(command, click.Group) and len(words) > 1 and words[1] in command.commands:
        return command.commands[words[1]], list(words[:2])
    return command, [] if command is None else [words[0]]


def _is_misspelt(word: str, known: Iterable[str]) -> bool:
    """Whether a word is nearly a command; others are verbs, as in "ptq reads" and "ptq profiles"."""
    is_verb = word.rstrip("ds") in {name.rstrip("s") for name in known}
    return not is_verb and bool(difflib.get_close_matches(word, known, cutoff=0.8))
