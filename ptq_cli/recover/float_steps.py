"""More and more layers in float or with ranges found at each run, by what they gain for their time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from ptq_cli.placement.fastest_placement import Seam, circuit_of_profile, predicted, unit_sides
from ptq_cli.placement.machine_profile import MachineProfile
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.cost_benefit import Sizes, conversions_at_each_run, integer_time, savings
from ptq_cli.plan.planner import LayerChoices, make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.known_modes import ROW

LOUD = 64  # tensors that are looked at, at most: those that make the most noise
LEAST_SHARE = 1e-3  # of the time: cost of a layer that saves time in float, so that no noise is worth nothing
BETWEEN = ("same", "clamp")  # kinds of operators that are in float where the operator before them is
REASON = "left in float: its integers cost the outputs more than they save time"

Names = tuple[str, ...]
Move = tuple[Names, Names]  # layers that are left in float, and layers that find ranges at each run


@dataclass(frozen=True)
class Step:
    """Some more layers without integers in calibrated ranges.

    Attributes:
        move: which, and what becomes of them.
        left: the noise that is expected to be left, as a share.
        slower: share of the integer model's time that it costs.
        is_measured: whether the ranges of all its tensors were measured.
    """

    move: Move
    left: float
    slower: float
    is_measured: bool = True


NO_STEP = Step(((), ()), 1.0, 0.0)


class Steps:
    """More and more layers in float or with ranges found at each run, by what they gain for their time.

    They are planned by the target alone, which is twenty times as fast as with the recipe's settings and the
    ranges; what is chosen is placed with both.
    """

    def __init__(
        self,
        model: ir.Model,
        placement: Placement,
        target: Target,
        noise: Mapping[str, float],
        profile: MachineProfile | None,
        could_be_dynamic: frozenset[str],
    ) -> None:
        self._model, self._target, self._noise = model, target, noise
        self._could_be_dynamic, self._dynamic = could_be_dynamic, placement.settings.dynamic
        self._target_plan = placement.target_plan
        could = {layer.name for layer in placement.target_plan.layers if layer.quantized}
        self._excluded = {
            layer.name: layer.reason
            for layer in placement.plan.layers
            if not layer.quantized and layer.name in could
        }
        self._plans: dict[Move, Plan] = {}
        self._base, self._measured = self._plan(((), ())), set(placement.target_plan.measured)
        self._sizes = Sizes.of(model)
        self._time = integer_time(model, self._base, self._sizes)
        self._slower = self._slower_by(profile)
        self._total = sum(noise.values()) or 1.0
        loud = sorted(noise, key=lambda source: (-noise[source], source))[:LOUD]
        moves = {move: source for source in reversed(loud) if any(move := self._move(source))}
        alone = {move: self._with(NO_STEP, move, source) for move, source in moves.items()}
        worth = {move: (1.0 - step.left) / max(step.slower, LEAST_SHARE) for move, step in alone.items()}
        self._order = {move: moves[move] for move in sorted(worth, key=lambda move: (-worth[move], move))}

    def up_to(self, limit: float) -> Iterator[Step]:
        """Yield choices that cost at most this share of the time, each with more layers."""
        last = NO_STEP
        for move, source in self._order.items():
            step = self._with(last, move, source)
            # A float layer between integer ones may need ranges that were not measured.
            if not step.is_measured:
                continue
            # Layers that earlier ones have taken with them take no more noise away.
            if step.slower <= limit and step.left < last.left:
                # A limit of this cost lets the steps before pass, too.
                last = replace(step, slower=max(step.slower, last.slower))
                yield last

    def _with(self, last: Step, move: Move, source: str) -> Step:
        """Return a step with one more move, which a tensor asked for."""
        both = _both(last.move, move)
        if move[0] or both == last.move:
            return self._planned(both)
        # Not planned, which on a large graph takes longer than to measure the tensor's noise.
        added = sum(conversions_at_each_run(self._model, move[1], self._sizes)) / self._time
        return Step(both, last.left - self._noise[source] / self._total, last.slower + added)

    def _move(self, source: str) -> Move:
        """Move of the layers around a tensor after which it is on no calibrated grid."""
        makers, readers = _around(self._model, self._base, self._target, source)
        if readers and self._could_be_dynamic.issuperset(readers):  # It takes less time than float.
            return (), readers
        # What a float layer makes of integers is not quantized for the next one, of floats it is.
        if makers and source not in self._plan((makers, ())).activations:
            return makers, ()
        return tuple(dict.fromkeys((*makers, *readers))), ()

    def _plan(self, move: Move) -> Plan:
        if move not in self._plans:  # What a tensor asks for is the first step, and each limit begins alike.
            in_float, dynamic = move
            choices = LayerChoices(
                excluded={**self._excluded, **dict.fromkeys(in_float, REASON)},
                dynamic={**self._dynamic, **dict.fromkeys(dynamic, ROW)},
            )
            self._plans[move] = make_plan(
                self._model, self._target, choices, may_be_empty=True, alone=self._target_plan
            )
        return self._plans[move]

    def _slower_by(self, profile: MachineProfile | None) -> Callable[[Plan], float]:
        """Return a function of a plan: the share of its time by which the model is slower than now.

        An estimate does not depend on the machine.
        """
        model = self._model
        if profile is not None:
            circuit = circuit_of_profile(model, self._target_plan, profile)
            seam = Seam(profile.seam_fixed, profile.seam_element)
            least = predicted(circuit, seam, unit_sides(circuit, self._base))
            return lambda plan: predicted(circuit, seam, unit_sides(circuit, plan)) / least - 1.0
        saved = savings(model, self._base, self._sizes).work
        return lambda plan: (saved - savings(model, plan, self._sizes).work) / self._time

    def _planned(self, move: Move) -> Step:
        plan = self._plan(move)
        before, after = self._base.activations, plan.activations
        quantized = {before[name].source for name in after if name in before}
        left = sum(noise for source, noise in self._noise.items() if source in quantized)
        is_measured = self._measured.issuperset(plan.measured)
        return Step(move, left / self._total, self._slower(plan), is_measured)


def _both(one: Move, other: Move) -> Move:
    """Return both moves as one; a layer of both is left in float."""
    in_float = tuple(dict.fromkeys((*one[0], *other[0])))
    dynamic = dict.fromkeys((*one[1], *other[1]))
    return in_float, tuple(name for name in dynamic if name not in in_float)


def _around(model: ir.Model, plan: Plan, target: Target, source: str) -> tuple[Names, Names]:
    """Return the integer layers that make and that read the tensors of a source."""
    integer = {layer.name for layer in plan.layers if layer.quantized}
    members = {name for name, site in plan.activations.items() if site.source == source}
    members.update(plan.members(source))
    between = {name for name, rule in target.op.items() if rule.kind in BETWEEN}
    makers: dict[str, None] = {}
    readers: dict[str, None] = {}
    for node in model.graph:
        if any(value.name in members for value in node.outputs):
            maker: ir.Node | None = node
            while maker is not None and maker.op_type in between:
                first = maker.inputs[0] if maker.inputs else None
                maker = first.producer() if first is not None else None
            if maker is not None and maker.name in integer:
                makers[maker.name] = None
        reads = any(value is not None and value.name in members for value in node.inputs)
        if reads and node.op_type not in between and node.name in integer:
            readers[node.name] = None
    return tuple(makers), tuple(readers)
