"""Layers in float whose weights are floats in the file, too: where bytes cost the outputs too much.

A layer in float reads integers that become floats when the model is opened: a quarter of the bytes for the
same time. The basis of a transform, such as the cosines of a spectrum before a logarithm, loses more by that
than the whole network may.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import FloatArray
from ptq_cli.core.progress import RunProgress
from ptq_cli.models.files.stored import serialize
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.sites import Plan
from ptq_cli.recover.float_layers import JUDGED_ON, judge_of_worst
from ptq_cli.recover.output_noise import lowest_of_floats
from ptq_cli.recover.recovery_context import RecoveryContext, sample_work
from ptq_cli.recover.recovery_effects import FloatLayers

_STAGE = "float weights"
_RANKED_ON = 4  # samples that what each weight costs is measured on
_MOST_WORK = 3e12  # multiply-accumulates of ranking, which take a minute or two
_MATTER_DB = 0.5  # what floats have to gain
Rounded = Mapping[str, Mapping[str, FloatArray]]  # by layer and constant, what its integers stand for


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
    groups = _groups(rounded)
    work = sample_work(floats, context.data.samples[0].fit[0], context.data.inputs)
    if len(groups) * _RANKED_ON * work > _MOST_WORK:
        return placement, before
    best = judge(serialize(models.build(models.with_float_weights([*rounded], layers))[0]))
    if best < before + _MATTER_DB:
        return models.with_float_weights((), layers), before
    order = _loudest_first(context, rounded, groups, stop)

    def first(count: int) -> Placement:
        return models.with_float_weights([name for group in order[:count] for name in group], layers)

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


def _groups(rounded: Rounded) -> dict[tuple[str, ...], list[str]]:
    """Return the layers that share weights, by these."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, weights in rounded.items():
        groups.setdefault(tuple(weights), []).append(name)
    return groups


def _loudest_first(
    context: RecoveryContext,
    rounded: Rounded,
    groups: Mapping[tuple[str, ...], list[str]],
    stop: Callable[[], bool],
) -> list[tuple[str, ...]]:
    """Return groups of layers that share weights, by what the rounding of these costs the outputs alone."""
    judge, _ = judge_of_worst(context, context.float_model.load(), _RANKED_ON)
    costs: dict[tuple[str, ...], float] = {}
    for done, (tensors, names) in enumerate(groups.items()):
        context.progress(RunProgress(_STAGE, done, len(groups), number=done, runs=len(groups)))
        if stop():
            break
        model = context.float_model.load()
        for tensor in tensors:
            floats = ir.Tensor(np.ascontiguousarray(rounded[names[0]][tensor], np.float32), name=tensor)
            model.graph.initializers[tensor].const_value = floats
        costs[tensors] = judge(serialize(model))
    order = sorted(groups, key=lambda tensors: (costs.get(tensors, math.inf), tensors))
    return [tuple(groups[tensors]) for tensors in order]
