import typing

import pytest

from ptq_cli.core.errors import RecipeKeyError, UsageError
from ptq_cli.recipe.assignments import parse_assignments
from ptq_cli.recipe.decode import decode_recipe
from ptq_cli.recipe.flags import FLAG_KEYS, OVERRIDE, OVERRIDE_FLAGS, settings_to_table
from ptq_cli.recipe.keyword_settings import Settings
from ptq_cli.recipe.schema import FORMER_KEYS, PREFIXES, SETTINGS
from tests.each_case import each_case


def test_every_setting_but_the_model_has_a_name():
    several = ("override.", "metric.")
    assert {*FLAG_KEYS.values()} == {key for key in SETTINGS if not key.startswith(several)} - {"model.path"}


def test_keyword_arguments_have_the_declared_names_and_types():
    assert {*FLAG_KEYS, *OVERRIDE_FLAGS, OVERRIDE} == set(typing.get_type_hints(Settings))
    for name, wanted in typing.get_type_hints(Settings).items():
        if name in FLAG_KEYS:
            declared = SETTINGS[FLAG_KEYS[name]]
            assert wanted == (typing.Any if declared.takes_objects else declared.type), name


def test_each_flag_of_overrides_makes_one_of_each_value_in_the_order_of_their_weight():
    settings = {
        "override": [{"match": "head", "weights": {"bits": 4}}],
        "exclude": ["a", "b*"],
        "include_op": ["Conv"],
        "exclude_op": ["Gemm"],
        "include": ["c"],
    }
    assert settings_to_table(settings) == {
        "override": [
            {"match": "c", "quantize": True},
            {"op": "Conv", "quantize": True},
            {"match": "a", "quantize": False},
            {"match": "b*", "quantize": False},
            {"op": "Gemm", "quantize": False},
            {"match": "head", "weights": {"bits": 4}},
        ]
    }


def test_each_name_reaches_its_key():
    for name, key in FLAG_KEYS.items():
        section, _, field = key.partition(".")
        assert settings_to_table({name: 5})[section][field] == 5


@each_case("key", [*FORMER_KEYS])
def test_a_former_key_says_what_to_do_instead(key):
    section, _, field = key.partition(".")
    value = [{field: 1}] if section in ("override", "metric") else {field: 1}
    with pytest.raises(RecipeKeyError) as caught:
        decode_recipe({section: value}, "ptq.toml")
    assert caught.value.hint == (FORMER_KEYS[key] if section != "run" else caught.value.hint)
    if section not in ("override", "metric"):
        with pytest.raises(RecipeKeyError) as caught:
            parse_assignments([f"{key}=1"])
        assert caught.value.hint == FORMER_KEYS[key]
    assert key not in SETTINGS
    prefixed = f"{PREFIXES.get(section, '')}{field}"
    if prefixed not in FLAG_KEYS:
        with pytest.raises(UsageError) as refused:
            settings_to_table({prefixed: 1})
        assert refused.value.hint == FORMER_KEYS[key]


@each_case(
    "settings, amax",
    [
        ({"percentile": 99.9}, {"percentile": 99.9, "method": "percentile"}),
        ({"percentile": 99.9, "amax": "max"}, {"percentile": 99.9, "method": "max"}),
        (
            {"percentile": 99.9, "weight_amax": "percentile"},
            {"percentile": 99.9, "weight_method": "percentile"},
        ),
        (
            {"percentile": 99.9, "weight_amax": "mse"},
            {"percentile": 99.9, "weight_method": "mse", "method": "percentile"},
        ),
        ({"amax": "max"}, {"method": "max"}),
    ],
    ids=[
        "percentile alone",
        "percentile and method",
        "for weights",
        "beside another of weights",
        "method alone",
    ],
)
def test_percentile_alone_asks_for_its_method(settings, amax):
    assert settings_to_table(settings) == {"amax": amax}


def test_unknown_setting_names_the_nearest():
    with pytest.raises(UsageError) as caught:
        settings_to_table({"bach_size": 8})
    assert caught.value.code == "PTQ-USAGE-001"
    assert caught.value.message == "there is no setting 'bach_size' (did you mean 'batch_size'?)"
    assert caught.value.hint.startswith("settings: arch, trust_pickle, ")
