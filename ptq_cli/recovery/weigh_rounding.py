"""The weights of a quantized model are chosen again, each layer by itself, from what it reads alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recovery.layers.layer_state import LayerState, layer_state, new_constants
from ptq_cli.recovery.layers.quantized_layer import QuantizedLayer, is_changed, quantized_layers
from ptq_cli.recovery.layers.solved_layer import SolvedLayer, search_layer
from ptq_cli.recovery.moments.input_moments import InputMoments
from ptq_cli.recovery.moments.moment_sites import grid_of_input, reading_of
from ptq_cli.recovery.moments.tensor_moments import TensorMoments
from ptq_cli.recovery.search.centered_moments import CenteredMoments
from ptq_cli.recovery.search.least_squares import fit_least_squares
from ptq_cli.recovery.search.ordered_algebra import quadratic_forms
from ptq_cli.recovery.search.second_moments import Float64s

NOT_MEASURED = "what it reads is not quantized, and was not measured by the calibration"
NO_ROWS = "no data reached this part of the model"
DEVIATIONS = 8.0
"""What a layer makes is taken to be within so many standard deviations of its mean."""


@dataclass(frozen=True, kw_only=True)
class WeighedRounding:
    """What was chosen.

    Attributes:
        layers: by name, what was chosen for each.
        refused: why the others are as they were.
        constants: new values of the quantized graph's initializers, by name.
    """

    layers: Mapping[str, SolvedLayer]
    refused: Mapping[str, str]
    constants: Mapping[str, Array] = field(repr=False)

    @property
    def changed(self) -> bool:
        """Whether any layer has another constant than before."""
        return any(item.changed for item in self.layers.values())


def weigh_rounding(
    twins: TwinGraphs,
    plan: Plan,
    free: Mapping[WeightSite, bool],
    moments: Mapping[str, TensorMoments],
    *,
    largest: Mapping[str, float],
    samples: int,
    threads: int = 1,
    done: Callable[[int, int], None] = lambda _done, _total: None,
) -> WeighedRounding:
    """Return better integers, scales and biases for a quantized model's layers; the graphs stay as they are.

    The error of each weight is weighed by what the layer reads in the float model, on the grid of its
    integers. Layers do not depend on each other.

    Args:
        twins: the float and the quantized model.
        plan: of the quantized one.
        free: of each weight, whether its scales may change; see ``quantized_layers``.
        moments: of the tensors that ``moment_sites`` names.
        largest: magnitude of tensors, as for ``moment_sites``.
        samples: how many there were.
        threads: the result does not depend on them.
        done: is told after each layer how many are done, of how many.
    """
    layers, refused = quantized_layers(twins, plan, free)
    solved: dict[str, SolvedLayer] = {}
    for number, (name, layer) in enumerate(layers.items(), start=1):
        found, grid = moments.get(layer.reads), grid_of_input(layer, largest)
        if found is None or grid is None:
            refused[name] = NOT_MEASURED
        elif not (own := found.readings[reading_of(layer, samples).key]).rows:
            refused[name] = NO_ROWS
        else:
            solved[name] = _solve(twins, layer, own, float(grid.scale), threads=threads)
        done(number, len(layers))
    constants = {name: array for item in solved.values() for name, array in item.constants.items()}
    return WeighedRounding(layers=solved, refused=refused, constants=constants)


def _solve(
    twins: TwinGraphs, layer: QuantizedLayer, moments: InputMoments, step: float, *, threads: int
) -> SolvedLayer:
    state = layer_state(twins, layer)
    centered = [_centered(state, moments, group, step) for group in range(state.groups)]
    quadratics = [
        fit_least_squares(item, state.weight[state.part(group)], share=0.0)
        for group, item in enumerate(centered)
    ]
    found, (before, after) = search_layer(
        layer, state, quadratics, step, _largest(state, centered), threads=threads
    )
    bias = None
    if state.bias is not None:
        missed = state.weight - found.weights(layer.geometry.block)
        bias = state.bias + _by_group(state, lambda own, group: _along(missed[own], centered[group]))
    constants = new_constants(twins, layer, found, bias, step)
    return SolvedLayer(
        before=before,
        after=after,
        damped=moments.rows < state.weight.shape[1],
        changed=is_changed(twins.quantized_model, constants),
        constants=constants,
    )


def _centered(state: LayerState, moments: InputMoments, group: int, step: float) -> CenteredMoments:
    """Return the moments of a group in real units; its target is what its own weights make."""
    gram, mean = moments.gram(group) / moments.rows, moments.sums[group] / moments.rows
    if state.bias is not None:
        gram -= np.outer(mean, mean)
    own = state.weight[state.part(group)]
    return CenteredMoments(
        rows=moments.rows,
        gram=gram * step**2,
        cross=np.zeros(own.shape),
        input_mean=mean * step,
        target_mean=None,
    )


def _along(rows: Float64s, moments: CenteredMoments) -> Float64s:
    """Return what rows make of the mean input; not as a product of BLAS, whose bits depend on its threads."""
    assert moments.input_mean is not None  # noqa: S101 - it was made here
    return np.asarray((rows * moments.input_mean).sum(axis=1))


def _largest(state: LayerState, centered: list[CenteredMoments]) -> Float64s:
    """Return about how large what each channel makes can be, for its bias to have room."""

    def reach(own: slice, group: int) -> Float64s:
        weight, item = state.weight[own], centered[group]
        varies = np.sqrt(np.maximum(quadratic_forms(item.gram, weight), 0.0))
        return np.asarray(np.abs(_along(weight, item)) + DEVIATIONS * varies)

    return _by_group(state, reach)


def _by_group(state: LayerState, of_group: Callable[[slice, int], Float64s]) -> Float64s:
    found = np.zeros(len(state.weight))
    for group in range(state.groups):
        own = state.part(group)
        found[own] = of_group(own, group)
    return found
