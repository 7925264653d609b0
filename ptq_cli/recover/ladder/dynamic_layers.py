"""Layers that find ranges at each run, or compute in float: by what their activations cost for their work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.pair_operators import ROW_STEPS, SMALLEST
from ptq_cli.placement.fastest_placement import MachineProfile
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.recipe.declaration import ROW
from ptq_cli.recover.float_moves import LOUD, LayerMove
from ptq_cli.recover.ladder.float_layers import RANK_WORK, ModelMaker, fewest
from ptq_cli.recover.range_effects import FloatOnGrids, noise_at_each_run, noise_of_grids
from ptq_cli.recover.recovery_context import RecoveryContext, few, one_sample, sample_work
from ptq_cli.recover.recovery_effects import FloatLayers

_STAGE = "float"
_Read = tuple[str, str]  # a tensor that layers read, and the granularity of its scales
_MOST_SPARED = 8  # of the layers with the most work, how many are looked at again
_LEAST_GAIN_DB = 0.5  # for less no layer is left in float
_MEASURED_ON = 4  # samples, of a model that is not large


@dataclass(frozen=True)
class GridOfRun:
    """A grid that a tensor gets at each run, with a scale for each row or for the whole tensor."""

    granularity: str

    def __call__(self, values: Array) -> Array:
        """Return values on their grid.

        Example:
            >>> GridOfRun("row")(np.array([[127.0, 1.2], [254.0, 3.0]], np.float32)).tolist()
            [[127.0, 1.0], [254.0, 4.0]]
        """
        axis = -1 if self.granularity == ROW else None
        largest = np.max(np.abs(values), axis=axis, keepdims=True, initial=0.0)
        step = np.maximum(largest, SMALLEST).astype(np.float32) * np.float32(1 / ROW_STEPS)
        rounded: Array = np.rint(values / step) * step
        return rounded


class DynamicChoice:
    """The search for the fewest layers in float of a model whose ranges are found at each run.

    One large value leaves the others of its row few steps. Layers that read one tensor change together;
    those whose activations cost most for their multiply-accumulates come first, up to all of them, which
    takes as long as float. All is measured in the float model, with the other activations on their grids.
    ``profile`` tells how much faster integers are.
    """

    def __init__(
        self,
        context: RecoveryContext,
        models: ModelMaker,
        profile: MachineProfile,
        stop: Callable[[], bool],
    ) -> None:
        self._context, self._models, self._profile, self._stop = context, models, profile, stop
        self._floats = context.float_model.load()
        self._work = multiply_accumulates(self._floats, context.data.one_size).counts

    def layers(self, placement: Placement, wanted_db: float) -> tuple[Placement, FloatLayers | None]:
        """Return the placement that has what is wanted but for what weights lose, and what was done.

        None of what was done if nothing finds ranges at each run.
        """
        readers = _readers(self._floats, placement)
        if not readers:
            return placement, None
        dynamic = tuple(name for names in readers.values() for name in names)
        grids = {tensor: GridOfRun(granularity) for tensor, granularity in readers}
        pieces = self._pieces(len(grids))
        model = FloatOnGrids(self._floats, grids, pieces)
        before = model.sqnr_db(grids)
        found = FloatLayers(dynamic=dynamic, before=before, after=before, decided_by=len(pieces))
        if before >= wanted_db or self._stop():
            return placement, found
        order = self._by_worth(readers, grids, pieces[:1])

        def sqnr_without(items: Sequence[_Read]) -> float:
            return model.sqnr_db({item[0]: grids[item[0]] for item in order if item not in items})

        def sqnr(count: int, _at_least: float) -> float:
            return sqnr_without(order[:count])

        index, after = fewest(range(1, len(order) + 1), sqnr, wanted_db, self._stop)
        if after < before + _LEAST_GAIN_DB:
            return placement, found
        kept = self._needed(order[: index + 1], readers, lambda items: sqnr_without(items) >= wanted_db)
        after = sqnr_without(kept)
        chosen = [name for item in kept for name in readers[item]]
        gained = self._profile.floating / self._profile.integer - 1.0
        slower = gained * self._products(chosen) / (1 + self._products(dynamic))
        done = replace(
            found,
            layers=tuple(chosen),
            dynamic=tuple(name for name in dynamic if name not in chosen),
            after=after,
            slower=slower if self._profile.is_measured else None,
        )
        return self._models.without(LayerMove(tuple(chosen))), done

    def _pieces(self, tensors: int) -> list[dict[str, Array]]:
        """Return samples, in pieces of one: fewer where ranking the tensors takes long."""
        data = self._context.data
        work = tensors * sample_work(self._floats, data.samples[0].fit[0], data.inputs)
        pieces = few(data.samples[0].fit, data.inputs, 1 if work > RANK_WORK else _MEASURED_ON)
        return [one for piece in pieces for one in (one_sample(piece, data.inputs) or [piece])]

    def _needed(
        self,
        items: Sequence[_Read],
        readers: Mapping[_Read, list[str]],
        is_enough: Callable[[Sequence[_Read]], bool],
    ) -> Sequence[_Read]:
        """Return what is left in float without those of much work that the rest does not need."""
        for item in sorted(items, key=lambda item: (-self._products(readers[item]), item))[:_MOST_SPARED]:
            others = [other for other in items if other != item]
            if others and not self._stop() and is_enough(others):
                items = others
        return items

    def _products(self, names: Sequence[str]) -> int:
        return sum(self._work.get(name) or 0 for name in names)

    def _by_worth(
        self,
        readers: Mapping[_Read, list[str]],
        grids: Mapping[str, GridOfRun],
        pieces: Sequence[dict[str, Array]],
    ) -> list[_Read]:
        """Return what layers read, those first whose activations cost most for the work of their readers."""
        lost = noise_of_grids(self._floats, grids, pieces[0])
        worst = sorted(grids, key=lambda tensor: (-lost.get(tensor, 0.0), tensor))
        measured = {tensor: grids[tensor] for tensor in worst[:LOUD]}
        trials = self._context.trials(_STAGE, self._stop)
        noise = noise_at_each_run(self._floats, measured, pieces, trials)

        def worth(item: _Read) -> tuple[float, float]:
            work = 1 + self._products(readers[item])
            return -noise.get(item[0], 0.0) / work, -lost.get(item[0], 0.0) / work

        return sorted(readers, key=lambda item: (*worth(item), item))


def _readers(model: ir.Model, placement: Placement) -> dict[_Read, list[str]]:
    """Return the layers of the main graph with ranges at each run, by what they read and its granularity."""
    dynamic = {site.node: site.dynamic for site in placement.plan.weights if site.dynamic}
    found: dict[_Read, list[str]] = {}
    for node in model.graph:
        source = node.inputs[0] if node.inputs else None
        if node.name in dynamic and source is not None:
            found.setdefault((source.name or "", dynamic[node.name]), []).append(node.name)
    return found
