"""Samples that are set aside from the others, so that what the others decide can be judged by them."""

from collections.abc import Collection, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.dataset.batches import Batch, Selection, cut, rebatch
from ptq_cli.calibdata.dataset.dataset import Dataset, DatasetView
from ptq_cli.core.tensors import TensorSpec

BLOCK = 100  # Units among which the share is exact, so that data that is sorted by class is divided evenly
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True)
class Division:
    """Which samples are set aside.

    Attributes:
        unit: samples that stay together: as many as a model takes at once, if it fixes that.

    Example:
        >>> Division(0.5).aside(0, 8).tolist()
        [False, True, True, False, True, True, True, False]
    """

    share: float
    unit: int = 1

    def aside(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Return whether each of ``count`` samples from ``first`` on is set aside.

        It depends on the number of the sample alone, and follows no period: data whose classes alternate is
        divided evenly, too.

        Source:
            Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", for the order
            within a block.
        """
        units = np.arange(first, first + count) // self.unit
        blocks = units // BLOCK
        ranks = {block: _ranks(block) for block in np.unique(blocks).tolist()}
        found = [ranks[block][unit % BLOCK] for block, unit in zip(blocks.tolist(), units, strict=True)]
        return np.array(found, np.float64) < self.share * BLOCK - 1e-9


def _ranks(block: int) -> npt.NDArray[np.intp]:
    """Return the place of each unit of a block in its random order."""
    with np.errstate(over="ignore"):
        mixed = (np.arange(1, BLOCK + 1, dtype=np.uint64) + np.uint64(block * BLOCK)) * GOLDEN
        for shift, factor in zip((30, 27), MIX, strict=True):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
        mixed ^= mixed >> np.uint64(31)
    return np.argsort(np.argsort(mixed, kind="stable"), kind="stable")


class DividedDataset(DatasetView):
    """The samples of a source that are set aside, or all others; in the order of the source."""

    def __init__(self, dataset: Dataset, division: Division, *, aside: bool = False) -> None:
        """Take the samples that are set aside, or the rest."""
        super().__init__(dataset)
        self._division, self._aside = division, aside
        self.count = self._counted(dataset.count)

    @property
    def other(self) -> "DividedDataset":
        """The samples that are not in this part."""
        return DividedDataset(self._dataset, self._division, aside=not self._aside)

    def only(self, names: Collection[str]) -> "DividedDataset":
        """Return the same samples with only these arrays."""
        return DividedDataset(self._dataset.only(names), self._division, aside=self._aside)

    def along(self, axes: Mapping[str, int | None]) -> "DividedDataset":
        """Return the same samples on these axes of their arrays."""
        return DividedDataset(self._dataset.along(axes), self._division, aside=self._aside)

    def singles(self, axes: Mapping[str, int | None]) -> "DividedDataset | None":
        """Return the same data where each item is one sample, whose arrays get an axis for it."""
        dataset = self._dataset.singles(axes)
        return DividedDataset(dataset, self._division, aside=self._aside) if dataset is not None else None

    def fitted(self, inputs: Mapping[str, TensorSpec]) -> "DividedDataset":
        """Return the same part of the data as a model takes it."""
        return DividedDataset(self._dataset.fitted(inputs), self._division, aside=self._aside)

    def digest(self) -> str:
        """The digest of the source, or one of its own for the part that is set aside."""
        whole = self._dataset.digest()
        return sha256(f"{whole} aside {self._division}".encode()).hexdigest() if self._aside else whole

    def _counted(self, count: int | None) -> int | None:
        if count is None:
            return None
        return int(np.count_nonzero(self._division.aside(0, count) == self._aside))

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        return rebatch(self._chosen(batch_size), batch_size, selection)

    def _chosen(self, batch_size: int) -> Generator[Batch]:
        first = 0
        with closing(self._dataset.batches(batch_size)) as batches:
            for batch in batches:
                chosen = self._division.aside(first, batch.size) == self._aside
                edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
                for start, end in edges.reshape(-1, 2).tolist():
                    yield cut(batch, start, end)
                first += batch.size
