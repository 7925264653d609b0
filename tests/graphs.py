"""Models from ONNX's text syntax and arrays; ``unit/plan/graphs.py`` has some with noise as weights."""

from collections.abc import Mapping

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import numpy_helper, parser

NONE: Mapping[str, ArrayLike] = {}


def parsed(
    graph: str, constants: Mapping[str, ArrayLike] = NONE, *, opset: int = 17, ir_version: int = 8
) -> onnx.ModelProto:
    """Return the model of ``(float[N,4] x) => (float[N,2] y) { … }``; integers are of 64 bits."""
    head = graph if graph.lstrip().startswith("<ir_version") else _head(opset, ir_version) + graph
    model = parser.parse_model(head)
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    model.graph.initializer.extend(tensors)
    return model


def _head(opset: int, ir_version: int) -> str:
    return f'<ir_version: {ir_version}, opset_import: ["" : {opset}]> g '
