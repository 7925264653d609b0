import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpyDataset
from ptq_cli.calibdata.dataset.batches import Batch, indexed_names
from ptq_cli.calibdata.dataset.dataset import require_samples
from ptq_cli.core.errors import RecipeValueError


def test_batch_size_is_the_number_of_names():
    assert Batch({}, None, ("a", "b", "c")).size == 3


def test_indexed_names_count_from_start():
    assert indexed_names("x.npy", 3, 2) == ("x.npy[3]", "x.npy[4]")


@pytest.mark.parametrize("samples", [0, -1])
def test_limit_below_one_is_refused(samples):
    with pytest.raises(RecipeValueError, match=f"samples must be at least 1, got {samples}"):
        require_samples(samples)


def test_batch_size_is_checked_before_the_first_batch(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    with pytest.raises(RecipeValueError, match="batch_size must be at least 1, got 0"):
        NpyDataset(str(tmp_path / "x.npy")).batches(0)
