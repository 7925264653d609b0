"""The table of quantizers: names, and what a parameter may be."""

import subprocess
import sys

import pytest

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError, UnknownNameError
from ptq_cli.recipe.declaration import Setting
from ptq_cli.recipe.quantizer_families import FAMILIES, drawing_settings, find_family
from tests.each_case import each_case


def test_activations_take_what_a_quantize_linear_computes() -> None:
    assert [name for name, family in FAMILIES.items() if family.takes_activations] == [
        "scaled",
        "fixed_point",
        "step",
    ]


@each_case("name", FAMILIES)
def test_every_default_is_allowed_and_every_drawn_one_is_there(name: str) -> None:
    family = FAMILIES[name]
    assert family.name == name and family.source and family.formula and family.gradient
    for parameter in (*family.drawn, *family.weight_parameters, *(family.activation_parameters or ())):
        assert parameter.allows(parameter.default), parameter.name
    assert set(drawing_settings(family, {})) == {parameter.name for parameter in family.drawn}


def test_an_unknown_family_has_the_nearest_name() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown quantizer 'fixedpoint' \(did you mean 'fixed_point'"
    ):
        find_family("fixedpoint")


def test_a_parameter_of_another_family_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        RecipeKeyError, match=r"'bit' is not a parameter of .* \(did you mean 'bits'\?\)"
    ) as caught:
        drawing_settings(FAMILIES["dorefa"], {"bit": 3})
    assert caught.value.hint == "'dorefa' is drawn with: bits, amax"


REFUSED = {
    "bits": ("scaled", 1, "bits is 1, quantizer 'scaled' expects 2 to 16"),
    "a step of 0": ("step", 0.0, "step is 0.0, quantizer 'step' expects 2^-100 to 2^100"),
    "NaN": ("step", float("nan"), "step is nan"),
    "infinity": ("step", float("inf"), "step is inf"),
    "a step that no float32 holds": ("step", 1e300, "step is 1e+300"),
}


@each_case("family, value, says", REFUSED.values(), ids=REFUSED.keys())
def test_a_value_out_of_range_is_refused(family: str, value: float, says: str) -> None:
    with pytest.raises(RecipeValueError) as caught:
        drawing_settings(FAMILIES[family], {"bits" if family == "scaled" else "step": value})
    assert caught.value.message.startswith(says)


def test_a_text_must_be_one_of_the_words() -> None:
    parameter = Setting(help="Granularity.", choices=("channel", "tensor"))
    assert parameter.allows("tensor") and not parameter.allows("row")


def test_it_is_there_without_torch() -> None:
    code = "import sys, ptq_cli.recipe.quantizer_families; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
