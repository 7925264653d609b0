"""How far rounding may carry a quantized model's outputs: the same file with noise behind its pairs.

Rounding moves a value inside its range by at most half a step. So the file in which every tensor that it
dequantizes, activation, weight or bias, is moved by up to a whole step is at least as far from itself as the
float model may be: what a network amplifies on the way, by a division or by normalizing what is nearly equal,
it amplifies either way. A bias is all that a Conv gives where its filter meets only padding. In half of the
draws each element moves by itself, in the others a tensor moves as one, as it does where its elements are
equal and no mean takes the error away.

Such a bound fits each graph, where one number of decibels would be loose for most and wrong for some. What no
rounding explains breaks it: a wrong scale or zero point, a mask in integers, a clamp that was lost.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ptq_cli.core.tensors import Array
from ptq_cli.models.pair_operators import DEQUANTIZE
from ptq_cli.runtime.session import Session

DRAWS = 4


def noise_errors(
    model: onnx.ModelProto, values: Mapping[str, Array], inputs: Mapping[str, Array]
) -> dict[str, float]:
    """Return for each output the largest root mean square that such noise moves it by.

    Args:
        model: the quantized file.
        values: of its outer graph, by name, for these inputs.
        inputs: of one batch.
    """
    largest = dict.fromkeys((output.name for output in model.graph.output), 0.0)
    for seed in range(DRAWS):
        content = noisy(model, values, np.random.default_rng(seed), whole=seed % 2 == 1).SerializeToString()
        session = Session(content, threads=1, optimize=False)
        for name, found in zip(session.outputs, session.run(inputs), strict=True):
            largest[name] = max(largest[name], rms(values[name], found))
    return largest


def rms(one: Array, other: Array) -> float:
    """Return the root mean square of a difference; 0 of nothing, and of infinities that are the same."""
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, one.astype(np.float64) - other.astype(np.float64))
    return float(np.sqrt(np.mean(np.square(difference)))) if difference.size else 0.0


def noisy(
    model: onnx.ModelProto, values: Mapping[str, Array], random: np.random.Generator, *, whole: bool
) -> onnx.ModelProto:
    """Return the file with noise of up to a step, or where ``whole``, each tensor moved by a step as one."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    made: list[onnx.TensorProto] = []
    _move(result.graph, dict(values), random, made, whole=whole)
    result.graph.initializer.extend(made)
    return result


def _move(
    graph: onnx.GraphProto,
    values: dict[str, Array],
    random: np.random.Generator,
    made: list[onnx.TensorProto],
    *,
    whole: bool,
) -> None:
    values |= {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    stored = {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    # Integers behind a Cast and a Mul by their scale, where a runtime keeps each DequantizeLinear.
    products = {node.output[0] for node in graph.node if node.op_type == "Cast" and node.input[0] in stored}
    nodes = []
    for node in graph.node:
        nodes.append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _move(attribute.g, dict(values), random, made, whole=whole)
        if node.op_type != DEQUANTIZE and not (node.op_type == "Mul" and node.input[0] in products):
            continue
        # What a nested graph computes is not known: one number moves all of it.
        source = values.get(node.input[0])
        shape = () if source is None else source.shape
        steps = draw(random, shape, whole=whole) * _scale(node, values[node.input[1]], len(shape))
        name, found = f"noise.{len(made)}", node.output[0]
        made.append(numpy_helper.from_array(np.asarray(steps, np.float32), name))
        node.output[0] = f"{found}.raw"
        nodes.append(helper.make_node("Add", [node.output[0], name], [found], name))
    del graph.node[:]
    graph.node.extend(nodes)


def draw(random: np.random.Generator, shape: tuple[int, ...], *, whole: bool) -> Array:
    """Return steps: between -1 and 1 each, or all the same 1 or -1."""
    return np.full(shape, random.choice([-1.0, 1.0])) if whole else random.uniform(-1.0, 1.0, shape)


def _scale(node: onnx.NodeProto, scale: Array, rank: int) -> Array:
    """Return the scale so that it broadcasts to a tensor of this rank."""
    if scale.ndim != 1 or rank == 0:
        return np.max(scale) if rank == 0 else scale
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    shape = [1] * rank
    shape[axis if scale.size > 1 else 0] = -1
    return scale.reshape(shape)
