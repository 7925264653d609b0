"""``ptq quantizers``."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from ptq_cli.cli.help_sections import OWN, SectionGroup, argument, option
from ptq_cli.cli.options import completion
from ptq_cli.cli.options.completion import complete_names
from ptq_cli.cli.options.shared_options import GLOBALS, PLOT, take
from ptq_cli.core.errors import UsageError
from ptq_cli.recipe.declaration import Setting
from ptq_cli.recipe.quantizer_families import FAMILIES, QuantizerFamily, find_family

if TYPE_CHECKING:
    from ptq_cli.pipeline.views.staircase import Staircase


@dataclass(frozen=True)
class DescribedParameter:
    """A parameter of a quantizer."""

    name: Annotated[str, "Its name."]
    default: Annotated[Any, "Its default."]
    wanted: Annotated[str, "Which values are valid, in words."]


@dataclass(frozen=True, kw_only=True)
class DescribedQuantizer:
    """A quantizer."""

    name: Annotated[str, "Its name."]
    meaning: Annotated[str, "What it is, in words."]
    formula: Annotated[str, "What it computes."]
    gradient: Annotated[str, "Its gradient."]
    source: Annotated[str, "The paper or specification."]
    weights: Annotated[tuple[DescribedParameter, ...], "Its parameters for weights."]
    activations: Annotated[
        tuple[DescribedParameter, ...] | None,
        "Its parameters for activations; null if it is only for weights.",
    ]
    drawn: Annotated[tuple[DescribedParameter, ...], "Its parameters for ptq quantizers show."]


@dataclass(frozen=True)
class Quantizers:
    """What ``ptq quantizers`` prints."""

    quantizers: Annotated[tuple[DescribedQuantizer, ...], "Every quantizer."]


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

        print_json(Quantizers(tuple(map(_described, FAMILIES.values()))))
    else:
        _print_families()


def take_drawn(command: Any) -> Any:
    """Add an option for each setting, whichever families have it; None where it was not given."""
    users: dict[str, list[tuple[str, Setting]]] = {}
    for family in FAMILIES.values():
        for parameter in family.drawn:
            users.setdefault(parameter.name, []).append((family.name, parameter))
    for name, found in reversed(users.items()):
        command = _option(name, found)(command)
    return command


def _option(name: str, found: list[tuple[str, Setting]]) -> Callable[[Any], Any]:
    parameter = found[0][1]
    families = ", ".join(family for family, _ in found)
    default, flag = parameter.default, name.replace("_", "-")
    text = f"{parameter.help.removesuffix('.')} ({families} only).  [default: {shown_value(default)}]"
    if isinstance(default, bool):
        return option(OWN, f"--{flag}/--no-{flag}", name, default=None, help=text)
    metavar = "N" if isinstance(default, int) else "X"
    return option(OWN, f"--{flag}", name, type=type(default), metavar=metavar, help=text)


def shown_value(value: object) -> str:
    """Write a parameter's value; None is one that is found from the values."""
    if value is None:
        return "found"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


@command.command(
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
        from ptq_cli.pipeline.views.tensor_plot import require_plot

        require_plot(plot)
    from ptq_cli.pipeline.views.staircase import staircase_of

    stairs = staircase_of(found, given)
    if plot is not None:
        from ptq_cli.pipeline.views.staircase_plot import write_staircase

        write_staircase(stairs, plot)
    if as_json:
        from ptq_cli.cli.terminal.output import print_json

        print_json(replace(stairs, plot=plot))
    else:
        _print_staircase(stairs, plot)


def _print_families() -> None:
    from ptq_cli.cli.terminal.output import print_table, say, tell
    from ptq_cli.report.text.numbers import Table

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


def _described(family: QuantizerFamily) -> DescribedQuantizer:
    return DescribedQuantizer(
        name=family.name,
        meaning=family.meaning,
        formula=family.formula,
        gradient=family.gradient,
        source=family.source,
        weights=_parameters_of(family.weight_parameters),
        activations=_parameters_of(family.activation_parameters or ()) if family.takes_activations else None,
        drawn=_parameters_of(family.drawn),
    )


def _parameters_of(parameters: Sequence[Setting]) -> tuple[DescribedParameter, ...]:
    return tuple(DescribedParameter(item.name, item.default, item.wanted) for item in parameters)
