"""What a layer reads at some of its output positions, and what it makes there, as rows of two matrices."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.compiled import compiled
from ptq_cli.core.tensors import Array
from ptq_cli.qdq.write.site_parameters import Parameters
from ptq_cli.recover.code_search import Codes
from ptq_cli.recover.input_moments import byte_moments
from ptq_cli.recover.layer_geometry import OUTSIDE, LayerGeometry, Window, spread
from ptq_cli.recover.quantized_layer import (
    QuantizedLayer,
    SolvedLayer,
    decided_again,
    layer_state,
    search_layer,
)
from ptq_cli.recover.second_moments import (
    CenteredMoments,
    Factor,
    Float64s,
    Int64s,
    SecondMoments,
    centered,
    factored,
    fit_least_squares,
    second_moments,
    share_that_holds,
)
from ptq_cli.runtime.products import multiplied_floats

AT_ONCE = 4096
"""Rows that are multiplied at once: enough for a product of matrices to be fast."""

Part = tuple[Array, npt.NDArray[np.float32]]
Chosen = Callable[[int], bool]
"""Tells by its number whether a sample is meant."""


def every(sample: int) -> bool:
    """Mean every sample."""
    del sample
    return True


class LayerRows:
    """Collects the rows of one layer, piece by piece."""

    def __init__(self, geometry: LayerGeometry, *, wanted: int, samples: int, outside: int) -> None:
        """Take about ``wanted`` rows, evenly from all samples; the padding reads ``outside``."""
        self._geometry = geometry
        self._each = -(-wanted // max(samples, 1))
        self._outside = outside
        self._tables: dict[tuple[tuple[int, ...], tuple[int, ...]], Int64s] = {}
        self._pieces: dict[int, list[tuple[int, Part]]] = {}

    def add(self, piece: int, read: Array, made: Array, *, first: int) -> None:
        """Take the rows of a piece, which its number orders; threads may add pieces at the same time.

        Shapes:
            read: (samples, C, …) of a convolution, otherwise (samples, …, K); made: alike, with M for C or K.
        """
        rows = self._matrix_rows if self._geometry.window is None else self._window_rows
        if read.ndim == 1:  # A MatMul may read a vector, which is one row.
            read, made = read[None], made[None]
        self._pieces[piece] = [
            (first + sample, rows(np.ascontiguousarray(read[sample]), made[sample], first + sample))
            for sample in range(len(read))
        ]

    def parts(self, chosen: Chosen = every) -> Iterator[Part]:
        """Yield what was read and made, some thousand rows at a time, in the order of the pieces.

        Shapes:
            (rows, groups * K), (rows, M).
        """
        waiting: list[Part] = []
        for piece in sorted(self._pieces):
            waiting += [part for sample, part in self._pieces[piece] if chosen(sample)]
            if sum(len(read) for read, _ in waiting) >= AT_ONCE:
                yield _joined(waiting)
                waiting = []
        if any(len(read) for read, _ in waiting):
            yield _joined(waiting)

    def forget(self) -> None:
        """Let go of what was taken."""
        self._pieces = {}

    def _matrix_rows(self, read: Array, made: Array, sample: int) -> Part:
        read, made = read.reshape(-1, read.shape[-1]), made.reshape(-1, made.shape[-1])
        chosen = spread(len(read), self._each, sample)
        return read[chosen], made[chosen].astype(np.float32)

    def _window_rows(self, read: Array, made: Array, sample: int) -> Part:
        window = self._geometry.window
        assert window is not None  # noqa: S101 - the caller has asked
        chosen = spread(int(np.prod(made.shape[1:])), self._each, sample)
        positions = self._positions(window, read.shape[1:], made.shape[1:])[chosen]
        rows = np.empty((len(chosen), len(read) * positions.shape[1]), read.dtype)
        gather(read.reshape(len(read), -1), positions, read.dtype.type(self._outside), rows)
        return rows, made.reshape(len(made), -1)[:, chosen].T.astype(np.float32)

    def _positions(self, window: Window, taken: Sequence[int], given: Sequence[int]) -> Int64s:
        key = (tuple(taken), tuple(given))
        if key not in self._tables:
            self._tables[key] = window.positions(*key)
        return self._tables[key]


def _joined(parts: Sequence[Part]) -> Part:
    return np.concatenate([read for read, _ in parts]), np.concatenate([made for _, made in parts])


@compiled
def gather(
    source: Array, positions: Int64s, outside: float, rows: Array
) -> None:  # pragma: no cover - compiled
    """Write what each output position reads into a row: (C, S) at (R, P) becomes (R, C * P)."""
    count, size = positions.shape
    for row in range(count):
        for channel in range(source.shape[0]):
            for k in range(size):
                position = positions[row, k]
                if position == OUTSIDE:
                    rows[row, channel * size + k] = outside
                else:
                    rows[row, channel * size + k] = source[channel, position]


# One layer's integers, scales and bias, from the rows that it reads and should make.


STEPS = 32767
"""On either side of 0, of targets and of inputs that are floats: 16 bits are finer than a layer's error."""
CHECKED = 4
"""Every fourth sample that is learned from says how far the optimum of the others holds."""
JUDGED = 8
"""Channels of each group that it is judged by, at most: it is one number for all of them."""
NO_ROWS = "no data reached this part of the model"
NO_HELP = "the error on the held-out samples did not fall"


@dataclass(frozen=True, kw_only=True)
class LayerData:
    """What a layer reads in the quantized model, and makes in the float model.

    Attributes:
        learn: of the samples to learn from.
        decide: of those that are set aside.
    """

    learn: LayerRows
    decide: LayerRows


def solve_layer(
    float_model: ir.Model, parameters: Parameters, layer: QuantizedLayer, data: LayerData, *, threads: int
) -> SolvedLayer | str:
    """Return the best constants of a layer that are found, with any number of threads, or why it stays."""
    parts = read_parts(data)
    if isinstance(parts, str):
        return parts
    learn, check, decide = parts
    solution = _Solution(float_model, parameters, layer, [*learn, *check])
    return solution.solve(learn, check, decide, threads)


def read_parts(data: LayerData) -> tuple[list[Part], list[Part], list[Part]] | str:
    """Return the rows to learn from, to check by and to decide by, or why they are of no use."""
    learn, check = (list(data.learn.parts(wanted)) for wanted in (_is_learned, _is_checked))
    decide = list(data.decide.parts())
    for rows in (data.learn, data.decide):  # The parts are copies.
        rows.forget()
    if not learn:
        learn, check = check, []
    if not learn:
        return NO_ROWS
    if not all(np.isfinite(array).all() for part in (*learn, *check, *decide) for array in part):
        return "what a layer reads or makes may not be NaN or Inf"
    return learn, check, decide


def _is_checked(sample: int) -> bool:
    return sample % CHECKED == CHECKED - 1


def _is_learned(sample: int) -> bool:
    return not _is_checked(sample)


class _Solution:
    """One layer, on its way from moments to constants."""

    def __init__(
        self, float_model: ir.Model, parameters: Parameters, layer: QuantizedLayer, rows: Sequence[Part]
    ) -> None:
        self._float_model, self._parameters, self._layer = float_model, parameters, layer
        self._state = layer_state(float_model, parameters, layer)
        self._parts = [self._state.part(group) for group in range(self._state.groups)]
        # Of each channel's targets: their largest magnitude, and the step that makes integers of them.
        self._largest = np.max([np.abs(made).max(axis=0) for _, made in rows], axis=0).astype(np.float64)
        self._target_steps = _steps(self._largest)
        if layer.parameters is not None:
            self._step, self._zero = float(layer.parameters.scale), int(layer.parameters.zero_point)
        else:
            self._step, self._zero = _steps(np.max([np.abs(read).max() for read, _ in rows])).item(), 0

    def solve(
        self, learn: Sequence[Part], check: Sequence[Part], decide: Sequence[Part], threads: int
    ) -> SolvedLayer | str:
        """Return what is chosen, or why nothing is."""
        state = self._state
        sums = [self._moments(parts) for parts in (learn, check)]
        totals = [one.merge(other) for one, other in zip(*sums, strict=True)] if check else sums[0]
        moments = self._centered(totals)
        factors = [factored(item) for item in moments]
        share = self._share(sums[0], sums[1], [factor for _, factor in factors]) if check else 1.0
        quadratics = [
            fit_least_squares(item, state.weight[own], share=share, known=known)
            for own, item, known in zip(self._parts, moments, factors, strict=True)
        ]
        found, errors = search_layer(
            self._layer, state, quadratics, self._step, self._largest, threads=threads
        )
        bias = self._bias(found, moments)
        again = decided_again(self._parameters, self._layer, found, self._stored(bias), self._step)
        changed = again.differs(self._parameters, self._float_model)
        if changed and decide and not self._holds(found, bias, decide):
            return NO_HELP
        return SolvedLayer(
            before=errors[0],
            after=errors[1],
            damped=totals[0].rows < state.weight.shape[1],
            changed=changed,
            decided=again,
        )

    def _moments(self, parts: Sequence[Part]) -> list[SecondMoments]:
        """Return the moments of each group; exact, whatever the parts are."""
        totals: list[SecondMoments] = []
        for read, made in parts:
            if self._layer.parameters is not None and read.itemsize == 1:
                found = byte_moments(read, self._zero, made, self._target_steps, self._state.groups)
            else:
                found = self._float_moments(read, made)
            totals = [one.merge(other) for one, other in zip(totals, found, strict=True)] if totals else found
        return totals

    def _float_moments(self, read: Array, made: npt.NDArray[np.float32]) -> list[SecondMoments]:
        size, inputs = self._state.weight.shape[1], read.astype(np.float64)
        is_integer = self._layer.parameters is not None
        inputs = inputs - self._zero if is_integer else np.rint(inputs / self._step)
        targets = np.rint(made.astype(np.float64) / self._target_steps)
        return [
            second_moments(inputs[:, group * size : (group + 1) * size], targets[:, own])
            for group, own in enumerate(self._parts)
        ]

    def _centered(self, moments: Sequence[SecondMoments], step: int = 1) -> list[CenteredMoments]:
        return [
            centered(
                item,
                input_step=self._step,
                target_step=self._target_steps[own][::step],
                has_bias=self._state.bias is not None,
            )
            for own, item in zip(self._parts, moments, strict=True)
        ]

    def _share(
        self, learned: Sequence[SecondMoments], checked: Sequence[SecondMoments], factors: Sequence[Factor]
    ) -> float:
        step = -(-len(self._state.weight) // (self._state.groups * JUDGED))
        of_learned, of_checked = (
            self._centered(
                [replace(item, cross=item.cross[::step], targets=item.targets[::step]) for item in part], step
            )
            for part in (learned, checked)
        )
        weights = [self._state.weight[own][::step] for own in self._parts]
        return share_that_holds(of_learned, of_checked, weights, factors)

    def _bias(self, codes: Codes, moments: Sequence[CenteredMoments]) -> Float64s | None:
        """Return what has to be added to the products for the mean of each channel to be right."""
        if self._state.bias is None:
            return None
        weights, bias = codes.weights(self._layer.geometry.block), np.zeros(len(self._state.weight))
        for own, item in zip(self._parts, moments, strict=True):
            if item.input_mean is not None and item.target_mean is not None:
                bias[own] = item.target_mean - (weights[own] * item.input_mean).sum(axis=1)
        return bias

    def _stored(self, bias: Float64s | None) -> Float64s | None:
        """Return the bias that the graph is to hold; one that is added apart is not in what a layer makes."""
        if bias is None or self._state.bias is None:
            return None
        return bias + self._state.bias if self._layer.bias_apart else bias

    def _holds(self, found: Codes, bias: Float64s | None, decide: Sequence[Part]) -> bool:
        """Return whether the layer's error falls on samples that nothing was learned from."""
        had = self._state.bias
        if had is not None and self._layer.bias_apart:
            had = np.zeros(len(had))
        before, after = (
            self._error(codes.weights(self._layer.geometry.block), own, decide)
            for codes, own in ((self._state.codes, had), (found, bias))
        )
        return after < before

    def _error(self, weights: Float64s, bias: Float64s | None, parts: Sequence[Part]) -> float:
        """Return the sum of the squares that what weights make is away from what they should."""
        groups, total = len(self._parts), 0.0
        step = self._step if self._layer.parameters is not None else 1.0
        turned = np.swapaxes((weights * step).reshape(groups, -1, weights.shape[1]), 1, 2).astype(np.float32)
        for read, made in parts:
            rows = (read.astype(np.float32) - self._zero).reshape(len(read), groups, -1)
            missed = multiplied_floats(np.swapaxes(rows, 0, 1), turned)
            missed -= np.swapaxes(made.reshape(len(made), groups, -1), 0, 1)
            if bias is not None:
                missed += bias.reshape(groups, 1, -1).astype(np.float32)
            total += float(np.square(missed, dtype=np.float64).sum())
        return total


def _steps(largest: Float64s) -> Float64s:
    return np.where(largest > 0.0, np.asarray(largest, np.float64) / STEPS, 1.0)
