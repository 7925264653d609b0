"""Commands and options that ``ptq`` had: who types one is told what to type instead."""

import shlex
from collections.abc import Sequence

import click

from ptq_cli.recipe.assignments import (
    FLAG_KEYS,
    ONCE,
    ONCE_KEYS,
    OVERRIDE,
    OVERRIDE_FLAGS,
    setting_types,
    type_words,
)
from ptq_cli.recipe.schema import instead_of

# What a former command, or one with its subcommand, is now; the words after it stay.
FORMER_COMMANDS = {
    "calibration show": "inspect",
    "calibration": "inspect",
    "explain": "inspect --tensor",
    "compare": "report",
    "profile": "bench --operators",
    "prepare": "export --float",
    "schema": "recipe schema",
}
SERVE_BATCH, _BATCH = "serve-batch", "batch"  # An option of ``profile`` that has another name now
_QUANTIZERS, HELP = "quantizers", "help"
KEYS = {**FLAG_KEYS, **{name: f"{ONCE}.{name}" for name in ONCE_KEYS}}  # key by the option with underscores
WORDS_OF_NONE = {"batch_axis", "carry"}  # Options whose value ``none`` alone was for every name


def command_instead(words: Sequence[str]) -> str:
    """Return what to type instead of a former command and the words after it; empty if there was none.

    Example:
        >>> command_instead(["explain", "conv 1", "--plot", "x.svg"]), command_instead(["help", "gate"])
        ("use ptq inspect --tensor 'conv 1' --plot x.svg", 'use ptq gate --help')
    """
    first, *rest = words
    if first == HELP:
        return f"use {shlex.join(['ptq', *rest, '--help'])}"
    if first == _QUANTIZERS:
        return "docs/quantizers.md shows them; ptq recipe keys weights lists their parameters"
    for former, now in FORMER_COMMANDS.items():
        names = former.split()
        if list(words[: len(names)]) == names:
            rest = [word.replace(f"--{SERVE_BATCH}", f"--{_BATCH}") for word in words[len(names) :]]
            return f"use {' '.join(filter(None, ['ptq', now, shlex.join(rest)]))}"
    return ""


def option_instead(option: str, words: Sequence[str], context: click.Context) -> str:
    """Return what to type instead of an option that a context's command does not have, with the typed value.

    Returns:
        A hint that names ``--set KEY=VALUE`` or an argument, or says what to do instead of a former key;
        empty if there never was such an option, or if the command takes no such settings.
    """
    name, command = option.removeprefix("--").replace("-", "_"), context.command
    if any(isinstance(item, click.Argument) and item.name == name for item in command.params):
        return f"use {_typed(option, words) or name.upper()} without {option}"
    only = getattr(command, "only", "")
    if all("--set" not in parameter.opts for parameter in command.params):
        return ""
    if name in (OVERRIDE, *OVERRIDE_FLAGS):
        return f"use {_as_override(name, _typed(option, words))}" if not only else ""
    negated = name not in KEYS and name.startswith("no_")
    key = KEYS.get(name.removeprefix("no_") if negated else name, "")
    if not key or (only and not key.startswith(f"{only}.")):
        return instead_of(name) if not only else ""
    if key.startswith(f"{ONCE}.") and key.removeprefix(f"{ONCE}.") not in getattr(command, "once", ()):
        return ""
    return f"use --set {_assignment(key, option, words, negated=negated)}"


def _as_override(name: str, typed: str | None) -> str:
    if name == OVERRIDE:
        return f"--set {shlex.quote(f'{OVERRIDE}={typed}') if typed else f'{OVERRIDE}=PATTERN:KEY=VALUE,…'}"
    key, quantize = OVERRIDE_FLAGS[name]
    pattern = typed or "PATTERN"
    front = f"{pattern}:" if key == "match" else f":{key}={pattern},"
    return f"--set {shlex.quote(f'{OVERRIDE}={front}quantize={str(quantize).lower()}')}"


def _assignment(key: str, option: str, words: Sequence[str], *, negated: bool) -> str:
    kind = type_words(setting_types()[key])
    if kind == type_words(bool):
        return f"{key}={str(not negated).lower()}"
    typed = _typed(option, words)
    if kind.startswith("table"):
        if typed == "none" and key.partition(".")[2] in WORDS_OF_NONE:
            typed = "*=none"
        return shlex.quote(f"{key}.{typed}") if "=" in (typed or "") else f"{key}.NAME=VALUE"
    return shlex.quote(f"{key}={typed}") if typed else f"{key}=VALUE"


def _typed(option: str, words: Sequence[str]) -> str | None:
    """Return the value behind an option: after an equals sign, or the next word."""
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
        if word == option:
            return None if following.startswith("--") else following
    return None
