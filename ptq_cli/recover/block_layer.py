"""A layer whose weight has scales of blocks, from the floats that it reads and should make.

As ``solve_layer`` does, in a hundredth of the time: products of matrices are ONNX Runtime's, with one thread
each, and layers that read one tensor share what is known of it. Some thousand channels are taken at once, so
that a table of words needs no more memory than other layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.qdq.write.site_parameters import Parameters
from ptq_cli.qdq.write.weight_quantizer import HALF_BYTE
from ptq_cli.recover.block_search import search_blocks
from ptq_cli.recover.code_search import Codes, joined
from ptq_cli.recover.layer_geometry import LayerData, RowsPart
from ptq_cli.recover.layer_state import (
    EVERY,
    NO_HELP,
    STATE_CHANNELS_AT_ONCE,
    LayerState,
    SolvedLayer,
    code_grid,
    decided_again,
    layer_state,
)
from ptq_cli.recover.least_squares import CenteredMoments, Factor, cholesky, held_share, near_solution
from ptq_cli.recover.quantized_layer import QuantizedLayer
from ptq_cli.recover.second_moments import Float64s
from ptq_cli.runtime.products import multiplied_floats

_JUDGED = 32  # channels, at most, that say how far to go: it is one number for all of them
_LARGE = 1 << 27  # bytes of a matrix of 4,096 inputs
_AT_ONCE = 1024  # rows whose products are added up in float32, which is far finer than the damping


@dataclass(frozen=True, eq=False)
class _Sums:
    """How many rows there are, the products of what they hold with each other, and its sums."""

    rows: int
    gram: Float64s
    sums: Float64s

    def merge(self, other: "_Sums") -> "_Sums":
        return _Sums(self.rows + other.rows, self.gram + other.gram, self.sums + other.sums)

    def part(self, own: slice) -> "_Sums":
        return _Sums(self.rows, self.gram[own], self.sums[own])


@dataclass
class SharedReads:
    """What is known of the tensor that was read last: the next layer may read it, too."""

    tensor: str = ""
    _sums: dict[str, _Sums] = field(default_factory=dict)
    _factors: dict[tuple[bool, int], Factor] = field(default_factory=dict)

    def begin(self, tensor: str) -> None:
        """Forget what is known of any other tensor."""
        if tensor != self.tensor:
            self.tensor, self._sums, self._factors = tensor, {}, {}

    def sums(self, kind: str, parts: Sequence[RowsPart]) -> _Sums:
        """Sums over the rows of one kind."""
        if kind not in self._sums:
            self._sums[kind] = _summed([(read, read) for read, _ in parts])
        return self._sums[kind]

    def forget_large(self) -> None:
        """Forget sums that take more memory than it is worth: what has many inputs is seldom read twice."""
        if any(item.gram.nbytes > _LARGE for item in self._sums.values()):
            self._sums = {}

    def factor(self, moments: CenteredMoments) -> Factor:
        """Cholesky factor of the damped moments of so many rows."""
        key = (moments.input_mean is not None, moments.rows)
        if key not in self._factors:
            if moments.gram.nbytes > _LARGE:
                self._factors = {}
            self._factors[key] = cholesky(moments.curvature())
        return self._factors[key]


class _SumsOfParts:
    """What a layer is fitted to, for some channels at a time: for all logits it would be too large."""

    def __init__(
        self,
        layer: QuantizedLayer,
        shared: SharedReads,
        kinds: Mapping[str, Sequence[RowsPart]],
        channels: int,
    ) -> None:
        self._layer, self._shared = layer, shared
        self._kinds = {kind: parts for kind, parts in kinds.items() if parts}
        # Of a layer with few channels the products are taken once, and parts of them are looked at.
        is_whole = channels <= STATE_CHANNELS_AT_ONCE and not layer.is_table
        self._made = {kind: _products(parts, EVERY) for kind, parts in self._kinds.items() if is_whole}
        self._read: _Sums | None = None

    def total_read(self) -> _Sums:
        """Return the sums over all rows of what the layer reads."""
        if self._read is None:
            self._read = _merged([self._shared.sums(kind, parts) for kind, parts in self._kinds.items()])
            self._shared.forget_large()
        return self._read

    def each(self, kind: str, own: slice) -> CenteredMoments:
        """Return the moments of some channels over the rows of one kind."""
        return self._moments(self._shared.sums(kind, self._kinds[kind]), self._products_of(kind, own))

    def total(self, own: slice) -> CenteredMoments:
        """Return the moments of some channels over all rows; a table has no targets but its own weights."""
        read = self.total_read()
        if self._layer.is_table:
            gram = read.gram / read.rows
            return CenteredMoments(rows=read.rows, gram=gram, cross=np.zeros((0, len(gram))))
        return self._moments(read, _merged([self._products_of(kind, own) for kind in self._kinds]))

    def _moments(self, read: _Sums, made: _Sums) -> CenteredMoments:
        """Return moments; where a bias makes up for means, only what varies counts."""
        rows = read.rows
        gram, cross = read.gram / rows, made.gram / rows
        if self._layer.bias is None:
            return CenteredMoments(rows=rows, gram=gram, cross=cross)
        mean, target = read.sums / rows, made.sums / rows
        gram, cross = gram - np.outer(mean, mean), cross - np.outer(target, mean)
        return CenteredMoments(rows=rows, gram=gram, cross=cross, input_mean=mean, target_mean=target)

    def _products_of(self, kind: str, own: slice) -> _Sums:
        known = self._made.get(kind)
        return known.part(own) if known is not None else _products(self._kinds[kind], own)


def _merged(sums: Sequence[_Sums]) -> _Sums:
    first, *others = sums
    return first.merge(others[0]) if others else first


def _products(parts: Sequence[RowsPart], own: slice) -> _Sums:
    return _summed([(made[:, own], read) for read, made in parts])


def _summed(pairs: Sequence[tuple[Array, Array]]) -> _Sums:
    """Return the products of two matrices' columns, and the sums of the first one's.

    Shapes: (R, M) and (R, K) give (M, K), and (M,).
    """
    left, right = pairs[0]
    gram, sums, rows = np.zeros((left.shape[1], right.shape[1])), np.zeros(left.shape[1]), 0
    for left, right in pairs:
        rows += len(left)
        sums += left.sum(axis=0, dtype=np.float64)
        for start in range(0, len(left), _AT_ONCE):
            own = slice(start, start + _AT_ONCE)
            gram += multiplied_floats(left[own].T.astype(np.float32), right[own].astype(np.float32))
    return _Sums(rows, gram, sums)


def solve_blocks(
    float_model: ir.Model,
    parameters: Parameters,
    layer: QuantizedLayer,
    data: LayerData,
    shared: SharedReads,
    *,
    threads: int,
) -> SolvedLayer | str:
    """Return the best integers, scales and bias that are found; as ``solve_layer``."""
    parts = data.read()
    if isinstance(parts, str):
        return parts
    shared.begin(layer.reads)
    learn, check, decide = parts
    channels, share = layer.geometry.channels(parameters.decided[layer.site].stored.shape), 1.0
    sums = _SumsOfParts(layer, shared, {"learn": learn, "check": check}, channels)
    if check and not layer.is_table:
        # It is one number for all channels, so some of them tell.
        judged = slice(None, None, -(-channels // _JUDGED))
        weights = layer_state(float_model, parameters, layer, judged).weight
        share = _share(shared.factor(sums.total(judged)), sums, judged, weights)
    chosen = []
    for own in (
        slice(start, start + STATE_CHANNELS_AT_ONCE) for start in range(0, channels, STATE_CHANNELS_AT_ONCE)
    ):
        state, moments = layer_state(float_model, parameters, layer, own), sums.total(own)
        rows = [(read, made if layer.is_table else made[:, own]) for read, made in decide]
        search = _Search(
            layer=layer, state=state, moments=moments, factor=shared.factor(moments), threads=threads
        )
        chosen.append(search.chosen(share, rows))
    codes, bias = joined([item.codes for item in chosen]), None
    if chosen[0].bias is not None:
        bias = np.concatenate([item.bias for item in chosen if item.bias is not None])
    again = decided_again(parameters, layer, codes, bias, 1.0)
    changed = again.differs(parameters, float_model)
    errors, held_out = (
        np.sum([getattr(item, name) for item in chosen], axis=0) for name in ("errors", "held_out")
    )
    if changed and decide and not held_out[1] < held_out[0]:
        return NO_HELP
    power = sum(item.power for item in chosen) or 1.0
    return SolvedLayer(
        before=float(errors[0]) / power,
        after=float(errors[1]) / power,
        damped=sums.total_read().rows < len(layer.geometry.block),
        changed=changed,
        decided=again,
    )


def _share(factor: Factor, sums: _SumsOfParts, judged: slice, weights: Float64s) -> float:
    """Share of the way to the optimum of all rows, as ``share_that_holds``; ``factor`` is theirs."""
    # One after the other: the moments of some thousand inputs are as large as ten of their layers.
    moments = sums.each("learn", judged)
    rows = moments.rows
    change = near_solution(moments.curvature(), factor, moments.pull(weights))
    moments = sums.each("check", judged)
    gain = float((change * moments.pull(weights)).sum())
    cost = float((multiplied_floats(change, moments.gram) * change).sum())
    return held_share(gain, cost, rows, moments.rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Chosen:
    """What is chosen for some channels.

    Attributes:
        power: of what they make.
        errors: of the output before and after; ``held_out``: the same on samples to decide by.
    """

    codes: Codes
    bias: Float64s | None
    power: float
    errors: tuple[float, float]
    held_out: tuple[float, float]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Search:
    """The search for the constants of some channels."""

    layer: QuantizedLayer
    state: LayerState
    moments: CenteredMoments
    factor: Factor
    threads: int

    def chosen(self, share: float, decide: Sequence[RowsPart]) -> _Chosen:
        """Return the best constants, after going by ``share`` from the weights to the optimum."""
        layer, state, moments = self.layer, self.state, self.moments
        curvature, best = moments.curvature(), state.weight
        if not layer.is_table:
            best = best + share * self.factor.solve(moments.pull(best))
        grid = code_grid(layer, state, EVERY, 1.0, np.zeros(len(best)))
        found, *errors = search_blocks(
            curvature, self.factor.lower, best, grid, state.codes, threads=self.threads
        )
        bias = moments.bias(found.weights(layer.geometry.block))
        few = layer.site.format.bits <= HALF_BYTE
        return _Chosen(
            # In an eighth of the memory: a table has millions of them, of so many bits and a zero point.
            codes=replace(found, integers=found.integers.astype(np.int8 if few else np.int16)),
            bias=bias,
            power=float((multiplied_floats(state.weight, curvature) * state.weight).sum()),
            errors=(float(errors[0].sum()), float(errors[1].sum())),
            held_out=(self._missed(state.codes, state.bias, decide), self._missed(found, bias, decide)),
        )

    def _missed(self, codes: Codes, bias: Float64s | None, parts: Sequence[RowsPart]) -> float:
        """Return the sum of the squares that what channels make of rows is away from what they should."""
        # Those of a table should make what its own weights do.
        weights, is_table = codes.weights(self.layer.geometry.block), self.layer.is_table
        if is_table:
            weights = weights - self.state.weight
        turned, total = weights.T.astype(np.float32), 0.0
        for read, made in parts:
            for start in range(0, len(read), _AT_ONCE):
                own = slice(start, start + _AT_ONCE)
                found = multiplied_floats(read[own].astype(np.float32), turned)
                if not is_table:
                    found -= made[own]
                if bias is not None:
                    found += bias.astype(np.float32)
                total += float(np.square(found, dtype=np.float64).sum())
        return total
