"""Weights with a scale for each block of an axis: few bits, and near to the values all the same."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.amax.weight_ranges import choose_weight_ranges
from ptq_cli.core.arithmetic import FloatArray, QuantParameters, quantize, scale_from_amax
from ptq_cli.core.granularity import PerAxis
from ptq_cli.core.tensors import Array
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.weight_quantizer import StoredWeight, WeightChoice, storage_bits
from ptq_cli.recipe.schema import AmaxSettings


@dataclass(frozen=True)
class BlockQuantizer:
    """Integers spread evenly over the [-amax, amax] of their block.

    The parameters are those of the blocks as rows; the file has their scales in the weight's own order.

    Attributes:
        settings: whose ``weight_method`` decides amax.
        packed: integers of 4 bits or fewer are stored two in a byte.
    """

    settings: AmaxSettings
    packed: bool = False

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return a scale for each block.

        Shapes:
            weight: any whose axis the blocks divide; scale: (blocks,).
        """
        ranges = choose_weight_ranges(rows_of_blocks(weight, site), PerAxis(0), self.settings, site.format)
        scale = scale_from_amax(ranges.amax, site.format)
        zeros = np.zeros(scale.shape, np.int64)
        return WeightChoice(QuantParameters(scale, zeros, site.format, PerAxis(0)), ranges.unsearched)

    def fit(self, parameters: QuantParameters) -> QuantParameters:
        """Return the parameters: any scale will do."""
        return parameters

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return the integers that QuantizeLinear gives."""
        assert parameters is not None  # noqa: S101 - a scaled weight has them
        rows = quantize(rows_of_blocks(weight, site), parameters)
        return StoredWeight(_from_rows(rows, weight.shape, site), storage_bits(site, self.packed))


def rows_of_blocks(weight: FloatArray, site: WeightSite) -> FloatArray:
    """Return a weight's blocks as the rows of a matrix.

    Shapes:
        weight: (…, n, …), with n along the site's axis; the result (blocks, block size).

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW
        >>> site = WeightSite(
        ...     tensor="w", node="layer", input_index=1, format=INT8_NARROW, axis=0, block_size=2
        ... )
        >>> rows_of_blocks(np.float32([[1, 5], [2, 6], [3, 7], [4, 8]]), site).tolist()
        [[1.0, 2.0], [5.0, 6.0], [3.0, 4.0], [7.0, 8.0]]
    """
    axis, size = _axis_and_size(site)
    split = weight.reshape(*weight.shape[:axis], -1, size, *weight.shape[axis + 1 :])
    rows: FloatArray = np.ascontiguousarray(np.moveaxis(split, axis + 1, -1)).reshape(-1, size)
    return rows


def scales_in_place(scale: FloatArray, shape: Sequence[int], site: WeightSite) -> FloatArray:
    """Return the scales of blocks as a DequantizeLinear takes them.

    Shapes:
        scale: (blocks,); the result the weight's, with the site's axis divided by the block size.

    Source:
        ONNX DequantizeLinear (opset 21), ``block_size``.

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW
        >>> site = WeightSite(
        ...     tensor="w", node="layer", input_index=1, format=INT8_NARROW, axis=0, block_size=2
        ... )
        >>> scales_in_place(np.float32([1, 2, 3, 4]), (4, 2), site).tolist()
        [[1.0, 2.0], [3.0, 4.0]]
    """
    axis, size = _axis_and_size(site)
    return scale.reshape([length // size if index == axis else length for index, length in enumerate(shape)])


def _from_rows(rows: Array, shape: Sequence[int], site: WeightSite) -> Array:
    axis, size = _axis_and_size(site)
    split = rows.reshape(*shape[:axis], shape[axis] // size, *shape[axis + 1 :], size)
    return np.moveaxis(split, -1, axis + 1).reshape(shape)


def _axis_and_size(site: WeightSite) -> tuple[int, int]:
    if site.axis is None or site.block_size is None:
        raise ValueError(f"'{site.tensor}' has no blocks")
    return site.axis, site.block_size
