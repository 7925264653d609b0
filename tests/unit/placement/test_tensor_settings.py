"""What the overrides of a recipe say of layers; the last that matches wins."""

from ptq_cli.placement.tensor_settings import (
    decided_layers,
    excluded_layers,
    layer_activations,
    meant_layers,
    with_own_mode,
)
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.recipe.sections import ActivationSettings, OverrideSettings
from tests.unit.plan.graphs import build

MODEL = """(float[n, 4] x) => (float[n, 4] y) <float[4, 4] v, float[4, 4] w> {
    [one] a = MatMul (x, v) [act] r = Relu (a) [two] y = MatMul (r, w) }"""


def test_what_is_not_asked_for_stays_float_but_for_what_follows() -> None:
    layers, target = meant_layers(build(MODEL)), load_target("ort-cpu")
    one = OverrideSettings(match="one", quantize=True)
    assert excluded_layers(layers, [one], target) == {
        "two": "kept in float: it is not one of the layers to include"
    }
    both = [OverrideSettings(match="*", quantize=True), OverrideSettings(match="two", quantize=False)]
    assert list(excluded_layers(layers, both, target)) == ["two"]
    assert {name: last.quantize for name, last in decided_layers(layers, both)} == {
        "one": True,
        "act": True,
        "two": False,
    }
    assert excluded_layers(layers, [], target) == {}


def test_a_later_override_changes_a_mode_again() -> None:
    layers = meant_layers(build(MODEL))
    overrides = [
        OverrideSettings(op="MatMul", activations=ActivationSettings(mode="dynamic")),
        OverrideSettings(match="y", activations=ActivationSettings(mode="float")),
    ]
    found = layer_activations(layers, ActivationSettings(), overrides)
    assert {name: item.mode for name, item in found.items()} == {
        "one": "dynamic",
        "act": None,
        "two": "float",
    }
    assert list(with_own_mode(layers, overrides)) == ["one", "two"]
