"""One layer's integers, scales and bias, from the rows that it reads and should make."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recovery.layers.layer_rows import LayerRows, Part
from ptq_cli.recovery.layers.layer_state import layer_state, new_constants
from ptq_cli.recovery.layers.quantized_layer import QuantizedLayer, is_changed
from ptq_cli.recovery.layers.solved_layer import SolvedLayer, search_layer
from ptq_cli.recovery.search.centered_moments import CenteredMoments, centered
from ptq_cli.recovery.search.code_search import Codes
from ptq_cli.recovery.search.least_squares import fit_least_squares, share_that_holds
from ptq_cli.recovery.search.second_moments import Float64s, SecondMoments, second_moments

STEPS = 32767
"""On either side of 0, of targets and of inputs that are floats: 16 bits are finer than a layer's error."""
CHECKED = 4
"""Every fourth sample that is learned from says how far the optimum of the others holds."""
NO_HELP = "the error on the samples set aside did not fall"


@dataclass(frozen=True, kw_only=True)
class LayerData:
    """What a layer reads in the quantized model, and makes in the float model.

    Attributes:
        learn: of the samples to learn from.
        decide: of those that are set aside.
    """

    learn: LayerRows
    decide: LayerRows


@dataclass(frozen=True, eq=False, kw_only=True)
class _Units:
    """Of the integers of rows.

    Attributes:
        step, zero: step and zero point of the inputs.
        is_integer: the inputs are integers already.
        target_steps: step of the targets of each channel.
        largest: magnitude of the targets of each channel.
    """

    step: float
    zero: int
    is_integer: bool
    target_steps: Float64s
    largest: Float64s


def solve_layer(
    twins: TwinGraphs, layer: QuantizedLayer, data: LayerData, *, threads: int
) -> SolvedLayer | str:
    """Return the best constants of a layer that are found, or why it stays as it is.

    Args:
        twins: both models.
        layer: of them.
        data: what it reads in the quantized model, and makes in the float model.
        threads: share its channels; the result does not depend on them.
    """
    learn, check = (list(data.learn.parts(wanted)) for wanted in (_is_learned, _is_checked))
    decide = list(data.decide.parts())
    if not learn:
        learn, check = check, []
    if not learn:
        return "no data reached this part of the model"
    if not all(np.isfinite(array).all() for part in (*learn, *check, *decide) for array in part):
        return "what a layer reads or makes may not be NaN or Inf"
    return _Solution(twins, layer, _units(layer, [*learn, *check])).solve(learn, check, decide, threads)


def _is_checked(sample: int) -> bool:
    return sample % CHECKED == CHECKED - 1


def _is_learned(sample: int) -> bool:
    return not _is_checked(sample)


class _Solution:
    """One layer, on its way from moments to constants."""

    def __init__(self, twins: TwinGraphs, layer: QuantizedLayer, units: _Units) -> None:
        self._twins, self._layer, self._units = twins, layer, units
        self._state = layer_state(twins, layer)
        self._parts = [self._state.part(group) for group in range(self._state.groups)]

    def solve(
        self, learn: Sequence[Part], check: Sequence[Part], decide: Sequence[Part], threads: int
    ) -> SolvedLayer | str:
        """Return what is chosen, or why nothing is."""
        state = self._state
        sums = [self._moments(parts) for parts in (learn, check)]
        share = self._share(*sums) if check else 1.0
        totals = [one.merge(other) for one, other in zip(*sums, strict=True)] if check else sums[0]
        moments = self._centered(totals)
        quadratics = [
            fit_least_squares(item, state.weight[own], share=share)
            for own, item in zip(self._parts, moments, strict=True)
        ]
        found, errors = search_layer(
            self._layer, state, quadratics, self._units.step, self._units.largest, threads=threads
        )
        bias = self._bias(found, moments)
        constants = new_constants(self._twins, self._layer, found, self._stored(bias), self._units.step)
        changed = is_changed(self._twins.quantized_model, constants)
        if changed and decide and not self._holds(found, bias, self._centered(self._moments(decide))):
            return NO_HELP
        return SolvedLayer(
            before=errors[0],
            after=errors[1],
            damped=totals[0].rows < state.weight.shape[1],
            changed=changed,
            constants=constants,
        )

    def _moments(self, parts: Sequence[Part]) -> list[SecondMoments]:
        """Return the moments of each group; exact, whatever the parts are."""
        units, size = self._units, self._state.weight.shape[1]
        totals: list[SecondMoments] = []
        for read, made in parts:
            inputs = read.astype(np.float64)
            inputs = inputs - units.zero if units.is_integer else np.rint(inputs / units.step)
            targets = np.rint(made.astype(np.float64) / units.target_steps)
            found = [
                second_moments(inputs[:, group * size : (group + 1) * size], targets[:, own])
                for group, own in enumerate(self._parts)
            ]
            totals = [one.merge(other) for one, other in zip(totals, found, strict=True)] if totals else found
        return totals

    def _centered(self, moments: Sequence[SecondMoments]) -> list[CenteredMoments]:
        return [
            centered(
                item,
                input_step=self._units.step,
                target_step=self._units.target_steps[own],
                has_bias=self._state.bias is not None,
            )
            for own, item in zip(self._parts, moments, strict=True)
        ]

    def _share(self, learned: Sequence[SecondMoments], checked: Sequence[SecondMoments]) -> float:
        weights = [self._state.weight[own] for own in self._parts]
        return share_that_holds(self._centered(learned), self._centered(checked), weights)

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

    def _holds(self, found: Codes, bias: Float64s | None, decide: Sequence[CenteredMoments]) -> bool:
        """Return whether the layer's error falls on samples that nothing was learned from."""
        block, before, after = self._layer.geometry.block, 0.0, 0.0
        had = self._state.bias
        if had is not None and self._layer.bias_apart:
            had = np.zeros(len(had))
        for own, item in zip(self._parts, decide, strict=True):
            biases = [one[own] if one is not None else None for one in (had, bias)]
            before += item.errors(self._state.codes.weights(block)[own], biases[0]).sum()
            after += item.errors(found.weights(block)[own], biases[1]).sum()
        return after < before


def _units(layer: QuantizedLayer, parts: Sequence[Part]) -> _Units:
    largest = np.max([np.abs(made).max(axis=0) for _, made in parts], axis=0).astype(np.float64)
    if layer.parameters is not None:
        step, zero = float(layer.parameters.scale), int(layer.parameters.zero_point)
    else:
        step, zero = _steps(np.max([np.abs(read).max() for read, _ in parts])).item(), 0
    return _Units(
        step=step,
        zero=zero,
        is_integer=layer.parameters is not None,
        target_steps=_steps(largest),
        largest=largest,
    )


def _steps(largest: Float64s) -> Float64s:
    return np.where(largest > 0.0, np.asarray(largest, np.float64) / STEPS, 1.0)
