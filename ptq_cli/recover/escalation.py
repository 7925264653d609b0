"""Improving a model whose worst output has less than 20 dB: the form of each recurrent layer comes first."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import onnx_ir as ir

from ptq_cli.core.progress import RunProgress
from ptq_cli.models.files.stored import serialize
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.sites import Plan
from ptq_cli.recover.float_layers import JUDGED_ON, WANTED_DB, judge_of_worst
from ptq_cli.recover.output_noise import Noise, lowest_of
from ptq_cli.recover.recovery_context import RecoveryContext
from ptq_cli.recover.recovery_effects import GOAL_DB, ChosenForms

# A layer computes in integers, multiplies integer weights as floats, or is left as it is. The first is the
# fastest by far, and the second as large.
COMPUTES_INTEGERS, COMPUTES_PRODUCTS, STAYS_FLOAT = "integers", "float with integer weights", "float"
MOST_LAYERS = 12  # recurrent layers that are decided one by one: each takes up to two models more
QUICK_WORK = 3e11  # multiply-accumulates of candidates for ranges: about half a minute of one core with AVX2
LEAST_GAIN_DB = 0.5  # what a slower or a larger form of all of them has to gain
FORM_REASON = "computed in float: in integers it costs the outputs more than it saves time"

FLOATS_OF_OUTPUTS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
_Forms = Mapping[str, str]


class FormMaker(Protocol):
    """Makes quantized models whose recurrent layers have the forms that are asked for."""

    def build(self, placement: Placement, /) -> tuple[ir.Model, Plan]:
        """Return the quantized graph of a placement, and its plan."""

    def with_forms(self, in_float: Mapping[str, str], products: frozenset[str], /) -> Placement:
        """Return a placement with recurrent layers in float, with the reason, and as products."""


def choose_forms(
    context: RecoveryContext, models: FormMaker, placement: Placement
) -> tuple[Placement, ChosenForms]:
    """Return the placement with the fastest forms of recurrent layers that reach 22 dB, and what they are.

    A model that has 20 dB as it is stays as it is. Integers of an LSTM have one scale for what each step
    reads: a signal with a long tail, such as the power of speech, leaves it a few steps.
    """
    floats = context.float_model.load()
    judge, count = judge_of_worst(context, floats, JUDGED_ON, of=lowest_of_floats(floats))
    measured = _Measured(models, judge)
    before = measured(placement)
    if before < GOAL_DB:
        context.tell(
            f"the worst output has {before:.1f} dB on {count} samples, below {GOAL_DB:.0f} dB: "
            "improving it (--recover none skips this)"
        )
    names = list(dict.fromkeys(site.node for site in placement.plan.weights if site.kernel))
    if before >= GOAL_DB or not names:
        return placement, ChosenForms(before=before, after=before, samples=count, forms={})
    with context.interruptions.rung() as stop:
        search = _FormSearch(context, measured, _sized(names, placement.plan, floats), stop)
        forms, after = search.fastest(before)
    if forms:
        by_form = [f"{n} in {form}" for form, n in Counter(forms.values()).items()]
        text = f"recurrent layers: {', '.join(by_form)}: worst output from {before:.1f} to {after:.1f} dB"
        context.tell(text)
    return measured.placed(forms), ChosenForms(before=before, after=after, samples=count, forms=forms)


def lowest_of_floats(model: ir.Model) -> Callable[[Sequence[Noise]], float]:
    """A measure of noise: SQNR of the worst output of floats, in dB.

    Edge case:
        If the shape of one depends on its values, or they are not finite, nothing is known: infinitely many.
        What integers lose is not told in dB.
    """
    tensors = [value for value in model.graph.outputs if not isinstance(value.type, ir.SequenceType)]
    chosen = [number for number, value in enumerate(tensors) if value.dtype in FLOATS_OF_OUTPUTS]

    def lowest(pieces: Sequence[Noise]) -> float:
        kept = [[piece[number] for number in chosen] for piece in pieces]
        known = all(math.isfinite(signal) and noise != math.inf for piece in kept for signal, noise in piece)
        return lowest_of(kept) if known else math.inf

    return lowest


class _Measured:
    """SQNR of the worst output of placements and of forms."""

    def __init__(self, models: FormMaker, judge: Callable[..., float]) -> None:
        self._models, self._judge = models, judge

    def __call__(self, placement: Placement) -> float:
        return self._judge(serialize(self._models.build(placement)[0]))

    def placed(self, forms: _Forms) -> Placement:
        """The placement of forms."""
        in_float = {name: FORM_REASON for name, form in forms.items() if form == STAYS_FLOAT}
        products = frozenset(name for name, form in forms.items() if form == COMPUTES_PRODUCTS)
        return self._models.with_forms(in_float, products)


class _FormSearch:
    """The search for the fastest forms, from the slowest on."""

    def __init__(
        self, context: RecoveryContext, measured: _Measured, names: list[str], stop: Callable[[], bool]
    ) -> None:
        self._context, self._measured, self._stop = context, measured, stop
        # Many layers are of one kind, and get one form.
        self._groups = [(name,) for name in names] if len(names) <= MOST_LAYERS else [tuple(names)]
        self._done, self._most = 0, 2 + 2 * len(self._groups)

    def fastest(self, before: float) -> tuple[_Forms, float]:
        """Return the forms that are not integers, and the SQNR of the worst output with them."""
        every = [name for group in self._groups for name in group]
        best, reached = {}, before
        for form in (COMPUTES_PRODUCTS, STAYS_FLOAT):
            forms = dict.fromkeys(every, form)
            found = self._sqnr(forms)
            if found >= reached + LEAST_GAIN_DB:
                best, reached = forms, found
            if reached >= WANTED_DB or self._stop():
                break
        enough = min(WANTED_DB, reached - LEAST_GAIN_DB)
        for group in self._groups if best else ():
            for form in (COMPUTES_INTEGERS, COMPUTES_PRODUCTS):
                if self._stop() or form == best[group[0]]:
                    break
                forms = {**best, **dict.fromkeys(group, form)}
                found = self._sqnr(forms)
                if found >= enough:
                    best, reached = forms, found
                    break
        return {name: form for name, form in best.items() if form != COMPUTES_INTEGERS}, reached

    def _sqnr(self, forms: _Forms) -> float:
        self._done += 1
        done = min(self._done, self._most)
        self._context.progress(RunProgress("forms", done, self._most, number=done, runs=self._most))
        found = self._measured(self._measured.placed(forms))
        return found if not math.isnan(found) else -math.inf


def _sized(names: list[str], plan: Plan, model: ir.Model) -> list[str]:
    """The layers, the largest first: their integers save the most time."""
    sizes = dict.fromkeys(names, 0)
    for site in plan.weights:
        if site.node in sizes and (value := model.graph.initializers.get(site.tensor)) is not None:
            sizes[site.node] += math.prod(value.shape.numpy()) if value.shape is not None else 0
    return sorted(names, key=lambda name: -sizes[name])
