"""``ptq quantizers``."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.cli.help_sections import SectionCommand, SectionGroup, argument
from ptq_cli.cli.options import shared_options as completion
from ptq_cli.cli.options.drawing_options import shown_value, take_drawn
from ptq_cli.cli.options.shared_options import GLOBALS, PLOT, complete_names, take
from ptq_cli.core.errors import UsageError
from ptq_cli.recipe.declaration import Setting
from ptq_cli.recipe.quantizer_families import (
    FAMILIES,
    QuantizerFamily,
    find_family,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ptq_cli.cli.documents.inspection_documents import (
        ParameterDocument,
        QuantizerDocument,
        StaircaseDocument,
    )
    from ptq_cli.pipeline.views.staircase import Staircase

POINTS = 401
"""How many values ``--json`` has."""


@click.group(
    cls=SectionGroup,
    short_help="List the quantizers, or draw one.",
    invoke_without_command=True,
    epilog="""\b
Examples:
  ptq quantizers
  ptq quantizers show scaled --bits 3
""",
)
@take(GLOBALS)
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the quantizers: what they do, their parameters and their source."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise UsageError("--json comes after the subcommand", hint="ptq quantizers show FAMILY --json")
        return
    if as_json:
        from ptq_cli.cli.terminal.output import print_json

        print_json({"quantizers": [_family_values(family) for family in FAMILIES.values()]})
    else:
        _print_families()


@command.command(
    cls=SectionCommand,
    short_help="Draw a quantizer's staircase and its gradient.",
    epilog="""\b
Examples:
  ptq quantizers show scaled --bits 4
  ptq quantizers show fixed_point --bits 3 --integer 1 --symmetric
  ptq quantizers show centers --centers 5 --temperature 0.3 --plot centers.svg
""",
)
@argument("family", shell_complete=complete_names(completion.quantizers))
@take_drawn
@take(PLOT, GLOBALS)
def show(family: str, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Draw the output and the gradient of the quantizer FAMILY over its input.

    The quantizer itself computes both; the gradient is for an upstream gradient of 1. No model is read.
    """
    given = {name: value for name, value in options.items() if value is not None}
    found = find_family(family)
    if plot is not None:
        from ptq_cli.pipeline.views.calibration_view import require_plot

        require_plot(plot)
    from ptq_cli.pipeline.views.staircase import staircase_of

    stairs = staircase_of(found, given)
    if plot is not None:
        from ptq_cli.pipeline.views.staircase_plot import write_staircase

        write_staircase(stairs, plot)
    if as_json:
        from ptq_cli.cli.terminal.output import print_json

        print_json(_staircase_values(stairs, plot))
    else:
        _print_staircase(stairs, plot)


def _print_families() -> None:
    from ptq_cli.cli.terminal.output import print_table, say, tell
    from ptq_cli.report.text.summary import Table

    rows = tuple(
        (
            family.name,
            family.meaning,
            _parameters(family.weight_parameters),
            _parameters(family.activation_parameters),
            family.source,
        )
        for family in FAMILIES.values()
    )
    table = Table(("quantizer", "what it is", "for weights", "for activations", "source"), rows)
    left_out = print_table(table, whole=(0,), optional=(4,))
    say("brackets: allowed values; found: computed from the values that are quantized")
    if left_out:
        tell(f"the terminal is too narrow for: {', '.join(left_out)}; --json has it")


def _parameters(parameters: tuple[Setting, ...] | None) -> str:
    if parameters is None:
        return "no"
    texts = [f"{item.name} {shown_value(item.default)} ({item.wanted})" for item in parameters]
    return ", ".join(texts) or "yes"


def _print_staircase(stairs: "Staircase", plot: Path | None) -> None:
    from ptq_cli.cli.shown.drawings import draw_staircase
    from ptq_cli.cli.terminal.output import PIPE_WIDTH, say
    from ptq_cli.cli.terminal.phrases import counted, shown_path

    settings = ", ".join(f"{name} {shown_value(value)}" for name, value in stairs.settings.items())
    say(f"{stairs.family.name}: {stairs.family.meaning}")
    say(f"{settings}; {counted(len(stairs.levels), 'level')}\n")
    for line in draw_staircase(stairs, shutil.get_terminal_size((PIPE_WIDTH, 0)).columns):
        say(line)
    if plot is not None:
        say(f"wrote {shown_path(plot)}")


def _family_values(family: QuantizerFamily) -> "QuantizerDocument":
    return {
        "name": family.name,
        "meaning": family.meaning,
        "formula": family.formula,
        "gradient": family.gradient,
        "source": family.source,
        "weights": _parameter_values(family.weight_parameters),
        "activations": _parameter_values(family.activation_parameters or ())
        if family.takes_activations
        else None,
        "drawn": _parameter_values(family.drawn),
    }


def _parameter_values(parameters: "Sequence[Setting]") -> list["ParameterDocument"]:
    return [{"name": item.name, "default": item.default, "wanted": item.wanted} for item in parameters]


def _staircase_values(stairs: "Staircase", plot: Path | None) -> "StaircaseDocument":
    x = stairs.curve.line(POINTS)
    y, gradient = stairs.curve.at(x)
    return {
        "name": stairs.family.name,
        "settings": dict(stairs.settings),
        "formula": stairs.family.formula,
        "levels": stairs.levels.tolist(),
        "x": x.tolist(),
        "y": y.tolist(),
        "gradient": gradient.tolist(),
        "plot": str(plot) if plot is not None else None,
    }
