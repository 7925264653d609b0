"""What can be done about the noise of a tensor or of a weight, ordered by what it gains for what it costs."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum  # From Python 3.12 on, sum() rounds otherwise than before.

import onnx_ir as ir

from ptq_cli.core.formats import BYTE
from ptq_cli.placement.fastest_placement import MachineProfile
from ptq_cli.placement.kernel_costs import ExpectedTimes
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.cost_benefit import COSTS, MICROSECONDS_OF_ONE, Sizes, conversions_at_each_run
from ptq_cli.plan.planner import LayerChoices, make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.declaration import ROW

LOUD = 64  # tensors that are looked at, at most: those that make the most noise
MORE_LOUD = 256  # and where weights are looked at, too
# Share of the cost: what a layer costs that saves some in float, so that no noise is worth nothing.
_LEAST_SHARE = 1e-3
_LEAST_SPARE = 0.1  # share of the time that may be added though float is no slower
BETWEEN = ("same", "clamp")  # kinds of operators that are in float where the operator before them is
FLOAT_REASON = "computes in float: its integers cost the outputs more than they save time"

Names = tuple[str, ...]
Source = str | Names  # a tensor, or the layers that share a weight


@dataclass(frozen=True)
class LayerMove:
    """Layers left in float or with ranges found at each run, activations of 16 bits, and weights of 8."""

    in_float: Names = ()
    dynamic: Names = ()
    wide: Names = ()
    more_bits: Names = ()

    def __bool__(self) -> bool:
        return any((self.in_float, self.dynamic, self.wide, self.more_bits))

    def __or__(self, other: "LayerMove") -> "LayerMove":
        """Return both moves as one; a layer of both is left in float."""
        in_float = tuple(dict.fromkeys((*self.in_float, *other.in_float)))
        dynamic = tuple(name for name in (*self.dynamic, *other.dynamic) if name not in in_float)
        wide, bits = (*self.wide, *other.wide), (*self.more_bits, *other.more_bits)
        return LayerMove(in_float, *(tuple(dict.fromkeys(names)) for names in (dynamic, wide, bits)))


NO_MOVE = LayerMove()


@dataclass(frozen=True, kw_only=True)
class PossibleMoves:
    """What may be done beside layers in float.

    Attributes:
        dynamic: the layers that may have ranges found at each run.
        has_wide: whether activations may get 16 bits.
        more_bits: layers whose weights may get 8 bits.
    """

    dynamic: frozenset[str] = frozenset()
    has_wide: bool = False
    more_bits: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class PlanCosts:
    """What plans cost: the time of a run, or the bytes of the file.

    Attributes:
        of: a plan in which these layers have integers as weights.
        floating: the model in float.
        at_each_run: layers whose ranges are found at each run, more than that of others.
        layer: of one in integers; 16 bits cost it again.
        more_bits: of weights, more than those of few bits.
        is_time: whether it is the time of a processor.
    """

    of: Callable[[Plan, Collection[str]], float]
    floating: float
    at_each_run: Callable[[Names], float]
    layer: Callable[[str], float]
    more_bits: Callable[[Names], float] = lambda _names: 0.0
    is_time: bool = False

    @classmethod
    def of_time(cls, model: ir.Model, plan: Plan, profile: MachineProfile) -> "PlanCosts":
        """Return the microseconds by a profile; in ``plan`` everything is in integers that can be."""
        expected, sizes = ExpectedTimes(model, plan, profile), Sizes.of(model)

        def at_each_run(names: Names) -> float:
            return MICROSECONDS_OF_ONE * sum(conversions_at_each_run(model, names, sizes))

        def layer(name: str) -> float:
            return profile.nodes[name].integer if name in profile.nodes else 0.0

        def of(found: Plan, _names: Collection[str]) -> float:
            return expected.time(found)

        return cls(
            of=of,
            floating=profile.floating,
            at_each_run=at_each_run,
            layer=layer,
            is_time=profile.is_measured,
        )

    @classmethod
    def of_size(cls, model: ir.Model, plan: Plan, *, keeps_bytes: bool) -> "PlanCosts":
        """Return the bytes of a plan's weights; ``keeps_bytes`` says that layers in float keep integers."""
        values = model.graph.initializers
        in_float, in_integers, added = {}, {}, dict[str, float]()
        sharing = Counter(site.tensor for site in plan.weights)
        for site in plan.weights:
            value = values[site.tensor].const_value if site.tensor in values else None
            elements = value.size / sharing[site.tensor] if value is not None else 0.0
            in_integers[site.node] = elements * site.format.bits / BYTE
            in_float[site.node] = in_integers[site.node] if keeps_bytes else 4.0 * elements
            added[site.node] = elements - in_integers[site.node]
        floating = fsum(in_float.values())

        def of(_found: Plan, names: Collection[str]) -> float:
            return fsum(in_integers[name] if name in names else size for name, size in in_float.items())

        def at_each_run(names: Names) -> float:
            return float(sum(map(COSTS.dynamic, names)))

        def more_bits(names: Names) -> float:
            return fsum(added.get(name, 0.0) for name in names)

        return cls(
            of=of,
            floating=floating,
            at_each_run=at_each_run,
            layer=lambda _name: 0.0,
            more_bits=more_bits,
        )


@dataclass(frozen=True)
class FloatStep:
    """Some more layers without integers of 8 bits in calibrated ranges.

    Attributes:
        move: which, and what becomes of them.
        left: the noise that is expected to be left, as a share.
        more: share of what the integer model costs that it costs beyond that.
        is_measured: whether the ranges of all its tensors were measured.
    """

    move: LayerMove
    left: float
    more: float
    is_measured: bool = True


NO_STEP = FloatStep(NO_MOVE, 1.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Noises:
    """The noise of the model's outputs with one thing alone in integers, as a share.

    Attributes:
        tensors: by source, of an activation.
        weights: by the layers that share one; empty where layers in float keep the integers of their weights.
    """

    tensors: Mapping[str, float]
    weights: Mapping[Names, float]

    @property
    def loudest(self) -> list[Source]:
        """The things that make the most noise, the loudest first."""
        each: list[tuple[Source, float]] = [*self.tensors.items(), *self.weights.items()]
        most = MORE_LOUD if self.weights else LOUD  # What is not moved is not left in float together, either.
        return [source for source, _ in sorted(each, key=lambda item: (-item[1], str(item[0])))[:most]]

    @property
    def total(self) -> float:
        """The noise of all."""
        return fsum((*self.tensors.values(), *self.weights.values())) or 1.0


class Steps:
    """More and more moves, by what they gain for their cost.

    ``spare`` is the share of its cost that the model may have more: as much as float, 16 bits for all
    activations, or a tenth.

    They are planned by the target alone, which is twenty times as fast as with the recipe's settings and the
    ranges; what is chosen is placed with both.
    """

    def __init__(
        self,
        model: ir.Model,
        placement: Placement,
        target: Target,
        noises: Noises,
        costs: PlanCosts,
        possible: PossibleMoves,
    ) -> None:
        self._model, self._target, self._noises, self._costs = model, target, noises, costs
        self._possible, self._dynamic = possible, placement.settings.dynamic
        self._target_plan = placement.target_plan
        could = {layer.name for layer in placement.target_plan.layers if layer.quantized}
        self._excluded = {
            layer.name: layer.reason
            for layer in placement.plan.layers
            if not layer.quantized and layer.name in could
        }
        self._plans: dict[tuple[Names, Names], Plan] = {}
        self._neighbors: dict[str, tuple[Names, Names]] = {}
        self._base, self._measured = self._plan(NO_MOVE), set(placement.target_plan.measured)
        weights = {site.node for site in placement.plan.weights}
        self._weights_alone = frozenset(weights if not placement.plan.activations else ())
        self._total = noises.total
        self._cost = costs.of(self._base, self._integer(self._base, NO_MOVE)) or 1.0
        most = self._again(placement.plan.sources) if possible.has_wide else 0.0
        self.spare = max(_LEAST_SPARE, costs.floating / self._cost - 1.0, most / self._cost)
        moves = {move: source for source in reversed(noises.loudest) if (move := self._move(source))}
        alone = {move: self._with(NO_STEP, move, source) for move, source in moves.items()}
        worth = {move: (1.0 - step.left) / max(step.more, _LEAST_SHARE) for move, step in alone.items()}
        order = sorted(worth, key=lambda move: (-worth[move], *vars(move).values()))
        self._order = {move: moves[move] for move in order}

    def up_to(self, limit: float) -> Iterator[FloatStep]:
        """Yield choices that cost at most this share more, each with more moves."""
        last = NO_STEP
        for move, source in self._order.items():
            step = self._with(last, move, source)
            # A float layer between integer ones may need ranges that were not measured.
            if not step.is_measured:
                continue
            # Layers that earlier ones have taken with them take no more noise away.
            if step.more <= limit and step.left < last.left:
                # A limit of this cost lets the steps before pass, too.
                last = replace(step, more=max(step.more, last.more))
                yield last

    def _with(self, last: FloatStep, move: LayerMove, source: Source) -> FloatStep:
        """Return a step with one more move, which a tensor or a weight asked for."""
        both = last.move | move
        if move.in_float or both == last.move or not isinstance(source, str):
            return self._planned(both)
        # Not planned, which on a large graph takes longer than to measure the tensor's noise.
        added = self._costs.at_each_run(move.dynamic) + self._again(both.wide) - self._again(last.move.wide)
        left = last.left - self._noises.tensors[source] / self._total
        return FloatStep(both, left, last.more + added / self._cost)

    def _again(self, sources: Sequence[str]) -> float:
        """What the layers around tensors cost in integers."""
        around = {name for source in sources for names in self._around(source) for name in names}
        return fsum(map(self._costs.layer, around))

    def _around(self, source: str) -> tuple[Names, Names]:
        if source not in self._neighbors:
            self._neighbors[source] = _around(self._model, self._base, self._target, source)
        return self._neighbors[source]

    def _move(self, source: Source) -> LayerMove:
        """Return the move after which a tensor is on no calibrated grid of 8 bits, or a weight is float."""
        if not isinstance(source, str):
            has_more = self._possible.more_bits.issuperset(source)
            return LayerMove(more_bits=source) if has_more else LayerMove(in_float=source)
        makers, readers = self._around(source)
        if readers and self._possible.dynamic.issuperset(readers):  # It takes less time than float.
            return LayerMove(dynamic=readers)
        if self._possible.has_wide and (makers or readers):
            return LayerMove(wide=(source,))
        # What a float layer makes of integers is not quantized for the next one, of floats it is.
        if makers and source not in self._plan(LayerMove(makers)).activations:
            return LayerMove(makers)
        return LayerMove(tuple(dict.fromkeys((*makers, *readers))))

    def _plan(self, move: LayerMove) -> Plan:
        key = move.in_float, move.dynamic
        if key not in self._plans:  # What a tensor asks for is the first step, and each limit begins alike.
            choices = LayerChoices(
                excluded={**self._excluded, **dict.fromkeys(move.in_float, FLOAT_REASON)},
                dynamic={**self._dynamic, **dict.fromkeys(move.dynamic, ROW)},
            )
            self._plans[key] = make_plan(
                self._model, self._target, choices, may_be_empty=True, alone=self._target_plan
            )
        return self._plans[key]

    def _integer(self, plan: Plan, move: LayerMove) -> frozenset[str]:
        """Return the layers whose weights are integers in a plan."""
        if self._weights_alone:
            return self._weights_alone.difference(move.in_float)
        return frozenset(site.node for site in plan.weights)

    def _planned(self, move: LayerMove) -> FloatStep:
        plan, noises = self._plan(move), self._noises
        before, after = self._base.activations, plan.activations
        quantized = {before[name].source for name in after if name in before}.difference(move.wide)
        left = fsum(noise for source, noise in noises.tensors.items() if source in quantized)
        integer = self._integer(plan, move)
        few = integer.difference(move.more_bits)
        left += fsum(noise for names, noise in noises.weights.items() if not few.isdisjoint(names))
        is_measured = self._measured.issuperset(plan.measured)
        bits = tuple(name for name in move.more_bits if name in integer)
        cost = self._costs.of(plan, integer) + self._again(move.wide) + self._costs.more_bits(bits)
        more = cost / self._cost - 1.0
        return FloatStep(move, left / self._total, more, is_measured)


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
