"""Which layers to leave in float, the cheapest first: by the noise that each adds on its own."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx_ir as ir

from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.pipeline.inspection.analysis_subject import pieces_of
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.stages.cut_stages import cut_stages
from ptq_cli.qdq.stages.staged_model import StagedModel, Tensors
from ptq_cli.recipe.schema import SIZE

STAGE = "ranking layers"
LEVELS = 8
"""Times that the noise is halved: 24 dB."""
LEAST_SHARE = 1e-4
"""Of the whole cost: what a layer without products costs, such as an Add."""


def layer_noise(
    twins: TwinGraphs,
    plan: Plan,
    dataset: Dataset,
    inputs: Sequence[TensorSpec],
    *,
    batch_size: int,
    threads: int,
    progress: ProgressCallback,
) -> dict[str, float]:
    """Return the noise that each layer adds to the outputs when it alone is quantized.

    Args:
        twins: the float and the quantized model.
        plan: of the quantized one.
        dataset: the samples to measure on.
        inputs: of the model.
        batch_size: samples that are run together.
        threads: each runs a model of its own; the result does not depend on them.
        progress: is called after each piece of the data.

    Units:
        shares of what an output varies by, the mean over all outputs.

    Raises:
        RuntimeFailedError: ONNX Runtime failed.
    """
    outputs = [value.name or "" for value in twins.float_model.graph.outputs if value.const_value is None]
    stages = cut_stages(twins, {layer.name for layer in plan.layers if layer.quantized})
    staged = StagedModel(stages, twins.pairs, outputs[0], outputs)
    names = list(staged.layers)
    noise: dict[str, dict[str, float]] = {name: dict.fromkeys(outputs, 0.0) for name in names}
    signal = dict.fromkeys(outputs, 0.0)
    done = 0
    with ThreadPoolExecutor(threads, "rank") as pool:
        progress(Progress(STAGE, 0, dataset.count))
        for piece in pieces_of(dataset, inputs, batch_size, staged):
            tensors = staged.run(piece.inputs, quantized=False)
            wanted = {name: staged.floats(name, tensors[name]) for name in outputs}

            def alone(
                layer: str, base: Tensors = tensors, exact: Mapping[str, Array] = wanted
            ) -> dict[str, float]:
                found = staged.changed_outputs(layer, base, quantized=True)
                return {name: _difference(exact[name], found[name]) for name in outputs}

            for layer, found in zip(names, pool.map(alone, names), strict=True):
                noise[layer] = {name: noise[layer][name] + found[name] for name in outputs}
            signal = {name: signal[name] + _power(wanted[name]) for name in outputs}
            done += piece.size
            progress(Progress(STAGE, done, dataset.count))
    return {
        layer: sum(found[name] / signal[name] for name in outputs if signal[name] > 0.0)
        for layer, found in noise.items()
    }


def _difference(wanted: Array, found: Array) -> float:
    """Return the squared difference; of integers how many differ, of other shapes all that there is."""
    if wanted.shape != found.shape:
        return _power(wanted)
    if wanted.dtype.kind != "f":
        return float(np.count_nonzero(wanted != found))
    return float(np.sum((wanted.astype(np.float64) - found.astype(np.float64)) ** 2))


def _power(array: Array) -> float:
    return float(array.size) if array.dtype.kind != "f" else float(np.sum(array.astype(np.float64) ** 2))


def layer_costs(model: ir.Model, plan: Plan, names: Collection[str], prefer: str) -> dict[str, float]:
    """Return what each layer costs if it stays in float.

    Args:
        model: the float model.
        plan: of the quantized one.
        names: of the layers.
        prefer: ``"size"``: as many as its weights; otherwise as many as the products that it sums up.
    """
    if prefer == SIZE:
        counts: Mapping[str, int | None] = {layer.name: layer.parameters for layer in plan.layers}
    else:
        counts = multiply_accumulates(model).counts
    found = {name: float(counts.get(name) or 0) for name in names}
    least = LEAST_SHARE * sum(found.values()) or 1.0
    return {name: max(count, least) for name, count in found.items()}


def layers_by_level(
    noise: Mapping[str, float], cost: Mapping[str, float], levels: int
) -> tuple[tuple[str, ...], ...]:
    """Return which layers to leave in float so that a half, a quarter, an eighth … of the noise is left.

    Layers come in the order of what they take away for what they cost.

    Args:
        noise: that each layer adds on its own.
        cost: of each layer in float.
        levels: how many times the noise is halved, at most.

    Edge case:
        Some layer always stays quantized.

    Example:
        >>> layers_by_level({"a": 6.0, "b": 3.0, "c": 1.0}, {"a": 2.0, "b": 1.0, "c": 1.0}, 3)
        (('a',), ('a', 'b'))
    """
    order = sorted(noise, key=lambda name: (-noise[name] / cost[name], name))
    total, found = sum(noise.values()), []
    for level in range(1, levels + 1):
        left, count = total, 0
        while count < len(order) and left > total / 2**level:
            left -= noise[order[count]]
            count += 1
        layers = tuple(order[:count])
        if 0 < count < len(order) and layers not in found:
            found.append(layers)
    return tuple(found)
