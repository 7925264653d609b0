import numpy as np
import pytest

from ptq_cli.calibdata.dataset.batches import Batch, require_finite
from ptq_cli.core.errors import NonFiniteDataError
from tests.each_case import each_case


def batch_of(array):
    return Batch({"x": array}, None, tuple(f"s{row}" for row in range(len(array))))


@each_case("dtype", ["float16", "float32", "float64"])
@each_case("value, text", [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_first_value_is_named(dtype, value, text):
    array = np.zeros((3, 4, 5), dtype)
    array[1, 2, 3] = array[2, 0, 0] = value
    with pytest.raises(NonFiniteDataError, match=rf"input 'x' holds {text} at \[2, 3\] of sample 's1'"):
        require_finite(batch_of(array))


def test_sample_that_is_a_single_value():
    with pytest.raises(NonFiniteDataError, match=r"holds inf at \[\] of sample 's0'"):
        require_finite(batch_of(np.array([np.inf, -np.inf], np.float32)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_largest_values_are_finite(dtype):
    require_finite(batch_of(np.full((4, 4), np.finfo(dtype).max, dtype)))


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integers_are_finite(dtype):
    require_finite(batch_of(np.ones((2, 2), dtype)))


def test_every_input_is_checked():
    batch = Batch({"a": np.zeros(1, np.float32), "b": np.array([np.nan])}, None, ("s",))
    with pytest.raises(NonFiniteDataError, match="input 'b'"):
        require_finite(batch)
