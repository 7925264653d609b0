"""How far rounding may carry a model's outputs: the float model with noise where the plan rounds.

Rounding moves a value inside its range by at most half a step. So the float model in which every tensor that
the plan quantizes, every weight and every bias is moved by up to a whole step is at least as far from itself
as the quantized model may be: what it amplifies on the way, by a division or by normalizing what is nearly
equal, the quantized model amplifies likewise. A bias is all that a Conv gives where its filter meets only
padding. In half of the draws each element moves by itself, in the others a tensor moves as one, as it does
where its elements are equal and no mean takes the error away.

Such a bound fits each graph, where one number of decibels would be loose for most and wrong for some. What no
rounding explains breaks it: a wrong scale or zero point, a mask in integers, a clamp that was lost.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.write.pair_nodes import add_initializer, make_add
from ptq_cli.qdq.write.site_parameters import Parameters
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap
from tests.unit.plan.graphs import run

DRAWS = 4


def noise_errors(
    model: ir.Model, plan: Plan, parameters: Parameters, inputs: Mapping[str, Array]
) -> list[float]:
    """Return for each output the largest root mean square that such noise moves it by."""
    reference = run(model, dict(inputs), optimize=False)
    shapes = site_shapes(model, plan, inputs)
    largest = [0.0] * len(reference)
    for seed in range(DRAWS):
        random = np.random.default_rng(seed)
        found = run(
            noisy(model, parameters, shapes, random, whole=seed % 2 == 1), dict(inputs), optimize=False
        )
        errors = [rms(one, other) for one, other in zip(reference, found, strict=True)]
        largest = [max(pair) for pair in zip(largest, errors, strict=True)]
    return largest


def rms(one: Array, other: Array) -> float:
    """Return the root mean square of a difference; 0 of nothing."""
    difference = one.astype(np.float64) - other.astype(np.float64)
    return float(np.sqrt(np.mean(np.square(difference)))) if difference.size else 0.0


def site_shapes(model: ir.Model, plan: Plan, inputs: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor that is quantized."""
    computed = [name for name in plan.activations if name not in inputs]
    arrays = Session(tap(model, computed), threads=1, optimize=False).run(inputs) if computed else []
    shapes = {name: array.shape for name, array in zip(computed, arrays, strict=True)}
    return shapes | {name: array.shape for name, array in inputs.items() if name in plan.activations}


def noisy(
    model: ir.Model,
    parameters: Parameters,
    shapes: Mapping[str, tuple[int, ...]],
    random: np.random.Generator,
    *,
    whole: bool,
) -> ir.Model:
    """Return the model with noise of up to a step, or where ``whole``, each tensor moved by a step as one."""
    result = model.clone()
    graph, names = result.graph, FreshNames.of(result.graph)
    values = {value.name or "": value for value in graph.inputs}
    values |= {value.name or "": value for node in graph for value in node.outputs}
    for site, found in parameters.weights.items():
        constant = graph.initializers[site.tensor].const_value
        if constant is not None:
            array = constant.numpy()
            moved = array + draw(random, array.shape, whole=False) * step_of(found, array.ndim)
            graph.initializers[site.tensor].const_value = ir.tensor(moved.astype(np.float32))
    for name, shape in shapes.items():
        steps = draw(random, shape, whole=whole) * step_of(parameters.activations[name], len(shape))
        _move(graph, values[name], steps.astype(np.float32), names)
    for site, bias in parameters.biases.items():
        constant = graph.initializers[site.tensor].const_value
        if constant is not None:
            steps = draw(random, bias.integers.shape, whole=False) * bias.scale
            moved = constant.numpy() + np.resize(steps, constant.shape.numpy())
            graph.initializers[site.tensor].const_value = ir.tensor(moved.astype(np.float32))
    return result


def draw(random: np.random.Generator, shape: tuple[int, ...], *, whole: bool) -> Array:
    """Return steps: between -1 and 1 each, or all the same 1 or -1."""
    return np.full(shape, random.choice([-1.0, 1.0])) if whole else random.uniform(-1.0, 1.0, shape)


def step_of(parameters: QuantParameters, rank: int) -> Array:
    """Return the scale so that it broadcasts to a tensor."""
    axis = getattr(parameters.granularity, "axis", None)
    shape = [1] * rank
    if axis is not None:
        shape[axis] = -1
    return parameters.scale.reshape(shape)


def _move(graph: ir.Graph, value: ir.Value, steps: Array, names: FreshNames) -> None:
    readers = list(value.uses())
    constant = add_initializer(graph, names.claim(f"{value.name}.noise"), steps)
    add = make_add(value, constant, names.claim(f"{value.name}/noise"))
    producer = value.producer()
    if producer is None:
        graph.insert_before(next(iter(graph)), [add])
    else:
        graph.insert_after(producer, [add])
    for node, index in readers:
        node.replace_input_with(index, add.outputs[0])
    for index, output in enumerate(graph.outputs):
        if output is value and producer is not None:
            graph.outputs[index] = add.outputs[0]
