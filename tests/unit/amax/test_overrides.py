import pytest

from ptq_cli.amax.overrides import Meant, OverridesByName, check_overrides, require_matches, settings_for
from ptq_cli.core.errors import RecipeValueError, UnknownNameError
from ptq_cli.recipe.sections import AmaxSettings, OverrideSettings
from tests.each_case import each_case

BASE = AmaxSettings(method="max", percentile=99.0)


def override(match, **settings):
    return OverrideSettings(match=match, **settings)


@each_case(
    "match, names, matches",
    [
        ("layer3.*", ["layer3.conv"], True),
        ("layer3.*", ["layer30.conv"], False),
        ("layer3.*", ["x", "layer3.conv"], True),
        ("*", ["anything/at all"], True),
        ("LAYER*", ["layer"], False),
        ("layer?", ["layer3"], True),
        ("layer[12]", ["layer2"], True),
        ("layer[12]", ["layer3"], False),
        ("x[0]", ["x[0]"], True),
    ],
)
def test_match_is_a_shell_pattern(match, names, matches):
    found = settings_for(Meant(names), BASE, OverridesByName([override(match, amax="mse")]))
    assert (found.method == "mse") == matches


def test_later_override_wins_key_by_key():
    overrides = [
        override("*", amax="mse", weight_amax="mse"),
        override("head.*", amax="entropy"),
        override("head.fc", amax="percentile 50"),
    ]
    assert settings_for(Meant(["a"]), BASE, OverridesByName(overrides)) == AmaxSettings(
        method="mse", percentile=99.0, weight_method="mse"
    )
    assert settings_for(Meant(["head.norm"]), BASE, OverridesByName(overrides)) == AmaxSettings(
        method="entropy", percentile=99.0, weight_method="mse"
    )
    assert settings_for(Meant(["head.fc"]), BASE, OverridesByName(overrides)) == AmaxSettings(
        method="percentile", percentile=50.0, weight_method="mse"
    )


@pytest.mark.parametrize(
    ("settings", "method", "weight_method"),
    [
        ({"amax": "percentile 98"}, "percentile", "max"),
        ({"weight_amax": "percentile 98"}, "max", "percentile"),
        ({"amax": "percentile 9", "weight_amax": "percentile 98"}, "percentile", "percentile"),
    ],
    ids=str,
)
def test_a_method_may_have_a_percentile(settings, method, weight_method):
    found = settings_for(Meant(["a"]), BASE, OverridesByName([override("a", **settings)]))
    assert found == AmaxSettings(method=method, percentile=98.0, weight_method=weight_method)


@pytest.mark.parametrize("settings", [{"amax": "msee"}, {"weight_amax": "msee"}], ids=str)
def test_unknown_method_is_refused(settings):
    with pytest.raises(UnknownNameError, match=r"unknown amax method.* 'msee' \(did you mean 'mse'\?\)"):
        check_overrides([override("*", **settings)])


ACTIVATIONS = [Meant(["image"]), Meant(["stem.conv", "stem/Conv"], ["Conv"]), Meant(["layer3.0.add"])]
WEIGHTS = [Meant(["stem.conv.weight", "stem/Conv"], ["Conv"]), Meant(["head.weight", "head"], ["Gemm"])]


@each_case(
    "item, message",
    [
        (
            override("layr3.*", amax="mse"),
            "[[override]] match = 'layr3.*' matches no activation that is quantized "
            "(did you mean 'layer3.*'?)",
        ),
        (
            override("stem.convv", amax="mse"),
            "[[override]] match = 'stem.convv' matches no activation that is quantized "
            "(did you mean 'stem.conv'?)",
        ),
        (
            override("heat", weight_amax="mse"),
            "[[override]] match = 'heat' matches no weight that is quantized (did you mean 'head'?)",
        ),
        # The name is a weight's, the setting an activation's.
        (override("head", amax="mse"), "[[override]] match = 'head' matches no activation that is quantized"),
        (
            override("layer3.*", amax="mse", weight_amax="mse"),
            "[[override]] match = 'layer3.*' matches no weight that is quantized",
        ),
        (
            override("zzz*", amax="percentile 9"),
            "[[override]] match = 'zzz*' matches no activation that is quantized",
        ),
        (override("?", amax="mse"), "[[override]] match = '?' matches no activation that is quantized"),
    ],
    ids=lambda value: getattr(value, "match", ""),
)
def test_override_that_matches_nothing_is_named_with_what_was_perhaps_meant(item, message):
    with pytest.raises(RecipeValueError) as caught:
        require_matches([item], ACTIVATIONS, WEIGHTS)
    assert caught.value.message == message
    assert "ptq inspect" in caught.value.hint
