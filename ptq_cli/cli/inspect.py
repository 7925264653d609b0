"""``ptq inspect``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.cli.options import (
    IMAGE,
    JSON,
    MODEL,
    MODEL_ARGUMENT,
    QUANTIZERS,
    RECIPES,
    TARGET,
    THREADS,
    settings_from,
    take,
)

if TYPE_CHECKING:
    from ptq_cli.pipeline.inspect import Inspection


@click.command(
    short_help="Show layers: quantized, or why not.",
    epilog="""\b
Examples:
  ptq inspect model.pt
  ptq inspect model.onnx --target ort-cpu
  ptq inspect model.pt --arch model.py:build --input-shape x=1,3,224,224
""",
)
@click.option("--data", metavar="PATH", help="Data that show what the inputs look like.")
@take(MODEL_ARGUMENT, MODEL, IMAGE, QUANTIZERS, TARGET, THREADS, RECIPES, JSON)
def command(
    model: Path | None, recipe: Path | None, preset: str | None, as_json: bool, **options: Any
) -> None:
    """Show MODEL's layers: what would be quantized, and what not and why.

    Nothing is calibrated and nothing is written.
    """
    from ptq_cli.cli.output import print_json
    from ptq_cli.pipeline.inspect import run_inspect
    from ptq_cli.pipeline.resolve import Request

    result = run_inspect(Request(settings_from(options), model, recipe, preset))
    if as_json:
        print_json(_values(result))
    else:
        _print(result)


def _print(result: "Inspection") -> None:
    from ptq_cli.cli.output import print_table, say
    from ptq_cli.core.tensors import format_shape
    from ptq_cli.report.summary import Table

    layers = result.plan.layers
    rows = tuple(
        (
            layer.name,
            layer.op,
            format_shape(result.shapes[layer.name]),
            f"{layer.parameters:,}" if layer.parameters else "",
            "; ".join(filter(None, ("int8" if layer.quantized else "float", layer.weight))),
            layer.reason,
        )
        for layer in layers
    )
    say(f"{result.file.path.name}: {result.file.kind.value}, {result.parameters:,} parameters")
    say(f"inputs:  {', '.join(map(str, result.inputs))}")
    say(f"outputs: {', '.join(map(str, result.outputs))}")
    print_table(
        Table(("layer", "op", "output", "parameters", "as", "reason"), rows),
        right=(3,),
        whole=(0, 1, 2, 3, 4),
        optional=(1, 2, 3),
    )
    say(f"{sum(layer.quantized for layer in layers)} of {len(layers)} layers for {result.plan.target}")


def _values(result: "Inspection") -> dict[str, Any]:
    return {
        "model": str(result.file.path),
        "kind": result.file.kind.value,
        "sha256": result.file.sha256,
        "parameters": result.parameters,
        "inputs": [_spec(spec) for spec in result.inputs],
        "outputs": [_spec(spec) for spec in result.outputs],
        "target": result.plan.target,
        "parity": result.parity,
        "layers": [
            {
                "name": layer.name,
                "op": layer.op,
                "output": list(result.shapes[layer.name]),
                "parameters": layer.parameters,
                "integer": layer.quantized,
                "weight": layer.weight,
                "reason": layer.reason,
            }
            for layer in result.plan.layers
        ],
    }


def _spec(spec: Any) -> dict[str, Any]:
    return {"name": spec.name, "dtype": str(spec.dtype), "shape": list(spec.shape)}
