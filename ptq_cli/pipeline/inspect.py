"""``inspect``: what a model is made of, what would be quantized, and what not and why."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.calibdata.open import open_dataset
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.models.detect import ModelKind
from ptq_cli.models.onnx_source import value_spec
from ptq_cli.models.source import ModelFile
from ptq_cli.pipeline.float_model import make_float_model, open_source
from ptq_cli.pipeline.placement import place
from ptq_cli.pipeline.resolve import Request, resolve
from ptq_cli.plan.sites import Plan


@dataclass(frozen=True)
class Inspection:
    """What a model is made of.

    Attributes:
        file: the model's file, and of which kind it is.
        inputs, outputs: specs.
        parameters: how many constants' elements the graph holds.
        plan: what the target would quantize, with each layer's reason.
        shapes: shape of each layer's first output, by the layer's name.
        parity: largest relative difference of the float ONNX model to its source, or None where it was not
            compared: ONNX that no pass rewrote, or that made-up inputs do not fit.
    """

    file: ModelFile
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
    plan: Plan
    shapes: Mapping[str, tuple[int | None, ...]]
    parity: float | None


def run_inspect(request: Request) -> Inspection:
    """Inspect a model; nothing is calibrated and nothing written.

    Raises:
        PtqError: the recipe, the model or the data cannot be used.
    """
    recipe = resolve(request)
    source = open_source(recipe)
    dataset = None
    # An ONNX file tells itself what its inputs look like, and nothing is run through it.
    is_told = source.file.kind is ModelKind.ONNX or recipe.model.input_shape
    if recipe.calibration.data is not None and not is_told:
        dataset = open_dataset(recipe.calibration.data, recipe.image, samples=recipe.calibration.samples)
    model = make_float_model(source, recipe, dataset)
    graph = model.model.graph
    return Inspection(
        model.file,
        model.inputs,
        tuple(value_spec(value) for value in graph.outputs),
        _parameters(graph),
        place(model.model, recipe).plan,
        {node.name or "": value_spec(node.outputs[0]).shape for node in graph},
        model.parity,
    )


def _parameters(graph: ir.Graph) -> int:
    return sum(
        value.const_value.size for value in graph.initializers.values() if value.const_value is not None
    )
