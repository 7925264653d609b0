"""A row of the analysis for each quantized activation: what its integers cost, and why."""

from collections.abc import Callable, Iterator

from ptq_cli.analysis.causes import GOOD_DB, Finding, Use, activation_finding, tensor_not_finite
from ptq_cli.analysis.measure_layers import Measured
from ptq_cli.analysis.sums import channel_imbalance, range_used
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.evaluation.document.tensor_rows import TensorAnalysis
from ptq_cli.models.graph_reading import every_node
from ptq_cli.qdq.read.twin_graphs import TwinGraphs


def activation_rows(
    twins: TwinGraphs, measured: Measured, better: Callable[[str, QuantParameters], str], *, histograms: bool
) -> Iterator[TensorAnalysis]:
    """Yield a row for each activation pair.

    ``better`` returns which amax method would be better for a tensor; it is called only for bad ones.
    """
    makers = {
        value.name: node.op_type for node in every_node(twins.float_model.graph) for value in node.outputs
    }
    for name, pair in twins.pairs.items():
        sums, parameters = measured.quantizations[name], pair.parameters
        use = Use(
            sqnr_db=sums.sqnr_db,
            clip_share=sums.clip_share,
            clipped=sums.clipped / max(1, sums.count),
            used=range_used(sums.integers),
            imbalance=channel_imbalance(sums.channel_amax),
            levels=len(sums.integers),
            readers=twins.readers_of(pair),
            better=better(name, parameters) if sums.sqnr_db < GOOD_DB else "",
        )
        bad = measured.not_finite.get(name)
        found = (
            activation_finding(use, histograms=histograms)
            if bad is None
            else tensor_not_finite(bad.model, bad.sample)
        )
        yield _activation_row(name, makers.get(name, ""), parameters, measured, use, found)


def _activation_row(
    name: str, op: str, parameters: QuantParameters, measured: Measured, use: Use, found: Finding
) -> TensorAnalysis:
    scale, zero = float(parameters.scale), int(parameters.zero_point)
    return TensorAnalysis(
        name=name,
        kind="activation",
        layers=tuple(use.readers),
        op=op,
        dtype=parameters.format.name,
        shape=measured.shapes.get(name, ()),
        axis=None,
        low=(parameters.format.qmin - zero) * scale,
        high=(parameters.format.qmax - zero) * scale,
        scale_min=scale,
        scale_max=scale,
        zero_point_min=zero,
        zero_point_max=zero,
        clipped=use.clipped,
        range_used=use.used,
        channel_imbalance=use.imbalance,
        sqnr_accumulated_db=measured.noises[name].sqnr_db,
        sqnr_isolated_db=use.sqnr_db,
        cause=found.cause,
        finding=found.finding,
        remedy=found.remedy,
    )
