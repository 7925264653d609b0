"""``--quiet``: verdicts, paths and what was asked for on stdout, warnings and errors on stderr."""

from typing import Any

import click

KEY = f"{__name__}.quiet"
"""Where click's contexts, which all share it, keep that the option was given."""


def keep_quiet(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
    """Remember that ``--quiet`` was given, before or after the command's name."""
    if value:
        context.meta[KEY] = True


def is_quiet() -> bool:
    """Tell whether notes, details, progress and next steps are to be left out."""
    context = click.get_current_context(silent=True)
    return context is not None and KEY in context.meta
