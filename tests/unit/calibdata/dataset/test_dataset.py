"""Readers that stop early close what they read, whoever still holds it."""

import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpzDataset
from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.batches import checked
from ptq_cli.calibdata.dataset.dataset import move_axes
from ptq_cli.calibdata.dataset.labels import rename_arrays
from ptq_cli.calibdata.dataset.set_aside import DividedDataset, Division
from ptq_cli.core.errors import NonFiniteDataError
from ptq_cli.core.tensors import TensorSpec
from tests.each_case import each_case

SPEC = TensorSpec("x", np.dtype(np.float32), (None, 2))


class Held(NpzDataset):
    """Holds all iterators over its batches, as a traceback does."""

    def __init__(self, path, values):
        np.savez(path, x=values)
        super().__init__(str(path))
        self.held = []

    def batches(self, *arguments):
        self.held.append(super().batches(*arguments))
        return self.held[-1]


def is_closed(generator):
    return generator.gi_frame is None


@each_case(
    "wrap",
    [
        lambda source: bind_inputs(source, [SPEC]),
        lambda source: move_axes(source, {"x": 1}),
        lambda source: rename_arrays(source, {"x": "y"}),
        lambda source: DividedDataset(source, Division(0.5), aside=True),
    ],
    ids=["bound", "moved", "renamed", "set aside"],
)
def test_a_reader_that_stops_early_closes_its_source(wrap, tmp_path):
    source = Held(tmp_path / "x.npz", np.zeros((8, 2), np.float32))
    batches = wrap(source).batches(2)
    next(batches)
    assert not is_closed(source.held[-1])
    batches.close()
    assert is_closed(source.held[-1])


def test_a_batch_that_is_refused_closes_its_source(tmp_path):
    batches = Held(tmp_path / "x.npz", np.full((4, 2), np.nan, np.float32)).batches(2)
    with pytest.raises(NonFiniteDataError):
        next(checked(batches))
    assert is_closed(batches)
