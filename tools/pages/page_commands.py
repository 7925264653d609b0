"""The calls of ``ptq`` that a page names in its code and in its sentences, and what is wrong with them."""

import re
import shlex
from collections.abc import Iterator
from functools import cache

import click

from ptq_cli.cli.main import COMMANDS, cli
from ptq_cli.core.errors import PtqError
from ptq_cli.recipe.assignments import parse_assignments
from tools.pages.page_blocks import blocks

SEPARATOR = re.compile(r"\|\|?|&&|;|\$\(|\b(?:do|then|if) ")
CALL = re.compile(r"(?:\$ )?(?:\w+=\S* )*(?:ptq|(?:torchrun .*|python )-m ptq_cli(?: --)?) (.*)", re.DOTALL)
# What is behind a command: its meaning in a table, or where its output goes.
AFTER = re.compile(r"\s{2,}.*|\s\d?>.*|\)$")
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
OPTION = re.compile(r"--[a-zA-Z][\w-]*")
# Options of pip, of TensorRT's trtexec, of the benchmarks, and of the scripts of samples.
OF_OTHERS = {
    "--case",
    "--cases",
    "--constraint",
    "--exportLayerInfo",
    "--extra-index-url",
    "--float-time",
    "--form",
    "--only",
    "--state",
}
UNKNOWN = re.compile(r"\b[A-Z]{2,}\b|[$…]")  # A value that stands for another one


def command_faults(page: str) -> Iterator[str]:
    """Yield what is wrong with the calls and the options of ``ptq`` that a page names.

    Example:
        >>> list(command_faults("Run `ptq gate --mim sqnr_db=20` or `--recovr`."))
        ["`ptq gate --mim sqnr_db=20`: No such option '--mim'.", '`--recovr`: no command has this option']
    """
    fenced = blocks(page)
    for block in fenced:
        if block.language in ("console", "bash", "text"):
            yield from _faults_of_shell(re.sub(r"\\\n\s*", "", block.text))
    lines = page.splitlines()
    for block in reversed(fenced):
        del lines[block.line - 2 : block.line + len(block.text.splitlines())]
    for broken in SPAN.findall("\n".join(lines)):
        span = " ".join(broken.split())
        option = OPTION.match(span)
        if span.startswith("ptq "):
            fault = fault_of(span.removeprefix("ptq "))
            yield from [f"`{span}`: {fault}"] if fault else []
        elif option and option[0] not in every_option() | OF_OTHERS:
            yield f"`{span}`: no command has this option"


def _faults_of_shell(text: str) -> Iterator[str]:
    for line in text.splitlines():
        for part in SEPARATOR.split(line):
            call = CALL.fullmatch(AFTER.sub("", part.strip()))
            fault = fault_of(call[1]) if call else None
            if fault:
                yield f"{line.strip()}: {fault}"


def fault_of(call: str) -> str | None:
    """Return what is wrong with what stands behind ``ptq``; arguments and values may be left out.

    Example:
        >>> fault_of("export --recover"), fault_of("gate"), fault_of("quantize … --samples 8")
        (None, None, None)
        >>> fault_of("quantize model.onnx --samples many")
        "'many' is not a valid integer."
        >>> fault_of("quantize --set amax.bin=8")
        "--set: unknown key 'amax.bin' (did you mean 'amax.bins'?)"
    """
    words = [word for word in shlex.split(call, comments=True) if word != "…"]
    command: click.Command = cli
    context = click.Context(cli, info_name="ptq")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        found = command.get_command(context, name)
        if found is None:
            return None if UNKNOWN.search(name) else f"'{name}' is not a command"
        command, context = found, click.Context(found, context, info_name=name)
    try:
        values, _, given = command.make_parser(context).parse_args(list(words))
        for parameter in given:
            value = values[parameter.name or ""]
            if not isinstance(parameter.type, click.Path) and not UNKNOWN.search(str(value)):
                parameter.type_cast_value(context, value)
            if parameter.name == "assignments":
                parse_assignments([text for text in value if not UNKNOWN.search(text)])
    except click.BadOptionUsage as error:
        return None if words[-1] == error.option_name else error.message
    except (click.UsageError, PtqError) as error:
        return error.message
    return None


@cache
def every_option() -> frozenset[str]:
    """The options of all commands, and those of ``ptq`` itself."""
    context = click.Context(cli, info_name="ptq")
    waiting = [cli, *(command for name in COMMANDS if (command := cli.get_command(context, name)))]
    found: set[str] = set()
    while waiting:
        command = waiting.pop()
        if isinstance(command, click.Group) and command is not cli:
            waiting += command.commands.values()
        for parameter in command.get_params(click.Context(command)):
            found |= {*parameter.opts, *parameter.secondary_opts}
    return frozenset(found)
