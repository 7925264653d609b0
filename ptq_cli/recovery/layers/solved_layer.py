"""Integers and scales for all groups of a layer, and what is told of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ptq_cli.core.tensors import Array
from ptq_cli.recovery.layers.layer_state import LayerState, code_grid
from ptq_cli.recovery.layers.quantized_layer import QuantizedLayer
from ptq_cli.recovery.search.code_search import Codes, search_codes
from ptq_cli.recovery.search.least_squares import Quadratic
from ptq_cli.recovery.search.ordered_algebra import quadratic_forms
from ptq_cli.recovery.search.second_moments import Float64s


@dataclass(frozen=True, kw_only=True)
class SolvedLayer:
    """What was chosen for a layer.

    Attributes:
        before, after: error of its output, as a share of what its output varies by, on the rows that it was
            chosen from.
        damped: there were fewer rows than inputs.
        changed: one of its constants is another than before.
        constants: new values of the quantized graph's initializers, by name.
    """

    before: float
    after: float
    damped: bool
    changed: bool
    constants: Mapping[str, Array] = field(repr=False)


def search_layer(
    layer: QuantizedLayer,
    state: LayerState,
    quadratics: Sequence[Quadratic],
    step: float,
    largest: Float64s,
    *,
    threads: int,
) -> tuple[Codes, tuple[float, float]]:
    """Return the best integers and scales that are found, and the error before and after.

    Args:
        layer: of the model.
        state: as it is.
        quadratics: the objective of each group.
        step: of what it reads.
        largest: magnitude of what each channel makes.
        threads: share the channels; the result does not depend on them.

    Returns:
        Each error is a share of what the layer's output varies by.

    Shapes:
        largest: (M,).
    """
    block = layer.geometry.block
    found = Codes(integers=state.codes.integers.copy(), scales=state.codes.scales.copy())
    before = after = power = 0.0
    for group, quadratic in enumerate(quadratics):
        own = state.part(group)
        nearest = Codes(integers=state.codes.integers[own], scales=state.codes.scales[own])
        grid = code_grid(layer, state, own, step, largest)
        better = search_codes(quadratic, grid, nearest, threads=threads)
        found.integers[own], found.scales[own] = better.integers, better.scales
        before += float(quadratic.error(nearest.weights(block)).sum())
        after += float(quadratic.error(better.weights(block)).sum())
        power += float(quadratic_forms(quadratic.curvature, state.weight[own]).sum())
    power = power if power > 0.0 else 1.0
    return found, (before / power, after / power)
