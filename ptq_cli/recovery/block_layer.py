"""A layer whose weight has scales of blocks, from the floats that it reads and should make.

As ``layer_rows`` does, in a hundredth of the time: products of matrices are ONNX Runtime's, with one thread
each, and layers that read one tensor share what is known of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.qdq.write.site_parameters import Parameters
from ptq_cli.recovery.block_search import ROWS, divided_by, search_blocks
from ptq_cli.recovery.code_search import Codes
from ptq_cli.recovery.layer_rows import NO_HELP, LayerData, Part, read_parts
from ptq_cli.recovery.quantized_layer import (
    LayerState,
    QuantizedLayer,
    SolvedLayer,
    code_grid,
    decided_again,
    layer_state,
)
from ptq_cli.recovery.second_moments import CenteredMoments, Float64s, cholesky, held_share
from ptq_cli.runtime.probes import multiplied_floats

AT_ONCE = 1024
"""Rows whose products are added up in float32, which is far finer than the damping."""


@dataclass(frozen=True, eq=False)
class _ReadSums:
    """How many rows there are, the products of what they hold, (K, K), and its sums, (K,)."""

    rows: int
    gram: Float64s
    sums: Float64s


@dataclass
class SharedReads:
    """What is known of the tensor that was read last: the next layer may read it, too."""

    tensor: str = ""
    _sums: dict[str, _ReadSums] = field(default_factory=dict)
    _factors: dict[tuple[bool, int], Float64s] = field(default_factory=dict)

    def begin(self, tensor: str) -> None:
        """Forget what is known of any other tensor."""
        if tensor != self.tensor:
            self.tensor, self._sums, self._factors = tensor, {}, {}

    def sums(self, kind: str, parts: Sequence[Part]) -> _ReadSums:
        """Return the sums over the rows of one kind."""
        if kind not in self._sums:
            reads = [read for read, _ in parts]
            gram = np.sum([_products(read, read) for read in reads], axis=0)
            sums = np.sum([read.sum(axis=0, dtype=np.float64) for read in reads], axis=0)
            self._sums[kind] = _ReadSums(sum(map(len, reads)), gram, sums)
        return self._sums[kind]

    def factor(self, moments: CenteredMoments) -> Float64s:
        """Return the Cholesky factor of the damped moments of so many rows."""
        key = (moments.input_mean is not None, moments.rows)
        if key not in self._factors:
            self._factors[key] = cholesky(moments.curvature())
        return self._factors[key]


def solve_blocks(
    float_model: ir.Model,
    parameters: Parameters,
    layer: QuantizedLayer,
    data: LayerData,
    shared: SharedReads,
    *,
    threads: int,
) -> SolvedLayer | str:
    """Return the best integers, scales and bias that are found; as ``layer_rows.solve_layer``."""
    parts = read_parts(data)
    if isinstance(parts, str):
        return parts
    state = layer_state(float_model, parameters, layer)
    shared.begin(layer.reads)
    learn, check, decide = (
        _moments(layer, state, shared.sums(kind, own), own) if own else None
        for kind, own in zip(("learn", "check", "decide"), parts, strict=True)
    )
    assert learn is not None  # noqa: S101 - the rows were looked at
    best, totals = state.weight, learn
    if check is not None:
        both = [*parts[0], *parts[1]]
        totals = _moments(layer, state, shared.sums("both", both), both)
    if not layer.is_table:
        share = _share(shared, learn, check, state.weight) if check is not None else 1.0
        best = best + share * divided_by(shared.factor(totals), _pull(totals, best))
    curvature = totals.curvature()
    grid = code_grid(layer, state, slice(None), 1.0, np.zeros(len(best)))
    found, *errors = search_blocks(curvature, shared.factor(totals), best, grid, state.codes, threads=threads)
    bias = _bias(layer, found, totals)
    again = decided_again(parameters, layer, found, bias, 1.0)
    changed = again.differs(parameters, float_model)
    if changed and decide is not None:
        codes = ((state.codes, state.bias), (found, bias))
        before, after = (_error(decide, layer, state, item, own) for item, own in codes)
        if not after < before:
            return NO_HELP
    power = _quadratic(curvature, state.weight) or 1.0
    return SolvedLayer(
        before=float(errors[0].sum()) / power,
        after=float(errors[1].sum()) / power,
        damped=totals.rows < len(curvature),
        changed=changed,
        decided=again,
    )


def _share(shared: SharedReads, learn: CenteredMoments, check: CenteredMoments, weights: Float64s) -> float:
    """Return how far to go towards the optimum of all rows, as ``share_that_holds``."""
    change = divided_by(shared.factor(learn), _pull(learn, weights))
    gain = float((change * _pull(check, weights)).sum())
    return held_share(gain, _quadratic(check.gram, change), learn.rows, check.rows)


def _products(left: Array, right: Array) -> Float64s:
    """Return the products of two matrices' columns, summed over rows: (R, M) and (R, K) give (M, K)."""
    found = np.zeros((left.shape[1], right.shape[1]))
    for start in range(0, len(left), AT_ONCE):
        own = slice(start, start + AT_ONCE)
        found += multiplied_floats(left[own].T.astype(np.float32), right[own].astype(np.float32))
    return found


def _moments(
    layer: QuantizedLayer, state: LayerState, read: _ReadSums, parts: Sequence[Part]
) -> CenteredMoments:
    """Return the moments of some rows; where a bias makes up for means, only what varies counts.

    The target of a table is what its own weights make, since rows of it are looked up, too.
    """
    rows = read.rows
    gram, mean, target = read.gram / rows, read.sums / rows, None
    if layer.is_table:
        none = np.zeros((0, len(gram)))
        return CenteredMoments(rows=rows, gram=gram, cross=none, input_mean=None, target_mean=None)
    cross: Float64s = np.sum([_products(made, read) for read, made in parts], axis=0) / rows
    if state.bias is not None:
        target = np.sum([made.sum(axis=0, dtype=np.float64) for _, made in parts], axis=0) / rows
        gram, cross = gram - np.outer(mean, mean), cross - np.outer(target, mean)
    return CenteredMoments(
        rows=rows, gram=gram, cross=cross, input_mean=None if target is None else mean, target_mean=target
    )


def _pull(moments: CenteredMoments, weights: Float64s) -> Float64s:
    """Return half of the downward slope of the error at some weights: (M, K)."""
    made: Float64s = multiplied_floats(weights, moments.gram)
    return moments.cross - made


def _quadratic(matrix: Float64s, rows: Float64s) -> float:
    """Return the sum of ``r A r`` over rows, some of them at once: a table has as many as there are words."""
    parts = (rows[start : start + ROWS] for start in range(0, len(rows), ROWS))
    return sum(float((multiplied_floats(part, matrix) * part).sum()) for part in parts)


def _error(
    moments: CenteredMoments, layer: QuantizedLayer, state: LayerState, codes: Codes, bias: Float64s | None
) -> float:
    """Return the mean square error of the outputs, less the mean square of the targets if not of a table."""
    if layer.is_table:
        starts = range(0, len(state.weight), ROWS)
        parts = [slice(start, start + ROWS) for start in starts]
        return sum(
            _quadratic(moments.gram, codes.part(own).weights(layer.geometry.block) - state.weight[own])
            for own in parts
        )
    weights = codes.weights(layer.geometry.block)
    found = -float((weights * (moments.cross + _pull(moments, weights))).sum())
    if bias is not None and moments.input_mean is not None and moments.target_mean is not None:
        missed = moments.target_mean - (weights * moments.input_mean).sum(axis=1) - bias
        found += float((missed**2).sum())
    return found


def _bias(layer: QuantizedLayer, found: Codes, moments: CenteredMoments) -> Float64s | None:
    if moments.input_mean is None or moments.target_mean is None:
        return None
    made: Float64s = (found.weights(layer.geometry.block) * moments.input_mean).sum(axis=1)
    return moments.target_mean - made
