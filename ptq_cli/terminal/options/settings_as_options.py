"""Settings that are typed as options of their own: who types one is told what to type instead."""

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

KEYS = {**FLAG_KEYS, **{name: f"{ONCE}.{name}" for name in ONCE_KEYS}}  # key by the option with underscores


def option_instead(option: str, words: Sequence[str], context: click.Context) -> str:
    """Return what to type instead of an option that a context's command does not have, with the typed value.

    Returns:
        A hint that names ``--set KEY=VALUE`` or an argument; empty if there is no such setting, or if the
        command does not take it.
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
        return ""
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
