"""Layers that find ranges at each run, or compute in float: by what their activations cost for their work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.pair_operators import ROW_STEPS, SMALLEST
from ptq_cli.placement.fastest_placement import MachineProfile
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.recipe.declaration import ROW
from ptq_cli.recover.float_layers import (
    FLOAT_REASON,
    JUDGED_ON,
    RANK_WORK,
    ModelMaker,
    fewest,
    judge_of_worst,
)
from ptq_cli.recover.output_noise import lowest_of_floats
from ptq_cli.recover.range_effects import noise_at_each_run, noise_of_grids
from ptq_cli.recover.recovery_context import RecoveryContext, few, sample_work
from ptq_cli.recover.recovery_effects import FloatLayers

_STAGE = "float"
_LEAST_GAIN_DB = 0.5  # for less no layer is left in float
FEW = 24  # tensors of a large model that are measured: those whose rows lose most


@dataclass(frozen=True)
class GridOfRun:
    """A grid that a tensor gets at each run, with a scale for each row or for the whole tensor."""

    granularity: str

    def __call__(self, values: Array) -> Array:
        """Return values on their grid.

        Example:
            >>> GridOfRun("row")(np.array([[126.2, 1.0], [0.1262, 0.001]], np.float32)).round(4).tolist()
            [[126.2, 0.9937], [0.1262, 0.001]]
        """
        axis = -1 if self.granularity == ROW else None
        largest = np.max(np.abs(values), axis=axis, keepdims=True, initial=0.0)
        step = np.maximum(largest, SMALLEST).astype(np.float32) * np.float32(1 / ROW_STEPS)
        rounded: Array = np.rint(values / step) * step
        return rounded


def choose_dynamic_layers(
    context: RecoveryContext,
    models: ModelMaker,
    placement: Placement,
    profile: MachineProfile | None,
    stop: Callable[[], bool],
) -> tuple[Placement, FloatLayers | None]:
    """Return the placement with as many layers in float as the goal takes, and what was done.

    One large value leaves the others of its row few steps. Layers that read one tensor change together;
    those whose activations cost most for their multiply-accumulates come first, up to all of them, which
    takes as long as float. None of what was done if nothing finds ranges at each run. ``profile`` tells how
    much faster integers are.
    """
    floats = context.float_model.load()
    readers = _readers(floats, placement)
    if not readers:
        return placement, None
    judge, count = judge_of_worst(context, floats, JUDGED_ON, of=lowest_of_floats(floats))

    def in_float(names: Sequence[str]) -> Placement:
        return models.without(dict.fromkeys(names, FLOAT_REASON), ())

    def sqnr(names: Sequence[str], at_least: float) -> float:
        return judge(serialize(models.build(in_float(names))[0]), at_least=at_least)

    dynamic = tuple(name for names in readers.values() for name in names)
    before = judge(serialize(models.build(placement)[0]))
    found = FloatLayers(dynamic=dynamic, before=before, after=before, decided_by=count)
    if before >= context.wanted_db:
        return placement, found
    work = multiply_accumulates(floats, context.data.one_size).counts
    order = _by_worth(context, floats, readers, work, stop)
    steps = [[name for names in order[:n] for name in names] for n in range(1, len(order) + 1)]
    index, after = fewest(steps, sqnr, context.wanted_db, stop)
    if after < before + _LEAST_GAIN_DB:
        return placement, found
    chosen = steps[index]
    done = replace(
        found,
        layers=tuple(chosen),
        dynamic=tuple(name for name in dynamic if name not in chosen),
        after=after,
        slower=_share(chosen, dynamic, work) * (profile.floating / profile.integer - 1.0 if profile else 1.0),
    )
    return in_float(chosen), done


def _share(some: Sequence[str], names: Sequence[str], work: Mapping[str, int | None]) -> float:
    return sum(work.get(name) or 0 for name in some) / (1 + sum(work.get(name) or 0 for name in names))


def _readers(model: ir.Model, placement: Placement) -> dict[tuple[str, str], list[str]]:
    """Return the layers of the main graph with ranges at each run, by what they read and its granularity."""
    dynamic = {site.node: site.dynamic for site in placement.plan.weights if site.dynamic}
    found: dict[tuple[str, str], list[str]] = {}
    for node in model.graph:
        source = node.inputs[0] if node.inputs else None
        if node.name in dynamic and source is not None:
            found.setdefault((source.name or "", dynamic[node.name]), []).append(node.name)
    return found


def _by_worth(
    context: RecoveryContext,
    floats: ir.Model,
    readers: Mapping[tuple[str, str], list[str]],
    work: Mapping[str, int | None],
    stop: Callable[[], bool],
) -> list[list[str]]:
    """Return the layers that change together, those first whose activations cost most for their work."""
    data = context.data
    pieces = few(data.samples[0].fit, data.inputs, 1)
    grids = {tensor: GridOfRun(granularity) for tensor, granularity in readers}
    if len(grids) * sample_work(floats, pieces[0], data.inputs) > RANK_WORK:
        lost = noise_of_grids(floats, grids, pieces[0])
        grids = {
            tensor: grids[tensor] for tensor in sorted(grids, key=lambda name: (-lost[name], name))[:FEW]
        }
    noise = dict.fromkeys((tensor for tensor, _ in readers), 0.0)
    noise |= noise_at_each_run(floats, grids, pieces, context.trials(_STAGE, stop))

    def worth(item: tuple[str, str]) -> float:
        return noise[item[0]] / (1 + sum(work.get(name) or 0 for name in readers[item]))

    return [readers[item] for item in sorted(readers, key=lambda item: (-worth(item), item))]
