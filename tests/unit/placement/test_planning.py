"""The integers of activations that a recipe asks for."""

from ptq_cli.core.formats import BY_NAME, UINT8
from ptq_cli.placement.planning import as_asked
from ptq_cli.plan.sites import ActivationSite
from ptq_cli.recipe.quantizer_families import FixedPointActivations, ScaledActivations
from tests.each_case import each_case

SITE = ActivationSite(tensor="x", source="x", format=UINT8, symmetric=False)


@each_case(
    "family, name, bits, symmetric",
    [
        (ScaledActivations(), "uint8", 8, False),
        (ScaledActivations(bits=4), "uint8", 4, False),
        (ScaledActivations(dtype="int16", symmetric=True), "int16", 16, True),
        (ScaledActivations(dtype="float8e4m3fn"), "float8e4m3fn", 8, True),
    ],
)
def test_a_site_gets_what_is_asked(family: ScaledActivations, name: str, bits: int, symmetric: bool) -> None:
    found = as_asked(SITE, family)
    assert (found.format.bits, found.symmetric) == (bits, symmetric)
    assert found.format.bits == 4 or found.format == BY_NAME[name]


def test_other_quantizers_leave_the_site() -> None:
    assert as_asked(SITE, FixedPointActivations(integer=2)) is SITE
