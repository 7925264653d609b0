"""Whose rules a quantized file is read by."""

import onnx_ir as ir

from ptq_cli.pipeline.exporting.export import TARGET
from ptq_cli.pipeline.resolve import Request
from ptq_cli.plan.target import Target, load_target, target_names
from ptq_cli.recipe.schema import Recipe


def target_of(model: ir.Model, request: Request, recipe: Recipe) -> Target:
    """Return the target that was asked for, or else the one that the file says it was made for.

    Raises:
        PtqError: the target's table cannot be read; see ``load_target``.
    """
    noted = model.metadata_props.get(TARGET)
    if "target" not in request.settings and noted in target_names():
        return load_target(noted)
    return load_target(recipe.quantization.target)
