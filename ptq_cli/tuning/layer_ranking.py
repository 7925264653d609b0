"""Which layers to leave in float, the cheapest first: by the noise that each adds on its own."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.plan.cost_benefit import float_costs
from ptq_cli.plan.sites import Plan
from ptq_cli.recipe.sections import SIZE

LEVELS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
"""Times that the noise is halved: 3 to 48 dB. Where several layers alone make as much noise as there can be,
what the others add shows only when all of these are in float."""
LEAST_SHARE = 1e-4  # of the whole cost: what a layer costs that saves time in float


LOUDEST = 1e30  # what noise that is not finite counts as


@dataclass(frozen=True, kw_only=True)
class LayerRanking:
    """What is known of the layers of a candidate.

    Attributes:
        dynamic: those that could find ranges at each run.
        weight_only: those of which only the weights could be integers.
    """

    noise: dict[str, float]
    cost: dict[str, float]
    dynamic: tuple[str, ...]
    weight_only: tuple[str, ...]

    def levels(
        self, among: Collection[str] | None = None, levels: Collection[int] = LEVELS
    ) -> tuple[tuple[str, ...], ...]:
        """Which layers to change, more and more; see ``layers_by_level``."""
        noise = {name: value for name, value in self.noise.items() if among is None or name in among}
        most = len(noise) - (among is None)  # Of layers in float some are left.
        return layers_by_level(noise, self.cost, levels, most=most)


def layer_costs(model: ir.Model, plan: Plan, names: Collection[str], prefer: str) -> dict[str, float]:
    """Cost of each layer if it stays in float.

    With ``"size"`` as many as its weights; otherwise the products that it sums up, and what it takes to
    convert tensors that pass between it and its neighbors as integers.
    """
    if prefer == SIZE:
        counts: Mapping[str, int | None] = {layer.name: layer.parameters for layer in plan.layers}
    else:
        counts = float_costs(model, plan, names)
    found = {name: float(counts.get(name) or 0) for name in names}
    # A layer whose conversions cost more than it saves has no cost in float; a division by 0 would rank
    # it before all others, however quiet it is.
    least = LEAST_SHARE * sum(max(cost, 0.0) for cost in found.values()) or 1.0
    return {name: max(cost, least) for name, cost in found.items()}


def layers_by_level(
    noise: Mapping[str, float], cost: Mapping[str, float], levels: Collection[int], *, most: int
) -> tuple[tuple[str, ...], ...]:
    """Which layers to leave in float so that a half, a quarter, an eighth … of the noise is left.

    Layers come in the order of what they take away for what they cost.

    ``levels`` are how many times the noise is halved; more than ``most`` layers are not chosen.

    Example:
        >>> layers_by_level({"a": 6.0, "b": 3.0, "c": 1.0}, {"a": 2.0, "b": 1.0, "c": 1.0}, (1, 2, 9), most=2)
        (('a',), ('a', 'b'))
    """
    # By name where equal, so that threads and sets cannot change the order.
    order = sorted(noise, key=lambda name: (-noise[name] / cost[name], name))
    total, found = sum(noise.values()), []
    for level in levels:
        left, count = total, 0
        while count < len(order) and left > total / 2**level:
            left -= noise[order[count]]
            count += 1
        layers = tuple(order[:count])
        if 0 < count <= most and layers not in found:
            found.append(layers)
    return tuple(found)
