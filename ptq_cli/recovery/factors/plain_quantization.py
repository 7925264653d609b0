"""A model quantized as a target wants it, with the ranges of some samples, to measure a change by."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptq_cli.core.numbers.arithmetic import QuantParameters, parameters_from_range, scale_from_amax
from ptq_cli.core.numbers.formats import IntegerFormat
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import decide_all
from ptq_cli.qdq.write.weights.weight_decisions import constant
from ptq_cli.runtime.sessions.session import Session
from ptq_cli.runtime.tapping.taps import tap

Range = tuple[float, float]
BYTE = 8
TINY = 1e-30


def tensor_ranges(
    model: ir.Model, tensors: Sequence[str], pieces: Iterable[Mapping[str, Array]], *, threads: int
) -> dict[str, Range]:
    """Return the lowest and the highest value of tensors on some samples; 0 is always between them.

    Edge case:
        NaN counts as nothing.

    Raises:
        RuntimeFailedError: ONNX Runtime failed.
    """
    fed = {value.name for value in model.graph.inputs}
    taps = [name for name in tensors if name not in fed]
    session = Session(tap(model, taps), threads=threads) if taps else None
    found = dict.fromkeys(tensors, (0.0, 0.0))
    for piece in pieces:
        made = dict(zip(taps, session.run(piece), strict=True)) if session is not None else {}
        for name in tensors:
            array = made.get(name, piece.get(name))
            if array is not None and array.size:
                low, high = found[name]
                found[name] = (min(low, float(array.min())), max(high, float(array.max())))
    return found


def plainly_quantized(
    model: ir.Model, plan: Plan, ranges: Mapping[str, Range], bits: int = BYTE
) -> StoredModel:
    """Return a model quantized with given ranges; the model stays as it is.

    Args:
        model: the float model.
        plan: for it.
        ranges: of each measured tensor of the plan.
        bits: of the weights. With fewer than 8, they are on a grid of as many, stored as 8: this needs no
            newer opset.
    """

    def decide(site: ActivationSite) -> QuantParameters:
        ends = [ranges[name] for name in plan.members(site.source)]
        return activation_grid(site, min(low for low, _ in ends), max(high for _, high in ends))

    quantized = model.clone()
    if bits < BYTE:
        _round_weights(quantized, plan, bits)
    quantize_in_place(quantized, plan, decide_all(quantized, plan, decide))
    return serialize(quantized)


def _round_weights(model: ir.Model, plan: Plan, bits: int) -> None:
    for site in {site.tensor: site for site in plan.weights}.values():
        value = model.graph.initializers[site.tensor]
        with constant(value) as array:
            axes = None if site.axis is None else tuple(set(range(array.ndim)) - {site.axis % array.ndim})
            largest = np.maximum(np.abs(array).max(axis=axes, keepdims=True), TINY)
            step = largest / (2 ** (bits - 1) - 1)
            value.const_value = ir.tensor(
                (np.rint(array / step) * step).astype(array.dtype), name=site.tensor
            )


def activation_grid(site: ActivationSite, low: float, high: float) -> QuantParameters:
    """Return the grid of a tensor with a range.

    Example:
        >>> from ptq_cli.core.numbers.formats import INT8_NARROW, UINT8
        >>> grid = activation_grid(ActivationSite("x", "x", UINT8, False), -1.0, 1.0)
        >>> int(grid.zero_point)
        128
        >>> grid = activation_grid(ActivationSite("x", "x", INT8_NARROW, True), -1.0, 1.27)
        >>> int(grid.zero_point), round(float(grid.scale), 6)
        (0, 0.01)
    """
    if not site.symmetric and isinstance(site.format, IntegerFormat):
        return parameters_from_range(low, high, site.format)
    # An unsigned format is then the signed one, shifted.
    signed = site.format if site.format.signed else IntegerFormat(site.format.bits, signed=True)
    zero_point = 0 if site.format.signed else -int(signed.qmin)
    return QuantParameters(
        scale_from_amax(max(-low, high), signed), np.asarray(zero_point, np.int64), site.format
    )
