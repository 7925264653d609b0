"""Readers that stop early close what they read, whoever still holds it.

Samples that are set aside: each is in one part, whatever the batches, and classes are divided evenly.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.calibdata.array_files import NpzDataset
from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.batches import Selection, Shard, checked
from ptq_cli.calibdata.dataset.dataset import DividedDataset, Division, move_axes
from ptq_cli.calibdata.dataset.labels import rename_arrays
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


@given(
    share=st.floats(0.01, 0.9), first=st.integers(0, 10**6), count=st.integers(1, 300), unit=st.integers(1, 7)
)
def test_a_sample_is_aside_whatever_comes_before_it(share, first, count, unit):
    division = Division(share, unit)
    whole = division.aside(first, count)
    middle = count // 2
    parts = [division.aside(first, middle), division.aside(first + middle, count - middle)]
    assert np.concatenate(parts).tolist() == whole.tolist()
    numbers = np.arange(first, first + count) // unit
    assert all(len(set(whole[numbers == number].tolist())) == 1 for number in np.unique(numbers))


@each_case("share", [0.1, 0.25, 0.5, 0.9])
def test_the_share_is_exact_and_follows_no_period(share):
    found = Division(share).aside(0, 10_000)
    assert np.count_nonzero(found) == share * 10_000
    for period in (2, 3, 8, 10, 32, 100):
        by_class = [found[start::period].mean() for start in range(period)]
        # As drawn at random: 100 to 5,000 samples of a class, four standard errors and a bit.
        assert max(abs(value - share) for value in by_class) < 4.5 * np.sqrt(0.25 / (10_000 / period))


@pytest.fixture
def data(tmp_path: Path) -> NpzDataset:
    path = tmp_path / "calib.npz"
    np.savez(path, x=np.arange(230.0, dtype=np.float32)[:, None], label=np.arange(230))
    return NpzDataset(str(path))


@pytest.mark.parametrize("batch_size", [1, 7, 32, 300])
def test_both_parts_are_all_samples_in_order(data, batch_size):
    kept = DividedDataset(data, Division(0.3))
    aside = kept.other
    found = []
    for part in (kept, aside):
        batches = list(part.batches(batch_size))
        labels = np.concatenate([batch.labels for batch in batches])
        assert part.count == len(labels)
        assert labels.tolist() == sorted(labels)
        assert np.concatenate([batch.inputs["x"] for batch in batches])[:, 0].tolist() == labels.tolist()
        assert [batch.size for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
        found += labels.tolist()
    assert sorted(found) == list(range(230))
    assert kept.digest() == data.digest() != aside.digest()


def test_shards_of_a_part_are_its_batches(data):
    part = DividedDataset(data, Division(0.5)).only(["x"])
    whole = [batch.names for batch in part.batches(16)]
    assert [batch.names for batch in part.batches(16, Selection(Shard(2, 3)))] == whole[1::3]
