"""A row of the analysis for each quantized constant: what its integers cost, and why."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from ptq_cli.models.operators.integer_operators import RECURRENT
from ptq_cli.qdq.read.constant_values import ConstantValues, constant_values
from ptq_cli.qdq.read.twin_graphs import QuantizedConstant, TwinGraphs
from ptq_cli.report.analysis.causes import GOOD_DB, Finding, Use, weight_finding
from ptq_cli.report.analysis.constant_costs import ConstantUse, overflowing, use_of
from ptq_cli.report.analysis.tensor_rows import Kind, TensorAnalysis

BIAS = "int32"


def constant_rows(
    twins: TwinGraphs, better: Callable[[str, ConstantValues], str]
) -> Iterator[TensorAnalysis]:
    """Yield a row for each quantized constant; one that several layers share has one row.

    Args:
        twins: both models.
        better: returns which amax method would be better for a weight; called only for bad ones.
    """
    biases = (item for item in twins.constants if item.stored.dtype == ir.DataType.INT32)
    biased = {constant.node.name or "": constant for constant in biases}
    seen: dict[tuple[str, ir.Value], list[QuantizedConstant]] = {}
    for constant in twins.constants:
        # Layers that store one constant in the same way share the stored constant.
        seen.setdefault((constant.tensor, constant.stored), []).append(constant)
    for constants in seen.values():
        first = constants[0]
        values = constant_values(twins, first)
        is_bias = values.dtype == BIAS
        use = use_of(values, None if is_bias else _output_channels(first.node, values.floats.ndim))
        readers = tuple(constant.node.name or "" for constant in constants)
        overflow = any(
            overflowing(constant_values(twins, biased[name]))
            for name in readers
            if not is_bias and use.widened and name in biased
        )
        found = _constant_finding(values, use, readers, partial(better, first.tensor), overflow=overflow)
        yield _constant_row(
            first.tensor, "bias" if is_bias else "weight", first.node.op_type, values, use, readers, found
        )


def _constant_finding(
    values: ConstantValues,
    use: ConstantUse,
    readers: Sequence[str],
    better: Callable[[ConstantValues], str],
    *,
    overflow: bool,
) -> Finding:
    if values.dtype == BIAS:
        return Finding()
    shared = use.imbalance if values.axis is None else None
    method = better(values) if use.sqnr_db < GOOD_DB else ""
    numbers = Use(
        sqnr_db=use.sqnr_db,
        clip_share=use.clip_share,
        clipped=use.clipped,
        used=use.used,
        imbalance=shared,
        levels=use.levels,
        readers=readers,
        better=method,
    )
    return weight_finding(
        numbers, widened=use.widened if overflow else 0.0, quantizer=f"looked up: {values.dtype}"
    )


def _constant_row(
    name: str,
    kind: Kind,
    op: str,
    values: ConstantValues,
    use: ConstantUse,
    readers: tuple[str, ...],
    found: Finding,
) -> TensorAnalysis:
    zeros = values.grid.zero_point if values.grid is not None else None
    return TensorAnalysis(
        name=name,
        kind=kind,
        layers=readers,
        op=op,
        dtype=values.dtype,
        shape=values.floats.shape,
        axis=values.axis,
        low=use.low,
        high=use.high,
        scale_min=float(np.min(values.scale)) if values.scale is not None else None,
        scale_max=float(np.max(values.scale)) if values.scale is not None else None,
        zero_point_min=int(zeros.min()) if zeros is not None else None,
        zero_point_max=int(zeros.max()) if zeros is not None else None,
        clipped=use.clipped,
        range_used=use.used,
        channel_imbalance=use.imbalance,
        sqnr_accumulated_db=use.sqnr_db,
        sqnr_isolated_db=use.sqnr_db,
        cause=found.cause,
        finding=found.finding,
        remedy=found.remedy,
    )


def _output_channels(node: ir.Node, rank: int) -> int | None:
    """Return the axis of a weight's output channels."""
    is_transposed = node.attributes.get_int("transB", 0)
    axes = {"Conv": 0, "ConvTranspose": 1, "MatMul": rank - 1, "Gemm": 0 if is_transposed else 1}
    if node.op_type in RECURRENT:
        return 1
    return axes.get(node.op_type) if rank > 1 else None
