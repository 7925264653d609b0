"""``ptq inspect``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.cli.options import (
    IMAGE,
    JSON,
    MODEL,
    MODEL_ARGUMENT,
    OVERRIDES,
    QUANTIZERS,
    RECIPES,
    TARGET,
    THREADS,
    settings_from,
    take,
)


@click.command(
    short_help="Show layers: quantized, or why not.",
    epilog="""\b
Examples:
  ptq inspect model.pt
  ptq inspect model.onnx --target ort-cpu --depth 2
  ptq inspect ptq-run/model.int8.onnx --all
  ptq inspect model.pt --arch model.py:build --input-shape x=1,3,224,224
""",
)
@click.option("--data", metavar="PATH", help="Data that show what the inputs look like.")
@click.option("--depth", type=click.IntRange(min=1), metavar="N", help="Show modules N deep, then totals.")
@click.option("--all", "show_all", is_flag=True, help="List every layer by its whole name.")
@take(MODEL_ARGUMENT, MODEL, IMAGE, QUANTIZERS, OVERRIDES, TARGET, THREADS, RECIPES, JSON)
def command(
    model: Path | None,
    recipe: Path | None,
    preset: str | None,
    as_json: bool,
    depth: int | None,
    show_all: bool,
    **options: Any,
) -> None:
    """Show MODEL's layers: what would be quantized, and what not and why.

    MODEL may hold its QuantizeLinear/DequantizeLinear already: then its layers are shown as they are.
    Layers stand below their modules, blocks that repeat are shown once, and modules have their totals.
    Nothing is calibrated and nothing is written.
    """
    from ptq_cli.cli.shown.inspection_tree import inspection_values, print_inspection
    from ptq_cli.cli.shown.output import print_json
    from ptq_cli.pipeline.inspection.run_inspect import run_inspect
    from ptq_cli.pipeline.run.resolve import Request

    result = run_inspect(
        Request(settings=settings_from(options), model=model, recipe_file=recipe, preset=preset)
    )
    if as_json:
        print_json(inspection_values(result))
    else:
        print_inspection(result, depth=depth, show_all=show_all)
