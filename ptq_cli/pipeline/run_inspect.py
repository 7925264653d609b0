"""``inspect``: what a model is made of, what would be or is quantized, and what not and why."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.documents import HIDDEN
from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.core.tensors import TensorSpec, sizes_of
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.models.batch_axes import note_told_axes
from ptq_cli.models.graph_reading import every_node, value_spec
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.models.loading.source import ModelKind, ModelSource, SourceFile
from ptq_cli.models.pair_operators import DYNAMIC_LSTM
from ptq_cli.pipeline.exported_file import unusual_layers
from ptq_cli.placement.placed_graph import place
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates, multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.proof.stored_layers import (
    LayerFormats,
    layer_constants,
    parameter_count,
    planned_formats,
    quantized_plan,
    stored_formats,
)
from ptq_cli.qdq.read.padded_channels import without_padding
from ptq_cli.qdq.read.quantized_file import MetadataKey, is_quantized, named
from ptq_cli.qdq.read.stored_constants import dynamic_parts, product_of, with_products
from ptq_cli.setup.example_inputs import Shapes
from ptq_cli.setup.float_model import float_model_of, open_source
from ptq_cli.setup.resolve import Request, Resolved, resolve, target_of
from ptq_cli.setup.served_inputs import as_recordings, own_batch_size


@dataclass(frozen=True, kw_only=True)
class InspectedLayer(LayerEntry):
    """A layer that could be quantized."""

    output: Annotated[
        tuple[int | None, ...] | None,
        "Shape of what it computes; null where a size is not known, and null if nothing is known.",
    ]
    parameters: Annotated[int, "How many numbers its weight and bias have."]
    multiply_accumulates: Annotated[
        int | None, "How much it computes for a sample; null if that is not known."
    ]
    activations: Annotated[str | None, "The format of its inputs; null if they stay in float."]
    weight_format: Annotated[
        str | None, "The format of its weight; null if it stays in float, or if there is none."
    ]
    weight: Annotated[str, "How its weight is stored; empty for the target's default integers."]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a model is made of."""

    DERIVED: ClassVar[tuple[str, ...]] = (
        "target",
        "multiply_accumulates",
        "assumed_sizes",
        "counted_for_one_step",
        "layers",
    )

    file: Annotated[SourceFile, "The model's file, and of which kind it is."]
    inputs: Annotated[tuple[TensorSpec, ...], "Of the model."]
    outputs: Annotated[tuple[TensorSpec, ...], "Of the model."]
    parameters: Annotated[int, "How many numbers its constants have; a tied weight counts once."]
    plan: Annotated[Plan, HIDDEN]
    shapes: Annotated[Mapping[str, tuple[int | None, ...] | None], HIDDEN]
    parity: Annotated[
        float | None,
        "Largest relative difference of the float ONNX model to its source, or None if it was not "
        "compared: ONNX that no pass rewrote, or that made-up inputs do not fit.",
    ]
    work: Annotated[MultiplyAccumulates, HIDDEN]
    formats: Annotated[Mapping[str, LayerFormats], HIDDEN]
    constants: Annotated[Mapping[str, Mapping[str, int]], HIDDEN]
    quantized: Annotated[
        bool, "The model holds its Q/DQ already; layers are then as they are, by the target's rules."
    ]
    notes: Annotated[tuple[str, ...], "What a user should know of the inputs."] = ()

    @property
    def target(self) -> str:
        """The target whose rules were applied."""
        return self.plan.target

    @property
    def multiply_accumulates(self) -> int:
        """How much the model computes for a sample, as far as it is known."""
        return self.work.total

    @property
    def assumed_sizes(self) -> Mapping[str, int]:
        """Sizes that this counts with because they are not fixed, by ``input[axis]``."""
        return self.work.assumed

    @property
    def counted_for_one_step(self) -> Mapping[str, str]:
        """Operators inside loops, with the loop that they were counted for one step of."""
        return self.work.once

    @property
    def layers(self) -> tuple[InspectedLayer, ...]:
        """Each layer that could be quantized."""
        return tuple(
            InspectedLayer(
                name=layer.name,
                op=layer.op,
                integer=layer.quantized,
                reason=layer.reason,
                output=self.shapes[layer.name],
                parameters=layer.parameters,
                multiply_accumulates=self.work.counts[layer.name],
                activations=self.formats[layer.name].activations,
                weight_format=self.formats[layer.name].weight,
                weight=layer.weight,
            )
            for layer in self.plan.layers
        )


def run_inspect(request: Request) -> Inspection:
    """Inspect a model, a float one or one with Q/DQ; nothing is calibrated and nothing written."""
    resolved = resolve(request)
    source = open_source(resolved.recipe.model)
    settings, dataset = resolved.recipe.calibration, None
    # An ONNX file tells itself what its inputs look like, so that a recipe's data may be gone.
    is_told = source.file.kind is ModelKind.ONNX or resolved.recipe.model.input_shape
    if settings.data is not None and ("data" in request.settings or not is_told):
        dataset = resolved.strict_reading().open(settings.data, settings.samples)
    already = _quantized_graph(source)
    if already is None:
        return _inspect_float(source, resolved, dataset)
    # What is float in a model that ptq made was left so; in any other it would be quantized beside the pairs.
    noted = already.metadata_props
    is_looked_up = MetadataKey.QUANTIZERS in noted and not _has_integers_without_pairs(already)
    if (
        MetadataKey.FLOAT_SHA256 not in noted or is_looked_up
    ):  # A weight that is looked up is shown as one again.
        with suppress(NothingToQuantizeError):
            return _inspect_float(source, resolved, dataset)
    notes = note_told_axes(already, resolved.recipe.data.batch_axis, source.file.path.name)
    if dataset is not None:
        bind_inputs(as_recordings(dataset, resolved.recipe.data, already), input_specs(already))
    target = target_of(already, resolved, named="target" in request.settings)
    plan, formats = quantized_plan(already, target), stored_formats(already)
    plan = _with_exported_reasons(plan, already, source.file.path.name)
    shapes = resolved.recipe.model.input_shape
    inspection = _inspection(source.file, already, plan, shapes, None, formats, quantized=True)
    return replace(inspection, notes=notes)


def _has_integers_without_pairs(model: ir.Model) -> bool:
    """Return whether a graph has weights that a float graph would not show to be integers."""
    return any(
        node.op_type == DYNAMIC_LSTM or product_of(node) is not None for node in every_node(model.graph)
    )


def _quantized_graph(source: ModelSource) -> ir.Model | None:
    """Return a copy of a model that holds Q/DQ, as it is in its file; None of any other."""
    if source.file.kind is not ModelKind.ONNX:
        return None
    model = source.to_onnx({})
    return named(without_padding(model.clone())) if is_quantized(model) else None


def _with_exported_reasons(plan: Plan, quantized: ir.Model, name: str) -> Plan:
    """Return the plan with what ``ptq export`` noted: why a layer is float that the rules would quantize."""
    noted = unusual_layers(quantized.metadata_props, name)
    layers = (
        layer if layer.quantized else replace(layer, reason=noted.get(layer.name) or layer.reason)
        for layer in plan.layers
    )
    return replace(plan, layers=tuple(layers))


def _inspect_float(source: ModelSource, resolved: Resolved, dataset: Dataset | None) -> Inspection:
    recipe, target = resolved.recipe, resolved.target
    shapes = recipe.model.input_shape
    model, told = float_model_of(resolved, source, dataset)
    graph = model.model
    target_plan = make_plan(graph, target, may_be_empty=True)
    plan = place(graph, target_plan, target, tensor_recipe(recipe), may_be_empty=True).plan
    inspection = _inspection(model.file, graph, plan, shapes, model.parity, planned_formats(plan, graph))
    return replace(inspection, notes=(*source.notes, *told))


def _inspection(
    file: SourceFile,
    model: ir.Model,
    plan: Plan,
    shapes: Shapes,
    parity: float | None,
    formats: Mapping[str, LayerFormats],
    *,
    quantized: bool = False,
) -> Inspection:
    graph = model.graph
    inputs = input_specs(model)
    batch = own_batch_size(inputs)
    # Of one sample: a model that fixes another batch size is counted for that.
    given = {name: tuple(shape) for name, shape in shapes.items()}
    sizes = given if batch else sizes_of(inputs, given, 1)
    return Inspection(
        file=file,
        inputs=inputs,
        outputs=tuple(value_spec(value) for value in graph.outputs),
        parameters=parameter_count(model),
        plan=plan,
        shapes={node.name or "": _shape(node.outputs[0]) for node in every_node(graph)},
        parity=parity,
        work=with_products(multiply_accumulates(model, sizes), dynamic_parts(model)).of_one(batch or 1),
        formats=formats,
        constants=layer_constants(model),
        quantized=quantized,
    )


def _shape(value: ir.Value) -> tuple[int | None, ...] | None:
    return value_spec(value).shape if value.shape is not None else None
