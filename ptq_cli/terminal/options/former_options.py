"""Options that ``ptq`` had: who types one is told what ``--set`` or ``--override`` says instead."""

import shlex
from collections.abc import Sequence

import click

from ptq_cli.recipe.assignments import ONCE, ONCE_KEYS, setting_types, type_words
from ptq_cli.recipe.flags import FLAG_KEYS, OVERRIDE_FLAGS

KEYS = {**FLAG_KEYS, **{name: f"{ONCE}.{name}" for name in ONCE_KEYS}}
"""The key that an option set, by its name with underscores."""


def replacement(option: str, words: Sequence[str], command: click.Command) -> str:
    """Return what to type instead of an option that a command does not have, with the value that was typed.

    Returns:
        One or two options, or a value that is an argument; empty if there never was such an option, or if the
        command takes no settings.
    """
    name = option.removeprefix("--").replace("-", "_")
    if any(isinstance(item, click.Argument) and item.name == name for item in command.params):
        return f"{_typed(option, words) or name.upper()} without {option}"
    options = {text for parameter in command.params for text in parameter.opts}
    if name in OVERRIDE_FLAGS:
        return _as_override(name, _typed(option, words)) if "--override" in options else ""
    negated = name not in KEYS and name.startswith("no_")
    key = KEYS.get(name.removeprefix("no_") if negated else name, "")
    is_once = key.startswith(f"{ONCE}.")
    if not key or "--set" not in options or (is_once and key[4:] not in getattr(command, "once", ())):
        return ""
    return f"--set {_assignment(key, option, words, negated=negated)}"


def _as_override(name: str, typed: str | None) -> str:
    key, quantize = OVERRIDE_FLAGS[name]
    pattern = typed or "PATTERN"
    front = f"{pattern}:" if key == "match" else f":{key}={pattern},"
    return f"--override {shlex.quote(f'{front}quantize={str(quantize).lower()}')}"


def _assignment(key: str, option: str, words: Sequence[str], *, negated: bool) -> str:
    kind = type_words(setting_types()[key])
    if kind == type_words(bool):
        return f"{key}={str(not negated).lower()}"
    typed = _typed(option, words)
    if kind.startswith("table"):
        return shlex.quote(f"{key}.{typed}") if typed else f"{key}.NAME=VALUE"
    return shlex.quote(f"{key}={typed}") if typed else f"{key}=VALUE"


def _typed(option: str, words: Sequence[str]) -> str | None:
    """Return the value behind an option: after an equals sign, or the next word."""
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
        if word == option:
            return None if following.startswith("--") else following
    return None
