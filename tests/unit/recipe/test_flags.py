import dataclasses
import typing

import pytest

from ptq_cli.core.errors import UsageError
from ptq_cli.recipe.flags import FLAG_KEYS, OVERRIDE, OVERRIDE_FLAGS, Settings, settings_to_table
from ptq_cli.recipe.schema import Recipe
from tests.each_case import each_case

KEYS = {
    f"{section.name}.{field.name}": field.type
    for section in dataclasses.fields(Recipe)
    if dataclasses.is_dataclass(section.type)  # A list of tables has no flag.
    for field in dataclasses.fields(section.type)
}
OBJECTS = ("data", "eval_data")  # Python takes objects, too, which a recipe has by a name.


def test_names_set_keys_that_exist_and_have_their_type():
    hints = typing.get_type_hints(Settings)
    for name, keys in FLAG_KEYS.items():
        for key in keys:
            kinds = typing.get_args(KEYS[key]) if "None" in str(KEYS[key]) else (KEYS[key],)
            assert hints[name] is typing.Any if name in OBJECTS else hints[name] in kinds, name


def test_settings_and_flags_have_the_same_names():
    assert {*FLAG_KEYS, *OVERRIDE_FLAGS, OVERRIDE} == set(typing.get_type_hints(Settings))


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


def test_each_name_reaches_its_keys():
    for flag, keys in FLAG_KEYS.items():
        table = settings_to_table({flag: 5})
        for key in keys:
            section, name = key.split(".")
            assert table[section][name] == 5


def test_a_key_overrides_what_a_flag_sets_in_two_places():
    assert settings_to_table({"evaluation.batch_size": 64, "batch_size": 8}) == {
        "calibration": {"batch_size": 8},
        "evaluation": {"batch_size": 64},
    }


def test_one_batch_size_is_for_both_stages():
    assert settings_to_table({"batch_size": 8}) == {
        "calibration": {"batch_size": 8},
        "evaluation": {"batch_size": 8},
    }


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


def test_no_settings_are_an_empty_table():
    assert settings_to_table({}) == {}


def test_unknown_setting_names_the_nearest():
    with pytest.raises(UsageError) as caught:
        settings_to_table({"bach_size": 8})

    assert caught.value.code == "PTQ-USAGE-001"
    assert caught.value.message == "there is no setting 'bach_size' (did you mean 'batch_size'?)"
    assert caught.value.hint.startswith("settings: arch, trust_pickle, ")
