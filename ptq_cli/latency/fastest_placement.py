"""Which layers stay in float so that a model is fastest, by the profile of a machine."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.latency.cheapest_cut import Seam, cheapest, predicted
from ptq_cli.latency.machine_profile import MachineProfile
from ptq_cli.latency.units import Circuit, circuit_of
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target

WORTH = 0.98
"""A mix must take at most this part of the faster whole model's time: less of a gain is within the error."""
MOST_ROUNDS = 40
LEADING = ("compute", "join", "stored")
"""The kinds of a target's rules whose operators compute; the others follow them."""


@dataclass(frozen=True, kw_only=True)
class FastestPlacement:
    """A placement.

    Attributes:
        in_float: the layers that stay in float although they could be integer, with the reason.
        plan: what follows from that.
        expected: microseconds of a run.
    """

    in_float: Mapping[str, str]
    plan: Plan
    expected: float


def fastest_placement(
    model: ir.Model, plan: Plan, target: Target, profile: MachineProfile
) -> FastestPlacement:
    """Return the placement that takes the least time by a profile.

    Args:
        model: the float model.
        plan: with everything in integers that can be.
        target: whose rules made the plan.
        profile: of the model.

    Edge case:
        A layer that is kept in float can keep the next one in float, too
        (docs/decisions/0009-layers-that-stay-float.md). Where that happens, the cheaper of two remedies is
        taken: both in float, or both in integers. What only moves values, or clamps them, follows its
        neighbors. A placement that would quantize a tensor that the calibration did not measure is not taken:
        what reads that tensor stays in float, too.
    """
    circuit, excluded = circuit_of_profile(model, plan, profile), _in_float(model, plan, target)
    seam, leading = Seam(profile.seam_fixed, profile.seam_element), _leading(model, target)
    integer, floating = frozenset[int](), frozenset[int]()
    for _ in range(MOST_ROUNDS):
        chosen = cheapest(circuit, seam, integer=integer, floating=floating)
        reasons = _reasons(circuit, chosen, leading)
        found = _planned(model, target, {**excluded, **reasons})
        trapped = _led(circuit, chosen - unit_sides(circuit, found), leading)
        unmeasured = _readers(circuit, set(found.measured) - set(plan.measured)) & chosen
        if not trapped and not unmeasured:
            expected = predicted(circuit, seam, unit_sides(circuit, found))
            break
        if unmeasured:
            integer, floating = integer - unmeasured, floating | unmeasured
            continue
        apart = floating | trapped
        together = integer | _before(circuit, trapped, chosen)
        options = (
            [(integer, apart)]
            if together & apart or together == integer
            else [(integer, apart), (together, floating)]
        )
        integer, floating = min(options, key=lambda option: _cost(circuit, seam, *option))
    else:
        expected = math.inf  # No mix was found that the planner makes as it is asked.
    if expected <= WORTH * min(profile.integer, profile.floating):
        return FastestPlacement(in_float=reasons, plan=found, expected=expected)
    if profile.integer <= profile.floating:
        return FastestPlacement(in_float={}, plan=plan, expected=profile.integer)
    reasons = _reasons(circuit, frozenset(), leading)
    found = _planned(model, target, {**excluded, **reasons})
    return FastestPlacement(in_float=reasons, plan=found, expected=profile.floating)


def circuit_of_profile(model: ir.Model, plan: Plan, profile: MachineProfile) -> Circuit:
    """Return the units of a model with the times of a profile."""
    quantized = {layer.name for layer in plan.layers if layer.quantized}
    floating = {name: times.floating for name, times in profile.nodes.items()}
    integer = {name: times.integer for name, times in profile.nodes.items()}
    return circuit_of(model.graph, quantized, floating, integer, profile.elements)


def unit_sides(circuit: Circuit, plan: Plan) -> frozenset[int]:
    """Return the units that a plan computes in integers."""
    quantized = {layer.name for layer in plan.layers if layer.quantized}
    return frozenset(
        index for index, unit in enumerate(circuit.units) if not quantized.isdisjoint(unit.choices)
    )


def _in_float(model: ir.Model, plan: Plan, target: Target) -> dict[str, str]:
    """Return the layers that a plan leaves in float although the target would not, with the reason."""
    quantized = {layer.name for layer in make_plan(model, target).layers if layer.quantized}
    floats = [layer for layer in plan.layers if not layer.quantized]
    return {layer.name: layer.reason for layer in floats if layer.name in quantized}


def _planned(model: ir.Model, target: Target, excluded: Mapping[str, str]) -> Plan:
    return make_plan(model, target, excluded=excluded, may_be_empty=True)


def _cost(circuit: Circuit, seam: Seam, integer: Collection[int], floating: Collection[int]) -> float:
    return predicted(circuit, seam, cheapest(circuit, seam, integer=integer, floating=floating))


def _before(circuit: Circuit, units: Collection[int], chosen: Collection[int]) -> frozenset[int]:
    """Return the float units with a choice whose results these units read."""
    sources = {edge.source for edge in circuit.edges if set(edge.readers) & set(units)}
    return frozenset(
        source
        for source in sources
        if source is not None and source not in chosen and circuit.units[source].choices
    )


def _readers(circuit: Circuit, tensors: Collection[str]) -> frozenset[int]:
    """Return the units that read one of these tensors."""
    return frozenset(reader for edge in circuit.edges if edge.tensor in tensors for reader in edge.readers)


def _leading(model: ir.Model, target: Target) -> frozenset[str]:
    """Return the names of the nodes that the target computes or joins, and does not only move or clamp."""
    kinds = {name for name, rule in target.op.items() if rule.kind in LEADING}
    return frozenset(node.name or "" for node in model.graph if node.op_type in kinds)


def _led(circuit: Circuit, units: Collection[int], leading: Collection[str]) -> frozenset[int]:
    return frozenset(unit for unit in units if any(name in leading for name in circuit.units[unit].choices))


def _reasons(circuit: Circuit, integer: Collection[int], leading: Collection[str]) -> dict[str, str]:
    reasons = {}
    for index, unit in enumerate(circuit.units):
        if index in integer:
            continue
        for name in unit.choices:
            if name in leading:
                reasons[name] = _reason(unit.floating, unit.integer)
    return reasons


def _reason(floating: float, integer: float) -> str:
    times = f"{_microseconds(floating)} of {_microseconds(integer)}"
    if floating <= integer:
        return f"faster in float here: {times}"
    return f"faster in float here together with its neighbors, although alone it is not: {times}"


def _microseconds(time: float) -> str:
    return f"{time:.3g} µs"
