"""Quantizers of weights with a scale for each block: few bits near to the values, and NVFP4's two levels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.amax.decide import ANY_SCALE, ScaleRules
from ptq_cli.amax.weight_ranges import WeightRanges, choose_weight_ranges, joined_unsearched, mse_of_blocks
from ptq_cli.core.arithmetic import (
    PART,
    ZERO_AMAX,
    FloatArray,
    QuantParameters,
    dequantize,
    quantize,
    round_to_float,
    scale_from_amax,
)
from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN, IntegerFormat, PerAxis
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import short_name
from ptq_cli.models.pair_operators import DOMAIN, FP4_BLOCK, FP4_DYNAMIC_QUANTIZE
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.new_nodes import NewNodes, put_in_front
from ptq_cli.qdq.write.weight_quantizer import StoredWeight, WeightChoice, storage_bits
from ptq_cli.recipe.sections import AmaxSettings

Value = TypeVar("Value", bound=np.generic)


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

        Shapes: weight: any; scale: (blocks,).
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


def rows_of_blocks(weight: npt.NDArray[Value], site: WeightSite) -> npt.NDArray[Value]:
    """Return a weight's blocks as the rows of a matrix.

    Shapes: weight: (…, n, …), with n along the site's axis; the result (blocks, block size).
    Edge case: A last block that is shorter is filled with 0, which is in every range.

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
    rows: npt.NDArray[Value] = np.ascontiguousarray(np.moveaxis(split, axis + 1, -1)).reshape(-1, size)
    return rows


def in_place_of_blocks(parameter: Array, shape: Sequence[int], site: WeightSite) -> Array:
    """Return the scales or zero points of blocks as a DequantizeLinear takes them.

    Shapes: parameter: (blocks,); the result the weight's, with the site's axis divided by the block size.

    Source: ONNX DequantizeLinear (opset 21), ``block_size``.
    """
    axis, size = _axis_and_size(site)
    return parameter.reshape(
        [-(-length // size) if index == axis else length for index, length in enumerate(shape)]
    )


def dequantized_blocks(integers: Array, parameters: QuantParameters, site: WeightSite) -> FloatArray:
    """Return the real values of a weight in blocks, whose parameters are those of the blocks as rows."""
    rows = dequantize(rows_of_blocks(integers, site), parameters)
    return _from_rows(rows, integers.shape, site)


def _from_rows(rows: npt.NDArray[Value], shape: Sequence[int], site: WeightSite) -> npt.NDArray[Value]:
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


_LARGEST = (
    FLOAT4_E2M1.largest * FLOAT8_E4M3FN.largest
)  # value times scale of a block, in steps of the one scale
_SMALLEST_SCALE = 2.0**-9  # least E4M3: of a block whose values are near 0 beside those of others


def two_level_scales(amax: FloatArray) -> tuple[np.float32, FloatArray]:
    """Return the one scale of a tensor, and the scales of its blocks, which are E4M3 values.

    Shapes: amax: (blocks,); the blocks' scales have the same shape.
    Units: The one scale: real units per step of a block's scale. A block's: its values per value of E2M1.
    Edge case: A block of zeros, or a tensor of them, has scale 1.

    Source: NVIDIA ModelOpt, ``NVFP4QTensor``: amax / 6 / 448, and amax of the block / 6 / that.

    Example:
        >>> one, blocks = two_level_scales(np.float32([2688.0, 6.0, 0.0]))
        >>> float(one), blocks.tolist()
        (1.0, [448.0, 1.0, 1.0])
    """
    largest = np.max(amax, initial=0.0)
    one = np.float32(largest / _LARGEST if largest > ZERO_AMAX else 1.0)
    rounded = round_to_float(amax / (FLOAT4_E2M1.largest * one), FLOAT8_E4M3FN)
    scales = np.where(amax > 0, np.maximum(rounded, _SMALLEST_SCALE), 1.0)
    return one, scales.astype(np.float32)


@dataclass(frozen=True)
class TwoLevelQuantizer:
    """E2M1 values in blocks of 16 whose scales are E4M3 already, so that any scale will do."""

    settings: AmaxSettings
    rules: ScaleRules = ANY_SCALE

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return the product of both scales for each block.

        Shapes: weight: any whose axis the blocks divide; scale: (blocks,).
        """
        ranges = self._ranges(_rows(weight, site), site)
        one, scales = two_level_scales(ranges.amax.astype(np.float32))
        scale: FloatArray = (one * scales).astype(np.float32)
        parameters = QuantParameters(scale, np.zeros(scale.shape, np.int64), site.format, PerAxis(0))
        return WeightChoice(parameters, ranges.unsearched)

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return the values, and the one scale."""
        assert parameters is not None  # noqa: S101 - a scaled weight has them
        rows = _rows(weight, site)
        one, _ = two_level_scales(self._ranges(rows, site).amax.astype(np.float32))
        values = quantize(rows, parameters)
        placed = values.reshape(weight.T.shape).T if site.axis == 0 else values.reshape(weight.shape)
        return StoredWeight(integers=placed, tensor_scale=one)

    def _ranges(self, rows: FloatArray, site: WeightSite) -> WeightRanges:
        return choose_weight_ranges(rows, PerAxis(0), self.settings, site.format)


def _rows(weight: FloatArray, site: WeightSite) -> FloatArray:
    """Return the blocks of a matrix as rows, those of one output after another."""
    return np.ascontiguousarray(weight.T if site.axis == 0 else weight).reshape(-1, FP4_BLOCK)


def add_two_levels(
    new: NewNodes, node: ir.Node, site: WeightSite, stored: StoredWeight, scale: FloatArray
) -> ir.Value:
    """Add a weight in front of its reader, and return what it reads.

    The blocks lie along the last axis, as TensorRT needs it: a weight whose first axis they divide is stored
    transposed, with a Transpose behind it.

    Shapes: scale: (blocks,), the product of both scales.
    """
    assert stored.tensor_scale is not None  # noqa: S101 - the caller has asked
    is_turned, prefix = site.axis == 0, short_name(site.tensor)
    values = stored.array().T if is_turned else stored.array()
    own = round_to_float(scale.reshape(len(values), -1) / stored.tensor_scale, FLOAT8_E4M3FN)
    integers = new.constant(f"{prefix}.quantized", values)
    blocks = new.constant(f"{prefix}.block_scale", own.astype(FLOAT8_E4M3FN.storage))
    one = new.constant(f"{prefix}.scale", np.asarray(stored.tensor_scale, np.float32))
    restored = put_in_front(node, *_restored(new, integers, blocks, one, prefix))
    if not is_turned:
        return restored
    given = {"dtype": ir.DataType.FLOAT, "shape": ir.Shape(stored.shape)}
    name = f"{prefix}/Transpose"
    return new.put(node, "Transpose", [restored], name, attributes={"perm": [1, 0]}, **given)


def _restored(
    new: NewNodes, values: ir.Value, blocks: ir.Value, scale: ir.Value, prefix: str
) -> list[ir.Node]:
    """Make the DequantizeLinears of the scales of blocks, and of values in blocks along the last axis."""
    scales = new.dequantize(blocks, (scale,), f"{prefix}.scales")
    return [scales, new.dequantize(values, scales.outputs, prefix, -1, FP4_BLOCK)]


def dynamic_pair(new: NewNodes, value: ir.Value, scale: ir.Value) -> list[ir.Node]:
    """Return the nodes that make 4-bit floats of an activation at each run and restore them, in order."""
    prefix = short_name(value.name or "")
    quantize = ir.node(
        FP4_DYNAMIC_QUANTIZE,
        [value, scale],
        {"axis": -1, "block_size": FP4_BLOCK, "scale_type": int(ir.DataType.FLOAT8E4M3FN)},
        domain=DOMAIN,
        num_outputs=2,
        name=new.claim(f"{prefix}/{FP4_DYNAMIC_QUANTIZE}"),
    )
    values, blocks = quantize.outputs
    values.name, blocks.name = f"{quantize.name}.output", f"{quantize.name}.scales"
    values.type, blocks.type = ir.TensorType(ir.DataType.FLOAT4E2M1), ir.TensorType(ir.DataType.FLOAT8E4M3FN)
    values.shape = value.shape
    if value.shape is not None and isinstance(value.shape[-1], int):
        blocks.shape = ir.Shape([*list(value.shape)[:-1], value.shape[-1] // FP4_BLOCK])
    new.graph.opset_imports.setdefault(DOMAIN, 1)
    return [quantize, *_restored(new, values, blocks, scale, prefix)]
