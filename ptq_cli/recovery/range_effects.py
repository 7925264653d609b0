"""What each range of a tensor costs the outputs of a model, measured on samples."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.tensors import Array, is_array
from ptq_cli.models.stored import StoredModel
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.stages.cut_stages import cut_stages
from ptq_cli.qdq.stages.staged_model import StagedModel
from ptq_cli.recovery.output_error import output_sqnr
from ptq_cli.runtime.session import Session

Costs = npt.NDArray[np.float64]
Pieces = Sequence[Mapping[str, Array]]


def range_costs(
    twins: TwinGraphs,
    plan: Plan,
    candidates: Mapping[str, Sequence[QuantParameters]],
    pieces: Pieces,
    *,
    threads: int = 1,
    done: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Costs]:
    """Return what each candidate of a tensor costs: how much of the model's outputs is noise.

    The float model runs with one tensor on the grid of one candidate, all else in float; tensors that share
    parameters are on it together. Only what comes behind them is run again.

    Args:
        twins: the float model, and a quantized one of the same plan, which says where tensors have pairs.
        plan: of the quantized one.
        candidates: parameters by source, the tensor whose statistics decide; of one nothing is measured.
        pieces: the model's inputs, of few samples each.
        threads: each runs a candidate; the result does not depend on them.
        done: is told after each piece how many are done, of how many.

    Units:
        noise over signal, added up over outputs.

    Edge case:
        What the error at a tensor's readers alone would choose is worse: it clips outliers that the output
        depends on.

    Raises:
        RuntimeFailedError: ONNX Runtime failed.
    """
    stages = cut_stages(twins, {layer.name for layer in plan.layers if layer.quantized})
    outputs = [value.name or "" for value in twins.float_model.graph.outputs if value.const_value is None]
    staged = StagedModel(stages, twins.pairs, outputs[0], outputs)
    tensors: dict[str, list[str]] = {}
    for tensor, site in plan.activations.items():
        if tensor in twins.pairs and len(candidates.get(site.source, ())) > 1:
            tensors.setdefault(site.source, []).append(tensor)
    tasks = [(source, index) for source in tensors for index in range(len(candidates[source]))]
    costs = {source: np.zeros(len(candidates[source])) for source in tensors}
    with ThreadPoolExecutor(threads, "ranges") as pool:
        for count, piece in enumerate(pieces):
            base = staged.run(piece, quantized=False)
            wanted = {name: staged.floats(name, base[name]) for name in outputs}

            def cost(task: tuple[str, int]) -> float:
                source, index = task
                grids = dict.fromkeys(tensors[source], candidates[source][index])
                found = staged.on_grids(grids, base)  # noqa: B023 - the pool is done before the next piece
                return sum(_noise(wanted[name], found[name]) for name in outputs)  # noqa: B023

            for (source, index), found in zip(tasks, pool.map(cost, tasks), strict=True):
                costs[source][index] += found
            done(count + 1, len(pieces))
    return costs


def _noise(wanted: Array, found: Array) -> float:
    """Return the share of an output that is noise; of integers how many differ."""
    if not is_array(wanted) or not wanted.size:
        return 0.0
    if wanted.shape != found.shape:
        return 1.0
    if wanted.dtype.kind != "f":
        return float(np.count_nonzero(wanted != found)) / wanted.size
    values = wanted.astype(np.float64)
    signal = float(np.sum(values * values))
    return float(np.sum((values - found.astype(np.float64)) ** 2)) / signal if signal > 0.0 else 0.0


def model_sqnr(
    float_model: StoredModel, quantized_model: StoredModel, pieces: Pieces, *, threads: int = 1
) -> float:
    """Return the SQNR of a quantized model's outputs on samples.

    Args:
        float_model: as it was.
        quantized_model: made from it.
        pieces: the model's inputs, of some samples each.
        threads: each runs a piece; the result does not depend on them.

    Units:
        decibels; see ``output_sqnr``.

    Raises:
        RuntimeFailedError: ONNX Runtime failed.
    """
    with ThreadPoolExecutor(threads, "ranges") as pool:
        outputs = []
        for model in (float_model, quantized_model):
            session = Session(model, threads=1)
            outputs.append(list(pool.map(lambda piece, run=session.run: run(dict(piece)), pieces)))
    return output_sqnr(*outputs)
