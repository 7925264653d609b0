"""Whose rules a quantized file is read by."""

import onnx_ir as ir

from ptq_cli.core.errors import UsageError
from ptq_cli.pipeline.resolve import Resolved
from ptq_cli.plan.target.target_file import Target, known_targets
from ptq_cli.qdq.metadata import TARGET


def target_of(model: ir.Model, resolved: Resolved, *, named: bool) -> Target:
    """Return the target that was asked for, or else the one that the file says it was made for.

    Args:
        model: the quantized file's graph.
        resolved: with the recipe's target.
        named: the user named that target now; a preset or an earlier recipe did not.

    Raises:
        UsageError: it was made for a target of a user's own, whose table nobody named.
        PtqError: the target's table cannot be read; see ``load_target``.
    """
    noted = model.metadata_props.get(TARGET)
    target = resolved.target
    if named or noted is None:
        return target
    if noted in known_targets():
        return resolved.for_target(noted).target
    if target.name != noted:
        raise UsageError(
            f"the model was made for target '{noted}', which is not one of ptq's own",
            hint=f"pass its file with --target FILE.toml; --target {target.name} asks for other rules",
        )
    return target
