"""``--set KEY=VALUE``: every key is taken, by its type, and what is wrong is said."""

import typing
from typing import Any

import pytest

from ptq_cli.core.errors import PtqError, UsageError
from ptq_cli.recipe.assignments import (
    FLAG_KEYS,
    KEYWORDS,
    OVERRIDE,
    OVERRIDE_FLAGS,
    TABLES,
    list_keys,
    parse_assignments,
    setting_types,
    settings_to_table,
    type_words,
)
from ptq_cli.recipe.keyword_settings import Settings
from ptq_cli.recipe.schema import SETTINGS
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


EXAMPLES = {
    "text": "some text",
    "path or entry point": "file.py:make",
    "whole number": "3",
    "number": "2.5",
    "true or false": "true",
    "list of texts": "a,b",
    "list of numbers": "1,.5",
    "list of whole numbers": "[1, 2]",
}
VALUES: dict[str, Any] = {
    "text": "some text",
    "path or entry point": "file.py:make",
    "whole number": 3,
    "number": 2.5,
    "true or false": True,
    "list of texts": ["a", "b"],
    "list of numbers": [1, 0.5],
    "list of whole numbers": [1, 2],
}


def test_every_key_is_set_by_its_type() -> None:
    for item in list_keys():
        section = item.key.partition(".")[0]
        if section in TABLES or item.type.startswith("table"):
            continue
        settings, once = parse_assignments([f"{item.key}={EXAMPLES[item.type]}"])
        found = vars(once)[item.key[4:]] if section == "run" else settings[KEYWORDS.get(item.key, item.key)]
        assert found == VALUES[item.type], item.key


@each_case(
    "text, name, value",
    [
        ("data.rename.input=x", "rename", {"input": "x"}),
        ("data.rename={ a = 'x' }", "rename", {"a": "x"}),
        ("data.rename.a=b=c", "rename", {"a": "b=c"}),
        ("data.batch_axis.state=1", "batch_axis", {"state": 1}),
        ("data.batch_axis.*=none", "batch_axis", {"*": "none"}),
        ("model.inputs.sr=[16000, 8000]", "input", {"sr": [16000, 8000]}),
        ("model.input_shape.x=1,3,8,8", "input_shape", {"x": [1, 3, 8, 8]}),
        ("data.batch_axis.a=b=-1", "batch_axis", {"a=b": -1}),
        ("gate.min.sqnr_db[a=b]=25", "min", {"sqnr_db[a=b]": 25}),
        ("gate.max_drop.top1=1%", "max_drop", {"top1": "1%"}),
        ("amax.method='mse'", "amax", "mse"),
        ("amax.percentile=99.9", "percentile", 99.9),
        ("amax.percentile=.5", "percentile", 0.5),
        ("text.columns=7", "text_column", ["7"]),
        ("model.path=m.onnx", "model.path", "m.onnx"),
        ("data.batch_size=4", "batch_size", 4),
        ("override=a:b*:weights.bits=4", "override", [{"match": "a:b*", "weights": {"bits": 4}}]),
    ],
)
def test_a_value_is_written_as_in_toml_or_shorter(text: str, name: str, value: Any) -> None:
    assert parse_assignments([text])[0] == {name: value}


def test_the_last_of_two_counts_and_tables_grow() -> None:
    texts = ["amax.bins=8", "data.rename.a=x", "amax.bins=16", "data.rename.b=y"]
    assert parse_assignments(texts)[0] == {"amax_bins": 16, "rename": {"a": "x", "b": "y"}}
    texts = ["override=a:quantize=false", "override=:op=Gemm,amax=mse"]
    found = [{"match": "a", "quantize": False}, {"op": "Gemm", "amax": "mse"}]
    assert parse_assignments(texts)[0] == {"override": found}


@each_case(
    "text, code, says",
    [
        ("amax.bin=3", "PTQ-RECIPE-002", "--set: unknown key 'amax.bin' (did you mean 'amax.bins'?)"),
        ("mean=0.5", "PTQ-RECIPE-002", "(did you mean 'image.mean'?)"),
        ("weight-centers=3", "PTQ-RECIPE-002", "(did you mean 'weights.centers'?)"),
        ("image.mean.x=1", "PTQ-RECIPE-002", "unknown key 'image.mean.x'"),
        ("run.restrat=true", "PTQ-RECIPE-002", "(did you mean 'run.restart'?)"),
        ("zzz.yyy=1", "PTQ-RECIPE-002", "--set: unknown key 'zzz.yyy'"),
        ("amax.bins", "PTQ-USAGE-001", "--set 'amax.bins' is not of the form KEY=VALUE"),
        ("=1", "PTQ-USAGE-001", "is not of the form KEY=VALUE"),
        ("override.match=a", "PTQ-USAGE-001", "--set cannot write 'override.match'"),
        ("override=head.*", "PTQ-USAGE-001", "is not of the form override=PATTERN:KEY=VALUE,…"),
        ("override=head.*:bits", "PTQ-USAGE-001", "is not of the form override=PATTERN:KEY=VALUE,…"),
        ("metric=[]", "PTQ-USAGE-001", "--set cannot write 'metric'"),
        ("amax.bins=many", "PTQ-RECIPE-003", "--set: 'amax.bins' is 'many', expected a whole number"),
        ("amax.bins=1.5", "PTQ-RECIPE-003", "'amax.bins' is 1.5, expected a whole number"),
        ("amax.bins=1\nx=2", "PTQ-RECIPE-003", "expected a whole number"),
        ("image.mean=a,b", "PTQ-RECIPE-003", "'image.mean' is 'a', expected a number"),
        ("image.mean=[", "PTQ-RECIPE-003", "expected a list of numbers"),
        ("text.pack=maybe", "PTQ-RECIPE-003", "expected true or false"),
        ("run.restart=1", "PTQ-RECIPE-003", "expected true or false"),
        ("gate.max_drop=5", "PTQ-RECIPE-003", "expected a table"),
        ("calibration.data=", "PTQ-RECIPE-003", "expected a path"),
    ],
)
def test_what_is_wrong_is_said(text: str, code: str, says: str) -> None:
    with pytest.raises(PtqError) as caught:
        parse_assignments([text])
    assert (caught.value.code, caught.value.exit_status) == (code, 2)
    assert says in caught.value.message


def test_keys_are_listed_by_a_part_or_a_pattern() -> None:
    assert [item.key for item in list_keys("serve")] == ["export.serve_batch"]
    assert {item.key.partition(".")[2] for item in list_keys("*.samples")} == {"samples"}
    assert {item.key for item in list_keys()} >= set(setting_types())
    with pytest.raises(PtqError, match=r"no key matches 'amax.binz'.*did you mean 'amax.bins'"):
        list_keys("amax.binz")


def test_every_key_has_a_type_and_a_sentence() -> None:
    for item in list_keys():
        assert item.type in EXAMPLES or item.type.startswith("table"), item.key
        assert item.meaning.endswith(".") and "`" not in item.meaning, item.key
    assert type_words(str | None) == "text"
