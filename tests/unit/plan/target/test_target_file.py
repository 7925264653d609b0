"""Targets are tables, read strictly."""

from pathlib import Path

import pytest

from ptq_cli.core.errors import (
    InputFileError,
    RecipeKeyError,
    RecipeSyntaxError,
    RecipeValueError,
    UnknownNameError,
)
from ptq_cli.plan.target import target_file as target_module
from ptq_cli.plan.target.rules import operator_mistakes
from ptq_cli.plan.target.target_file import load_target, target_names
from tests.each_case import each_case

TABLE = """
name = "own"
description = "for tests"
opset = 13
[activation]
format = "uint8"
[weight]
format = "int8"
[op.Conv]
kind = "compute"
activations = [0]
weight = 1
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes a table, and loads it."""
    monkeypatch.setattr(target_module, "TABLES_FOLDER", tmp_path)

    def load(text: str):
        Path(tmp_path / "own.toml").write_text(text)
        return load_target("own")

    return load


def test_an_unknown_target_is_told_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown target 'ort-gpu' \(did you mean 'ort-cpu'\?\)"):
        load_target("ort-gpu")


def test_formats_of_ort_cpu(target):
    assert target.activation.integers.name == "uint8"
    assert (target.weight.integers.qmin, target.weight.integers.qmax) == (-127, 127)
    assert not target.activation.symmetric


KERNEL = """[op.LSTM]
kind = "stored"
constants = [1, 2]
note = "why"
kernel = "DynamicQuantizeLSTM\""""
FIXED = '[op.Tanh]\nkind = "join"\nfixed.'
PAIRS = "pair_sum = 128\npair_orders = "
FILE = TABLE.replace('name = "own"', 'name = "mine"')


@each_case(
    "old, new, error, message",
    [
        ("weight = 1", "wieght = 1", RecipeKeyError, "'op.Conv.wieght' .did you mean 'weight'"),
        ('kind = "compute"', 'kind = "integer"', RecipeValueError, "kind' is 'integer', expected one"),
        ("weight = 1", 'weight = "1"', RecipeValueError, "weight"),
        ("uint8", "uint9", RecipeValueError, r"'activation\.format' is 'uint9' .did you mean 'uint8'"),
        ("opset = 13\n", "", RecipeValueError, "'opset' is missing"),
        ('name = "mine"', 'name = " "', RecipeValueError, "'name' is empty"),
        ("opset = 13", "opset = 12", RecipeValueError, "'opset' is 12, expected 13 or later"),
        ('format = "uint8"', 'format = "int16"', RecipeValueError, "int16, which needs opset 21"),
        ('format = "int8"', 'format = "int8"\nbits = 9', RecipeValueError, "bits' is 9, expected 2 to 8"),
        ('format = "int8"', 'format = "int8"\nblocks = true', RecipeValueError, "blocks' needs packed"),
        ('format = "int8"', 'format = "int8"\npair_sum = 127', RecipeValueError, "expected 0 or 128 to 253"),
        ('format = "int8"', f"{PAIRS}[]", RecipeValueError, "'weight.pair_orders' is empty"),
        ('format = "int8"', f"{PAIRS}['acros']", RecipeValueError, "did you mean 'across'"),
        ('format = "int8"', f"channel_multiple = 4\n{PAIRS}['across']", RecipeValueError, "has no 'restart'"),
        ("activations = [0]", "", RecipeValueError, "'op.Conv.activations' is missing"),
        ("weight = 1", "weight = 1\nties = true", RecipeValueError, "'op.Conv.ties' belongs to kind 'join'"),
        ("weight = 1", "weight = 1\nfixed.uint8 = [1, 0]", RecipeValueError, "fixed' belongs to kind 'j"),
        ("[op.", f"{FIXED}uint9 = [1, 0]\n[op.", RecipeValueError, "'op.Tanh.fixed' is 'uint9'"),
        ("[op.", f"{FIXED}uint8 = [1]\n[op.", RecipeValueError, "'op.Tanh.fixed.uint8' is .1.0., expected a"),
        ("[op.", f"{FIXED}uint8 = [1, 256]\n[op.", RecipeValueError, "zero point of that format"),
        ("[op.", f"{FIXED}uint8 = [0, 1]\n[op.", RecipeValueError, "expected a scale and a zero point"),
        ("weight = 1", "weight = -1", RecipeValueError, "names an input below 0"),
        ("weight = 1", "integer_kernel = false", RecipeValueError, "'op.Conv.note' is missing"),
        ("weight = 1", "constants = [1]", RecipeValueError, "'op.Conv.constants' belongs to kind 'stored'"),
        ("[op.", f"{KERNEL.replace('constants', '#')}\n[op.", RecipeValueError, "LSTM.constants' is missing"),
        ("[op.", f"{KERNEL}\n[op.", RecipeValueError, "which ONNX Runtime has for LSTM only"),
        ("[op.", f"{KERNEL.replace('LSTM', 'GRU')}\n[op.", RecipeValueError, "'op.GRU.kernel' is 'Dynamic"),
        ('format = "int8"', 'format = "int8"\nstored = "products"', RecipeValueError, "to kind 'stored'"),
        ("opset = 13", 'opset = 13\nextends = "ort-cqu"', UnknownNameError, "did you mean 'ort-cpu'"),
        ("opset = 13", "opset = 13\nruntime_operators = true", RecipeValueError, "of ONNX Runtime"),
        ("opset = 13", "opset = [", RecipeSyntaxError, "is not valid TOML"),
        ("opset = 13", "opset = 13\n[bias]\nformat = 'int16'", RecipeValueError, "'bias.format' is 'int16'"),
    ],
)  # fmt: skip
def test_a_faulty_file_of_a_user_is_refused(tmp_path, old, new, error, message):
    path = tmp_path / "mine.toml"
    path.write_text(FILE.replace(old, new, 1))
    with pytest.raises(error, match=message) as caught:
        load_target(str(path))
    assert "mine.toml" in caught.value.message or error is UnknownNameError


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputFileError, match=r"target '.*none\.toml' does not exist"):
        load_target(str(tmp_path / "none.toml"))


def test_a_table_that_extends_another_has_its_keys_but_those_it_changes(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nextends = "tensorrt"\n[weight]\nstored = "integers"\n[op.Mul]\nties = true\n'
    )
    target, base = load_target(str(path)), load_target("tensorrt")
    assert (target.name, target.weight.stored, target.op["Mul"].ties) == ("mine", "integers", True)
    assert target.op.keys() == base.op.keys() and target.op["Conv"] == base.op["Conv"]
    assert target.description == base.description


@each_case(
    "old, new, message",
    [
        ("op.Conv", "op.Cnov", r"'op.Cnov' is not an ONNX operator \(did you mean 'Conv'\?\)"),
        (
            "[weight]",
            "[floats]\nsoftmax = 'why'\n[weight]",
            r"'floats.softmax' .* \(did you mean 'Softmax'\?\)",
        ),
        ("opset = 13", "opset = 99", r"'opset' is 99, but the newest opset of ONNX [0-9.]+ is [0-9]+"),
        ("[0]", "[3]", "'op.Conv.activations' names input 3, but Conv has 3 inputs"),
        ("weight = 1", "weight = 1\nbias = 5", "'op.Conv.bias' names input 5, but Conv has 3 inputs"),
        ("weight = 1", "weight = 1\nweight_axis = 1", "is 1, expected 0: the output channels"),
    ],
)
def test_a_users_table_is_held_against_onnx(tmp_path, old, new, message):
    path = tmp_path / "own.toml"
    path.write_text(TABLE)
    assert load_target(str(path)).name == "own"
    assert old in TABLE
    path.write_text(TABLE.replace(old, new))
    with pytest.raises(RecipeValueError, match=message):
        load_target(str(path))


@each_case("name", target_names())
def test_ptqs_own_tables_are_as_onnx_has_it(name):
    assert list(operator_mistakes(load_target(name))) == []
