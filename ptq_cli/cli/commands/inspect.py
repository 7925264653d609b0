"""``ptq inspect``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.terminal.options.help_sections import OWN, SectionCommand, option
from ptq_cli.terminal.options.model_options import (
    EXCLUDE,
    MODEL_ARGUMENT,
    MODEL_SOURCE,
    OVERRIDE,
    TARGET,
    WEIGHT_BITS,
    data_option,
)
from ptq_cli.terminal.options.shared_options import GLOBALS, RECIPES, request_from, take


@click.command(
    cls=SectionCommand,
    short_help="Show which layers are quantized, and why others are not.",
    epilog="""\b
Examples:
  ptq inspect model.pt
  ptq inspect model.onnx --target ort-cpu --depth 2
  ptq inspect ptq-run/model.int8.onnx --all
  ptq inspect model.pt --arch model.py:build --input-shape image=1,3,224,224
""",
)
@option(
    OWN,
    "--depth",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show N levels of modules, with totals for what is below.",
)
@option(OWN, "--all", "show_all", is_flag=True, help="List every layer by its full name.")
@data_option("Data that give the shapes of the model's inputs.")
@take(MODEL_ARGUMENT, MODEL_SOURCE, TARGET, WEIGHT_BITS, EXCLUDE, OVERRIDE, RECIPES, GLOBALS)
def command(
    model: Path | None,
    as_json: bool,
    depth: int | None,
    show_all: bool,
    **options: Any,
) -> None:
    """Show which layers of MODEL would be quantized, and why the others would not.

    If MODEL already has QuantizeLinear and DequantizeLinear, its layers are shown as they are. Layers are
    listed below their modules with totals for each module; blocks that repeat are shown once. Nothing is
    calibrated and nothing is written.
    """
    from ptq_cli.pipeline.run_inspect import run_inspect
    from ptq_cli.shown.inspection_tree import print_inspection
    from ptq_cli.terminal.output import print_json

    result = run_inspect(request_from(options, model))
    if as_json:
        print_json(result)
    else:
        print_inspection(result, depth=depth, show_all=show_all)
