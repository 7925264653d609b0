"""ONNX's own reference as the judge of a file, and in its place ONNX Runtime where the reference is wrong."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_19

from ptq_cli.core.tensors import Array
from ptq_cli.runtime.session import Session


class _AsRuntime(OpRun):
    """An operator as ONNX Runtime computes it alone and as it is written."""

    def _run(self, *inputs: Array | None, **_attributes: object) -> tuple[Array, ...]:
        node = onnx.NodeProto()
        node.CopyFrom(self.onnx_node)
        fed = {name: array for name, array in zip(node.input, inputs, strict=False) if array is not None}
        graph = helper.make_graph(
            [node],
            "alone",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in fed.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        opset = helper.make_opsetid("", self.run_params["opsets"][""])
        model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
        return tuple(Session(model.SerializeToString(), threads=1, optimize=False).run(fed))


class DequantizeLinear(DequantizeLinear_19):
    """The operator before opset 19, which the reference does not have."""

    op_domain = ""

    def _run(self, *arrays: Array, axis: int = 1, **_later: object) -> tuple[Array]:
        return super()._run(*arrays, axis=axis)


def _as_runtime(op: str) -> type[OpRun]:
    return type(op, (_AsRuntime,), {"op_domain": ""})


# Operators that the reference of onnx 1.23 computes wrongly, with the opset from which it is right.
WRONG: Mapping[str, int] = {
    "AveragePool": 99,  # ceil_mode with pads at the end: an index out of range.
    "BatchNormalization": 14,  # Before, it takes statistics of the batch although it does not train.
    "ConvTranspose": 99,  # The bias of groups.
    "GlobalMaxPool": 99,  # Of volumes.
    "LRN": 99,  # It counts samples where it means channels.
    "LogSoftmax": 13,  # Before, all axes from ``axis`` on are one.
    "LpPool": 99,  # ceil_mode counts what is not there.
    "MaxPool": 99,  # Shapes with pads at the end alone or auto_pad.
    "Softmax": 13,
}


def judged(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """Return every value of the outer graph by its name."""
    opset = max(item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))
    ops = [_as_runtime(op) for op, right in WRONG.items() if opset < right]
    ops += [DequantizeLinear] * (opset < 19)
    with np.errstate(all="ignore"):
        # Some operators are functions that depend on the types of their inputs, and not known inside others.
        model = onnx.shape_inference.infer_shapes(onnx.inliner.inline_local_functions(model))
        return ReferenceEvaluator(model, new_ops=ops).run(None, dict(inputs), intermediate=True)
