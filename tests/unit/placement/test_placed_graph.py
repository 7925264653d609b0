"""The proof reads the exported graph: it finds a scale there that is not a power of two."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.placement.placed_graph import prove_powers_of_two
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import ActivationSettings, WeightSettings
from tests.placements import placed

RECIPE = replace(
    Recipe(),
    weights=WeightSettings(quantizer="fixed_point"),
    activations=ActivationSettings(quantizer="fixed_point"),
)
FLAGS = {"weight_quantizer": "fixed_point", "activation_quantizer": "fixed_point"}


@pytest.fixture
def proven(finished, request_with):
    """The exported graph, and the placement of the float model."""
    run_export(request_with(**FLAGS), finished)
    placement = placed(ir.from_proto(onnx.load(finished.float_model)), RECIPE)
    return ir.from_proto(onnx.load(finished.quantized_model)), placement


def test_every_scale_of_the_file_is_a_power_of_two(proven):
    model, placement = proven
    prove_powers_of_two(model, placement, placement.plan)
    names = [name for name in model.graph.initializers if name.endswith(".scale")]
    assert names == ["fc.weight.scale", "x.scale"]
    for name in names:
        mantissa, _ = np.frexp(model.graph.initializers[name].const_value.numpy())
        assert (mantissa == 0.5).all()


@pytest.mark.parametrize("name", ["fc.weight.scale", "x.scale"])
def test_another_scale_is_found_and_named(proven, name):
    model, placement = proven
    value = model.graph.initializers[name]
    value.const_value = ir.tensor(value.const_value.numpy() * np.float32(1.5), name=name)
    with pytest.raises(
        QuantizerValueError, match=f"'{name.removesuffix('.scale')}': scale .* is not a power"
    ):
        prove_powers_of_two(model, placement, placement.plan)


def test_a_scale_that_is_not_there_is_a_bug(proven):
    model, placement = proven
    (node,) = (node for node in model.graph if node.op_type == "Gemm")
    node.replace_input_with(1, model.graph.initializers["fc.weight.scale"])
    with pytest.raises(RuntimeError, match=r"'fc.weight' is in fixed point, but has no scale"):
        prove_powers_of_two(model, placement, placement.plan)
