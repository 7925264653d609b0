"""Whose rules a quantized file is read by."""

import onnx_ir as ir

from ptq_cli.core.errors import UsageError
from ptq_cli.pipeline.run.resolve import Request
from ptq_cli.plan.target.target_file import Target, load_target, target_names
from ptq_cli.qdq.metadata import TARGET
from ptq_cli.recipe.schema import Recipe


def target_of(model: ir.Model, request: Request, recipe: Recipe) -> Target:
    """Return the target that was asked for, or else the one that the file says it was made for.

    Raises:
        UsageError: it was made for a target of a user's own, whose table nobody named.
        PtqError: the target's table cannot be read; see ``load_target``.
    """
    noted = model.metadata_props.get(TARGET)
    if "target" in request.settings or noted is None:
        return load_target(recipe.quantization.target)
    if noted in target_names():
        return load_target(noted)
    target = load_target(recipe.quantization.target)
    if target.name != noted:
        raise UsageError(
            f"the model was made for target '{noted}', which is none of ptq's own",
            hint=f"name its table with --target FILE.toml; --target {target.name} asks for other rules",
        )
    return target
