"""Names that a user writes are looked up among those that exist; the nearest one is offered instead."""

from collections.abc import Iterable

from ptq_cli.core.errors import UnknownNameError


def did_you_mean(name: str, known: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known name, or an empty string."""
    from difflib import get_close_matches

    matches = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean '{matches[0]}'?)" if matches else ""


def require_known(what: str, name: str, known: Iterable[str]) -> None:
    """Raise if ``name`` is not among the known names."""
    names = list(known)
    if name not in names:
        raise UnknownNameError(
            f"unknown {what} '{name}'{did_you_mean(name, names)}", hint=f"known: {', '.join(names)}"
        )
