import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.core.errors import PtqError, RecipeKeyError, RecipeValueError
from ptq_cli.recipe.schema import Recipe, decode_recipe
from tests.each_case import each_case


def error_of(kind, table):
    with pytest.raises(kind) as caught:
        decode_recipe(table, "ptq.toml")
    return caught.value


UNKNOWN = {
    "section": (
        {"calibraton": {}},
        "ptq.toml: unknown key 'calibraton' (did you mean 'calibration'?)",
        "the top level has: model, data, image, text, calibration, amax, weights, activations, override, "
        "quantization, accuracy, recovery, export, evaluation, metric, gate, tune, runtime",
    ),
    "key": (
        {"amax": {"percentil": 99.9}},
        "ptq.toml: unknown key 'amax.percentil' (did you mean 'percentile'?)",
        "[amax] has: method, percentile",
    ),
    "key of a table in a list": (
        {"override": [{"match": "*", "amx": "mse"}]},
        "ptq.toml: unknown key 'override.amx' (did you mean 'amax'?)",
        "[override] has: match, op, quantize, amax, weight_amax",
    ),
    "key like none": (
        {"runtime": {"zzz": 1}},
        "ptq.toml: unknown key 'runtime.zzz'",
        "[runtime] has: device, threads",
    ),
    "key at the top": ({"batch_size": 8}, "ptq.toml: unknown key 'batch_size'", "the top level has: model,"),
}


@each_case("table, message, hint", UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_key_names_the_nearest_and_what_there_is(table, message, hint):
    error = error_of(RecipeKeyError, table)
    assert (error.code, error.message) == ("PTQ-RECIPE-002", message)
    assert error.hint.startswith(hint)


WRONG = {
    "section that is no table": ({"amax": "max"}, "'amax' is 'max', expected a table"),
    "path with a NUL": (
        {"calibration": {"data": "a\0b"}},
        "'calibration.data' is 'a\\x00b', expected text without a NUL character",
    ),
    "section that is a list": ({"amax": [{}]}, "'amax' is [{}], expected a table"),
    "table for a list of them": (
        {"override": {"match": "*"}},
        "'override' is {'match': '*'}, expected a list of tables",
    ),
    "text for a table in a list": ({"override": ["*"]}, "'override' is '*', expected a table"),
    "text for a number": ({"runtime": {"threads": "4"}}, "'runtime.threads' is '4', expected a whole number"),
    "fraction for a whole number": (
        {"data": {"batch_size": 8.0}},
        "'data.batch_size' is 8.0, expected a whole number",
    ),
    "bool for a whole number": (
        {"runtime": {"threads": True}},
        "'runtime.threads' is True, expected a whole number",
    ),
    "bool for a number": ({"amax": {"percentile": True}}, "'amax.percentile' is True, expected a number"),
    "text for a number with a point": ({"image": {"scale": "1"}}, "'image.scale' is '1', expected a number"),
    "number beyond float64": (
        {"amax": {"percentile": 10**400}},
        f"'amax.percentile' is 1{'0' * 79}, expected a number",
    ),
    "number for text": ({"amax": {"method": 3}}, "'amax.method' is 3, expected a string"),
    "number for yes or no": (
        {"model": {"trust_pickle": 1}},
        "'model.trust_pickle' is 1, expected true or false",
    ),
    "number for a path": ({"model": {"path": 5}}, "'model.path' is 5, expected a string"),
    "empty path": ({"calibration": {"data": ""}}, "'calibration.data' is '', expected a path"),
    "bool for an optional number": (
        {"evaluation": {"samples": False}},
        "'evaluation.samples' is False, expected a whole number",
    ),
    "text for a list": (
        {"evaluation": {"metrics": "top1"}},
        "'evaluation.metrics' is 'top1', expected a list of strings",
    ),
    "number in a list of text": (
        {"evaluation": {"metrics": ["top1", 5]}},
        "'evaluation.metrics' is 5, expected a string",
    ),
    "text for a list of numbers": ({"image": {"std": "1"}}, "'image.std' is '1', expected a list of numbers"),
    "text in a list of numbers": ({"image": {"mean": [0, "1"]}}, "'image.mean' is '1', expected a number"),
    "list for a table": ({"gate": {"max_drop": [0.1]}}, "'gate.max_drop' is [0.1], expected a table"),
    "number in a table": ({"data": {"rename": {"x": 1}}}, "'data.rename.x' is 1, expected a string"),
    "number for a shape": (
        {"model": {"input_shape": {"x": 3}}},
        "'model.input_shape.x' is 3, expected a list of whole numbers",
    ),
    "fraction in a shape": (
        {"model": {"input_shape": {"x": [1, 2.5]}}},
        "'model.input_shape.x' is 2.5, expected a whole number",
    ),
    "date": (
        {"runtime": {"threads": datetime.date(2026, 1, 31)}},
        "'runtime.threads' is datetime.date(2026, 1, 31), expected a whole number",
    ),
}


@each_case("table, message", WRONG.values(), ids=WRONG)
def test_wrong_type_says_what_was_found_and_wanted(table, message):
    error = error_of(RecipeValueError, table)
    assert (error.code, error.message) == ("PTQ-RECIPE-003", f"ptq.toml: {message}")
    assert error.hint.startswith("correct '")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(-(10**400))
    | st.floats()
    | st.text(max_size=4)
    | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["path", "method", "batch_size", "max_drop", "input_shape", "resize", "mean", "threads", "data"]
SECTIONS = ["model", "image", "calibration", "amax", "evaluation", "gate", "runtime", "nothing"]


@given(
    table=st.dictionaries(
        st.sampled_from(SECTIONS),
        st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), VALUES, max_size=3) | VALUES,
        max_size=3,
    )
)
def test_any_table_is_a_recipe_or_an_error_of_ours(table):
    try:
        assert isinstance(decode_recipe(table, "ptq.toml"), Recipe)
    except PtqError as error:
        assert error.message.startswith("ptq.toml: ") and error.hint
