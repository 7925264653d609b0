"""Quantizer of weights with a scale for each block of an axis: few bits, and near to the values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ptq_cli.amax.finish import ANY_SCALE, ScaleRules
from ptq_cli.amax.weight_ranges import choose_weight_ranges, joined_unsearched, mse_of_blocks
from ptq_cli.core.arithmetic import (
    PART,
    ZERO_AMAX,
    FloatArray,
    QuantParameters,
    quantize,
    scale_from_amax,
)
from ptq_cli.core.formats import IntegerFormat, PerAxis
from ptq_cli.core.tensors import Array
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.weight_quantizer import StoredWeight, WeightChoice, storage_bits
from ptq_cli.recipe.sections import AmaxSettings


@dataclass(frozen=True)
class BlockQuantizer:
    """Integers spread evenly over the [-amax, amax] of their block.

    The parameters are those of the blocks as rows; the file has their scales in the weight's own order. The
    last block of an axis may be shorter than the others.
    """

    settings: AmaxSettings
    packed: bool = False
    rules: ScaleRules = ANY_SCALE

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return a scale for each block, and a zero point where the integers are unsigned.

        Shapes:
            weight: any; scale: (blocks,).
        """
        parts = (rows_of_blocks(part, site) for part in _parts(weight, site))
        is_searched = self.settings.weight_method == "mse"
        if isinstance(site.format, IntegerFormat) and (is_searched or not site.format.signed):
            of_rows = mse_of_blocks if is_searched else _asymmetric
            found = [of_rows(rows, site.format) for rows in parts]
            zeros = np.concatenate([item.zero_point for item in found])
            scale = np.concatenate([item.scale for item in found])
            return WeightChoice(QuantParameters(scale, zeros, site.format, PerAxis(0)))
        ranges = [choose_weight_ranges(rows, PerAxis(0), self.settings, site.format) for rows in parts]
        scale = np.concatenate([scale_from_amax(item.amax, site.format) for item in ranges])
        zeros = np.broadcast_to(np.int64(0), scale.shape)  # One number: a weight has millions of blocks.
        parameters = QuantParameters(scale, zeros, site.format, PerAxis(0))
        return WeightChoice(parameters, joined_unsearched(ranges))

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return the integers that QuantizeLinear gives."""
        assert parameters is not None  # noqa: S101 - a scaled weight has them
        integers: Array = np.empty(weight.shape, parameters.format.storage)
        row, block = 0, 0
        for part in _parts(weight, site):
            rows = rows_of_blocks(part, site)
            own = slice(block, block + len(rows))
            few = replace(parameters, scale=parameters.scale[own], zero_point=parameters.zero_point[own])
            integers[row : row + len(part)] = _from_rows(quantize(rows, few), part.shape, site)
            row, block = row + len(part), own.stop
        return StoredWeight(integers=integers, bits=storage_bits(site, self.packed))


def _parts(weight: FloatArray, site: WeightSite) -> Iterator[FloatArray]:
    """Yield a weight in parts along its first axis, of whole blocks: each is copied to make rows of it."""
    axis, size = _axis_and_size(site)
    step = size if axis == 0 else 1
    rows = step * max(1, PART // max(weight[:step].size, 1))
    for start in range(0, max(len(weight), 1), rows):
        yield weight[start : start + rows]


def rows_of_blocks(weight: FloatArray, site: WeightSite) -> FloatArray:
    """Return a weight's blocks as the rows of a matrix.

    Shapes:
        weight: (…, n, …), with n along the site's axis; the result (blocks, block size).

    Edge case:
        A last block that is shorter is filled with 0, which is in every range.

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW
        >>> site = WeightSite(
        ...     tensor="w", node="layer", input_index=1, format=INT8_NARROW, axis=0, block_size=2
        ... )
        >>> rows_of_blocks(np.float32([[1, 5], [2, 6], [3, 7], [4, 8]]), site).tolist()
        [[1.0, 2.0], [5.0, 6.0], [3.0, 4.0], [7.0, 8.0]]
    """
    axis, size = _axis_and_size(site)
    if rest := -weight.shape[axis] % size:
        weight = np.pad(weight, [(0, rest if index == axis else 0) for index in range(weight.ndim)])
    split = weight.reshape(*weight.shape[:axis], -1, size, *weight.shape[axis + 1 :])
    rows: FloatArray = np.ascontiguousarray(np.moveaxis(split, axis + 1, -1)).reshape(-1, size)
    return rows


def in_place_of_blocks(parameter: Array, shape: Sequence[int], site: WeightSite) -> Array:
    """Return the scales or zero points of blocks as a DequantizeLinear takes them.

    Shapes:
        parameter: (blocks,); the result the weight's, with the site's axis divided by the block size.

    Source:
        ONNX DequantizeLinear (opset 21), ``block_size``.
    """
    axis, size = _axis_and_size(site)
    return parameter.reshape(
        [-(-length // size) if index == axis else length for index, length in enumerate(shape)]
    )


def _from_rows(rows: Array, shape: Sequence[int], site: WeightSite) -> Array:
    axis, size = _axis_and_size(site)
    split = rows.reshape(*shape[:axis], -(-shape[axis] // size), *shape[axis + 1 :], size)
    whole = np.moveaxis(split, -1, axis + 1).reshape(*shape[:axis], -1, *shape[axis + 1 :])
    return whole[(slice(None),) * axis + (slice(shape[axis]),)]


def _asymmetric(rows: FloatArray, format: IntegerFormat) -> QuantParameters:
    """Return the parameters with which the integers reach from the smallest value of a row to the largest."""
    low, high = np.minimum(rows.min(axis=1), 0.0), np.maximum(rows.max(axis=1), 0.0)
    width = (high - low).astype(np.float64)
    scale = np.where(width > ZERO_AMAX, width / format.qmax, 1.0).astype(np.float32)
    zeros = np.clip(np.rint(-low / scale), 0, format.qmax).astype(np.int64)
    return QuantParameters(scale, zeros, format, PerAxis(0))


def _axis_and_size(site: WeightSite) -> tuple[int, int]:
    if site.axis is None or site.block_size is None:
        raise ValueError(f"'{site.tensor}' has no blocks")
    return site.axis, site.block_size
