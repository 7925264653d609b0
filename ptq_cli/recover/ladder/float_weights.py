"""Layers in float whose weights are floats in the file, too: where bytes cost the outputs too much.

A layer in float reads integers that become floats when the model is opened: a quarter of the bytes for the
same time. The basis of a transform, such as the cosines of a spectrum before a logarithm, loses more by that
than the whole network may.
"""

from collections.abc import Callable, Collection
from typing import Protocol

import onnx_ir as ir

from ptq_cli.models.files.stored import serialize
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.sites import Plan
from ptq_cli.recover.ladder.float_layers import JUDGED_ON, judge_of_worst
from ptq_cli.recover.ladder.weight_noise import Rounded, can_rank, weight_noise
from ptq_cli.recover.output_noise import lowest_of_floats
from ptq_cli.recover.recovery_context import RecoveryContext
from ptq_cli.recover.recovery_effects import FloatLayers

_STAGE = "float weights"
_MATTER_DB = 0.5  # what floats have to gain


class WeightMaker(Protocol):
    """Makes models whose layers in float have their weights as integers, or as floats."""

    def build(self, placement: Placement, /) -> tuple[ir.Model, Plan]:
        """Return the quantized graph of a placement, and its plan."""

    def rounded(self, placement: Placement, /) -> Rounded:
        """Return the bytes that become floats as what they stand for."""

    def with_float_weights(self, names: Collection[str], layers: FloatLayers | None, /) -> Placement:
        """Return the placement in which these layers have floats; ``layers`` are in float for accuracy."""


def choose_float_weights(
    context: RecoveryContext,
    models: WeightMaker,
    placement: Placement,
    layers: FloatLayers | None,
    stop: Callable[[], bool],
) -> tuple[Placement, float]:
    """Return the placement with as few weights in floats as the goal takes, and the SQNR of its worst output.

    What each weight costs alone is measured in the float model, and tells with which to begin.
    """
    floats = context.float_model.load()
    judge, _ = judge_of_worst(context, floats, JUDGED_ON, of=lowest_of_floats(floats))
    before = judge(serialize(models.build(placement)[0]))
    if before >= context.goal_db or stop() or not (rounded := models.rounded(placement)):
        return placement, before
    if not can_rank(context, floats, rounded):
        return placement, before
    best = judge(serialize(models.build(models.with_float_weights([*rounded], layers))[0]))
    if best < before + _MATTER_DB:
        return models.with_float_weights((), layers), before
    noise = weight_noise(context, _STAGE, rounded, stop)
    order = sorted(noise, key=lambda names: (-noise[names], names))

    def first(count: int) -> Placement:
        return models.with_float_weights([name for names in order[:count] for name in names], layers)

    low, high = 1, len(order)
    enough = min(context.wanted_db, best - _MATTER_DB)
    while low < high and not stop():
        middle = (low + high) // 2
        found = judge(serialize(models.build(first(middle))[0]), at_least=enough)
        if found >= enough:
            high, best = middle, found
        else:
            low = middle + 1
    return first(high), best
