import copy
import dataclasses
import pickle

import numpy as np
import pytest

from ptq_cli.core.errors import QuantizerTypeError, QuantizerValueError
from ptq_cli.quantizers.scaled import descriptor as predefined
from ptq_cli.quantizers.scaled.descriptor import QuantDescriptor
from tests.each_case import each_case

KINDS = [
    {},
    {"num_bits": 4, "name": "weight", "axis": 0, "narrow_range": True},
    {"num_bits": (4, 3), "axis": (0, 1)},
    {"amax": [0.1, 2.5], "axis": -1, "calib_method": "histogram"},
    {"amax": 1.5, "learn_amax": True},
    {"amax": np.array([[1.0], [2.0]]), "axis": 0, "scale_amax": 0.9, "fake_quant": False, "unsigned": True},
]

every_kind = each_case("fields", KINDS, ids=str)


@every_kind
def test_it_comes_back_from_toml_and_from_dict(fields):
    descriptor = QuantDescriptor(**fields)
    assert QuantDescriptor.from_toml(descriptor.to_toml()) == descriptor
    assert QuantDescriptor.from_dict(descriptor.to_dict()) == descriptor


@every_kind
def test_it_copies_and_pickles(fields):
    descriptor = QuantDescriptor(**fields)
    for other in (copy.deepcopy(descriptor), pickle.loads(pickle.dumps(descriptor))):
        assert other == descriptor
        assert hash(other) == hash(descriptor)
    changed = dataclasses.replace(descriptor, name="other")
    assert changed != descriptor
    assert np.array_equal(np.asarray(changed.amax), np.asarray(descriptor.amax))


def test_it_cannot_be_changed_not_even_its_amax():
    given = np.array([1.0, 2.0])
    descriptor = QuantDescriptor(amax=given)
    given[0] = 9.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        descriptor.num_bits = 4
    with pytest.raises(ValueError, match="read-only"):
        descriptor.amax[0] = 3.0
    assert descriptor.amax.tolist() == [1.0, 2.0]


@each_case(
    "fields, error, said",
    [
        ({"num_bits": -1}, QuantizerValueError, "num_bits must not be negative, got -1"),
        ({"num_bits": 8.0}, QuantizerTypeError, r"num_bits must be an integer, or \(4, 3\)"),
        ({"num_bits": (5, 2)}, QuantizerTypeError, r"got \(5, 2\)"),
        ({"name": 7}, QuantizerTypeError, "name of a descriptor cannot be 7"),
        ({"amax": 1}, QuantizerTypeError, "amax of a descriptor cannot be 1"),
        ({"amax": (1.0,)}, QuantizerTypeError, "amax of a descriptor cannot be"),
        ({"amax": ["a"]}, QuantizerTypeError, "amax of a descriptor cannot be read as floats"),
        ({"amax": [[1.0], [2.0, 3.0]]}, QuantizerTypeError, "amax of a descriptor cannot be read as floats"),
        ({"axis": 0.5}, QuantizerTypeError, "axis of a descriptor cannot be 0.5"),
        (
            {"axis": (0, "b")},
            QuantizerTypeError,
            "axis of a descriptor must be an integer or a tuple of integers",
        ),
        ({"learn_amax": True, "axis": 0}, QuantizerTypeError, "an amax is learned for the tensor"),
        ({"unsigned": 1}, QuantizerTypeError, "unsigned of a descriptor cannot be 1"),
    ],
    ids=str,
)
def test_what_it_refuses(fields, error, said):
    with pytest.raises(error, match=said):
        QuantDescriptor(**fields)


def test_unknown_fields_are_named():
    with pytest.raises(QuantizerTypeError, match="a descriptor has no field 'bits'"):
        QuantDescriptor.from_dict({"bits": 8})


def test_text_that_is_no_toml():
    with pytest.raises(QuantizerValueError, match="the text of a descriptor is not TOML"):
        QuantDescriptor.from_toml("num_bits = ")


def test_predefined_ones_are_8_bit():
    found = {name: value for name, value in vars(predefined).items() if name.startswith("QUANT_DESC")}
    assert len(found) == 9
    assert {value.num_bits for value in found.values()} == {8}
    assert found["QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR"].unsigned
    assert found["QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW"].axis == 0


def test_it_equals_no_other_thing():
    assert QuantDescriptor() != "QuantDescriptor"
