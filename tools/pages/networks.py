"""Tiny networks of the kinds that people bring, whose last layer is fitted to what they are to find.

The weights of the other layers are random; the last one is the solution of least squares on samples that are
made here. So these networks do their task, and are made in less than a second.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import numpy_helper

Floats = npt.NDArray[np.float32]
AnyArray = npt.NDArray[Any]
Arrays = Mapping[str, AnyArray]

DETECTOR = """<ir_version: 10, opset_import: ["": 17]>
detector (float[n, 3, 64, 64] images) => (float[n, 7, 64] output) {
    [backbone__0] a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]>
        (images, backbone__0__weight, backbone__0__bias)
    ra = Relu (a)
    [backbone__1] b = Conv <strides = [2, 2], pads = [1, 1, 1, 1]>
        (ra, backbone__1__weight, backbone__1__bias)
    rb = Relu (b)
    [backbone__2] c = Conv <strides = [2, 2], pads = [1, 1, 1, 1]>
        (rb, backbone__2__weight, backbone__2__bias)
    features = Relu (c)
    [head__predict] found = Conv (features, head__weight, head__bias)
    [decode__flat] flat = Reshape (found, flat_shape)
    [decode__split] box, score = Split <axis = 1> (flat, parts)
    [decode__grid] moved = Add (box, grid)
    [decode__stride] pixels = Mul (moved, stride)
    [decode__scores] scores = Sigmoid (score)
    [decode__join] output = Concat <axis = 1> (pixels, scores)
}"""
READER = """<ir_version: 10, opset_import: ["": 17]>
reader (float[n, 1, 16, 96] image) => (float[24, n, 11] output) {
    [conv__0] a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (image, conv__0__weight, conv__0__bias)
    ra = Relu (a)
    [conv__1] b = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (ra, conv__1__weight, conv__1__bias)
    rb = Relu (b)
    columns = Transpose <perm = [3, 0, 1, 2]> (rb)
    steps = Reshape (columns, steps_shape)
    [lstm] both = LSTM <direction = "bidirectional", hidden_size = 64> (steps, lstm__w, lstm__r, lstm__b)
    beside = Transpose <perm = [0, 2, 1, 3]> (both)
    features = Reshape (beside, features_shape)
    [characters] product = MatMul (features, head__weight)
    output = Add (product, head__bias)
}"""
LISTENER = """<ir_version: 10, opset_import: ["": 17]>
listener (float[n, 128] input, float[2, n, 48] state, int64 sr)
    => (float[n, 1] output, float[2, n, 48] stateN) {
    rate = Cast <to = 1> (sr)
    gain = Div (rate, usual_rate)
    scaled = Mul (input, gain)
    [filters] heard = MatMul (scaled, filters__weight)
    loud = Abs (heard)
    [mix] mixed = MatMul (loud, mix__weight)
    [memory] kept = MatMul (state, memory__weight)
    sum = Add (kept, mixed)
    stateN = Tanh (sum)
    last = Gather <axis = 0> (stateN, zero)
    [decide] score = MatMul (last, head__weight)
    biased = Add (score, head__bias)
    output = Sigmoid (biased)
}"""
ENCODER = """<ir_version: 10, opset_import: ["": 17]>
encoder (int64[n, t] input_ids, int64[n, t] attention_mask) => (float[n, t, 64] last_hidden_state) {
    [embeddings] words = Gather (table, input_ids)
    [query] q = MatMul (words, query__weight)
    [key] k = MatMul (words, key__weight)
    [value] v = MatMul (words, value__weight)
    turned = Transpose <perm = [0, 2, 1]> (k)
    [scores] alike = MatMul (q, turned)
    known = Cast <to = 1> (attention_mask)
    absent = Sub (one, known)
    far = Mul (absent, huge)
    row = Unsqueeze (far, second)
    kept = Add (alike, row)
    shares = Softmax <axis = -1> (kept)
    [context] read = MatMul (shares, v)
    first = Add (words, read)
    normal = LayerNormalization <axis = -1> (first, scales, zeros)
    [up] wide = MatMul (normal, up__weight)
    active = Relu (wide)
    [down] narrow = MatMul (active, down__weight)
    last = Add (normal, narrow)
    last_hidden_state = LayerNormalization <axis = -1> (last, scales, zeros)
}"""

CLASSIFIER = (
    ENCODER.replace("float[n, t, 64] last_hidden_state)", "float[n, 2] logits)").removesuffix("}")
    + """    mean = ReduceMean <axes = [1], keepdims = 0> (last_hidden_state)
    [classify] logits = Gemm (mean, head__weight, head__bias)
}"""
)


def build(text: str, constants: Arrays) -> onnx.ModelProto:
    """Return a model from its graph as text, where two underscores stand for a dot, and its constants."""
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.name = node.name.replace("__", ".")
        node.input[:] = [name.replace("__", ".") for name in node.input]
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    onnx.checker.check_model(model)
    return model


def random_weight(random: np.random.Generator, *shape: int, inputs: int) -> Floats:
    """Return normal values whose sums over ``inputs`` values keep the size of what they read."""
    weight: Floats = (random.standard_normal(shape) * (2.0 / inputs) ** 0.5).astype(np.float32)
    return weight


def features_of(model: onnx.ModelProto, value: str, inputs: Arrays) -> Floats:
    """Return what a model computes for one of its values."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.append(onnx.helper.make_empty_tensor_value_info(value))
    session = onnxruntime.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run([value], dict(inputs))
    return np.asarray(found)


def fitted(rows: Floats, targets: Floats, ridge: float) -> tuple[Floats, Floats]:
    """Return the weight [features, outputs] and the bias of a linear layer, by least squares."""
    inputs = np.column_stack([rows, np.ones(len(rows))]).astype(np.float64)
    squares = inputs.T @ inputs + ridge * np.eye(inputs.shape[1])
    solved = np.linalg.solve(squares, inputs.T @ targets).astype(np.float32)
    return np.asarray(solved[:-1]), np.asarray(solved[-1])


def replace_constants(model: onnx.ModelProto, constants: Arrays) -> None:
    """Put other values in the place of a model's constants."""
    for item in model.graph.initializer:
        if item.name in constants:
            item.CopyFrom(numpy_helper.from_array(np.asarray(constants[item.name]), item.name))


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model with the shapes that can be inferred."""
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
