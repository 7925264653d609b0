"""Older ONNX models are converted upward, to the opset that the quantized form needs.

onnx's own converter does it. It was tried on 76 operators from opset 7 to 12, nested graphs included;
``older_operators`` mends those of which it makes something else. onnxscript's begins at opset 18. Whoever
converts compares the two models on a batch (``ptq_cli.setup.float_model``).
"""

import onnx_ir as ir
from onnx import version_converter
from onnx_ir.passes import PreconditionError
from onnx_ir.passes import common as passes
from onnx_ir.passes.common import InlinePass

from ptq_cli.core.errors import InvalidOnnxError, first_line
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.older_operators import FIRST_RESIZE_WITH_MODES, set_resize_modes, spell_out_older
from ptq_cli.models.shapes import put_back, set_aside

OLDEST_OPSET = 7  # as ONNX Runtime; broadcasting got today's meaning with it
OLDEST_IR_VERSION = 4  # before, each initializer had to be an input as well
WRITTEN_OPSET = 13  # older models are converted to it: QuantizeLinear got its axis
QUARTER_BYTE_OPSET = 25  # the first in which DequantizeLinear reads INT2 and UINT2
DEFAULT_DOMAIN = "ai.onnx"  # in files, beside the empty one that onnx_ir has
SCAN_OF_ONE_SEQUENCE = 9  # before, a Scan had a batch of sequences


def opset_of(model: ir.Model) -> int:
    """Return the version of ONNX's operators that a model uses."""
    return model.opset_imports.get("", model.opset_imports.get(DEFAULT_DOMAIN, 0))


def name_default_domain(model: ir.Model) -> ir.Model:
    """Return the model, changed in place so that its import of ONNX's operators has the empty domain."""
    for imports in [model.opset_imports, *(function.opset_imports for function in model.functions.values())]:
        version = imports.pop(DEFAULT_DOMAIN, None)
        if version is not None:
            imports.setdefault("", version)
    return model


def raise_opset(model: ir.Model, version: int, what: str) -> ir.Model:
    """Return the model in a newer opset, or itself where it is as new already.

    Requires: opset 7 or later. Ensures: inputs, outputs and large constants are as they were, and nodes keep
    their names and metadata. Large constants do not pass through the converter, which would copy them.

    Raises:
        InvalidOnnxError: an operator cannot be converted.
    """
    before = opset_of(model)
    if before >= version:
        return model
    _require_one_sequence(model, before, what)
    model = inline_functions(model)  # A function has an opset of its own.
    model = passes.RemoveInitializersFromInputsPass()(model).model
    model.ir_version = max(model.ir_version, OLDEST_IR_VERSION)
    spell_out_older(model, before)
    large = set_aside(model.graph)
    try:
        proto = version_converter.convert_version(ir.to_proto(model), version)
    # It is C++, and raises what its parts raise.
    except Exception as error:
        raise InvalidOnnxError(
            f"'{what}' cannot be converted from opset {before} to {version}: {first_line(error)}",
            hint=f"export it again with opset {version} or later",
        ) from error
    converted = ir.from_proto(proto)
    if before < FIRST_RESIZE_WITH_MODES:
        set_resize_modes(converted)
    put_back(converted.graph, large)
    _restore_metadata(converted, model)
    return converted


def _require_one_sequence(model: ir.Model, opset: int, what: str) -> None:
    scans = [node for node in every_node(model.graph) if node.op_type == "Scan" and not node.domain]
    if scans and opset < SCAN_OF_ONE_SEQUENCE:
        raise InvalidOnnxError(
            f"'{what}' has a Scan ('{scans[0].name}') of opset {opset}, which runs over a batch of sequences "
            "and has no counterpart in newer opsets",
            hint=f"export it again with opset {SCAN_OF_ONE_SEQUENCE} or later",
        )


def _restore_metadata(converted: ir.Model, original: ir.Model) -> None:
    """Give nodes the metadata of those that they came from, which tell the module path."""
    known = {node.outputs[0].name: node for node in every_node(original.graph) if node.outputs}
    for node in every_node(converted.graph):
        source = known.get(node.outputs[0].name) if node.outputs else None
        if source is not None and source.op_type == node.op_type:
            node.metadata_props.update(source.metadata_props)
            node.name = node.name or source.name
    converted.metadata_props.update(original.metadata_props)


def inline_functions(model: ir.Model) -> ir.Model:
    """Return the model without functions of its own; it may be changed in place."""
    try:
        return InlinePass()(model).model
    except (ValueError, PreconditionError) as error:
        raise InvalidOnnxError(
            f"the functions of the model cannot be inlined: {first_line(error, 300)}",
            hint="export it again with one opset for the model and its functions",
        ) from error
