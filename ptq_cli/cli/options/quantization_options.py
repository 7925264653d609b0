"""Options about ranges, quantizers and single layers."""

import click

from ptq_cli.cli.help_sections import LAYERS, RANGES, WEIGHTS, option
from ptq_cli.cli.options import completion
from ptq_cli.cli.options.completion import complete_names
from ptq_cli.cli.options.option_values import NameList

AMAX = option(
    RANGES,
    "--amax",
    shell_complete=complete_names(completion.amax_methods),
    metavar="METHOD",
    help="Method for activation ranges: auto, max, percentile, entropy or mse.  [default: auto]",
)
RECOVER = option(
    WEIGHTS,
    "--recover",
    type=NameList(),
    shell_complete=complete_names(completion.rungs),
    metavar="NAME,…",
    help="Recover accuracy with the calibration data: equalize, smooth, ranges, weighed, round, all, auto or "
    "none.  [default: auto]",
)
WEIGHT_BITS = option(WEIGHTS, "--weight-bits", type=int, metavar="N", help="Bits per weight.")
EXCLUDE = option(
    LAYERS,
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Keep the matching layers in float: 'head.*'. Can be repeated.",
)
OVERRIDE = option(
    LAYERS,
    "--override",
    multiple=True,
    metavar="PATTERN:KEY=VALUE,…",
    help="Settings for the matching layers: 'head.*:weights.bits=4'. Can be repeated.",
)
PREFER = option(
    LAYERS,
    "--prefer",
    type=click.Choice(("accuracy", "latency", "size")),
    help="latency keeps the layers in float that run faster so on this machine; size quantizes every layer "
    "that the target can.  [default: accuracy]",
)
