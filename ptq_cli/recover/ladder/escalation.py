"""A model whose worst output has less than the goal: the form of each recurrent layer comes first."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

import onnx_ir as ir

from ptq_cli.core.progress import RunProgress
from ptq_cli.models.files.stored import serialize
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.sites import Plan
from ptq_cli.recover.float_moves import FLOAT_REASON
from ptq_cli.recover.ladder.float_layers import FEW_JUDGED, JUDGED_ON, judge_of_worst
from ptq_cli.recover.output_noise import lowest_of_floats
from ptq_cli.recover.recovery_context import RecoveryContext
from ptq_cli.recover.recovery_effects import ChosenForms
from ptq_cli.recover.rung_work import in_minutes

# A layer computes in integers, multiplies integer weights as floats, or is left as it is. The first is the
# fastest by far, and the second as large.
COMPUTES_INTEGERS, COMPUTES_PRODUCTS, STAYS_FLOAT = "integers", "float with integer weights", "float"
MOST_LAYERS = 12  # recurrent layers that are decided one by one: each takes up to two models more
_CLEARLY_DB = 5.0  # above the goal, from which on few samples are enough
_MODELS_TRIED = 12  # about, until one is good enough, with what ranks layers
LEAST_GAIN_DB = 0.5  # what a slower or a larger form of all of them has to gain

_Forms = Mapping[str, str]


class FormMaker(Protocol):
    """Makes quantized models whose recurrent layers have the forms that are asked for."""

    def build(self, placement: Placement, /) -> tuple[ir.Model, Plan]:
        """Return the quantized graph of a placement, and its plan."""

    def with_forms(self, in_float: Mapping[str, str], products: Mapping[str, str], /) -> Placement:
        """Return a placement with recurrent layers in float and as products, each with the reason."""


def choose_forms(
    context: RecoveryContext, models: FormMaker, placement: Placement
) -> tuple[Placement, ChosenForms]:
    """Return the placement with the fastest forms of recurrent layers that are enough, and what they are.

    A model that has the goal as it is stays as it is. Integers of an LSTM have one scale for what each step
    reads: a signal with a long tail, such as the power of speech, leaves it a few steps.
    """
    floats = context.float_model.load()
    judge, count = judge_of_worst(context, floats, FEW_JUDGED, of=lowest_of_floats(floats))
    begin = time.monotonic()
    made = serialize(models.build(placement)[0])
    before = judge(made)
    if before < context.goal_db + _CLEARLY_DB:  # Others may lose more than these few.
        judge, count = judge_of_worst(context, floats, JUDGED_ON, of=lowest_of_floats(floats))
        before = judge(made)
    if before < context.goal_db and context.interruptions.asked:  # A tuning tells of each goal itself.
        context.tell(
            f"the worst output has {before:.1f} dB on {count} samples, below {context.goal_db:g} dB: "
            f"improving it, {about(_MODELS_TRIED * (time.monotonic() - begin))}; --recover none skips this"
        )
    names = list(dict.fromkeys(site.node for site in placement.plan.weights if site.kernel))
    if before >= context.goal_db or not names or context.weights_first:
        return placement, ChosenForms(
            before=before, after=before, samples=count, forms={}, goal_db=context.goal_db
        )
    measured = _Measured(models, judge)
    with context.interruptions.rung() as stop:
        search = _FormSearch(context, measured, _sized(names, placement.plan, floats), stop)
        forms, after = search.fastest(before)
    if forms:
        by_form = [f"{n} in {form}" for form, n in Counter(forms.values()).items()]
        text = f"recurrent layers: {', '.join(by_form)}: worst output from {before:.1f} to {after:.1f} dB"
        context.tell(text)
    return measured.placed(forms), ChosenForms(
        before=before, after=after, samples=count, forms=forms, goal_db=context.goal_db
    )


class _Measured:
    """SQNR of the worst output of placements and of forms."""

    def __init__(self, models: FormMaker, judge: Callable[..., float]) -> None:
        self._models, self._judge = models, judge

    def __call__(self, placement: Placement) -> float:
        return self._judge(serialize(self._models.build(placement)[0]))

    def placed(self, forms: _Forms) -> Placement:
        """The placement of forms."""
        in_float = {name: FLOAT_REASON for name, form in forms.items() if form == STAYS_FLOAT}
        products = {name: FLOAT_REASON for name, form in forms.items() if form == COMPUTES_PRODUCTS}
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
            if reached >= self._context.wanted_db or self._stop():
                break
        enough = min(self._context.wanted_db, reached - LEAST_GAIN_DB)
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


def about(seconds: float) -> str:
    """Say about how long something takes."""
    if seconds >= 60:
        return f"about {in_minutes(seconds)}"
    return f"about {10 * math.ceil(seconds / 10)} s" if seconds > 5 else "some seconds"


def _sized(names: list[str], plan: Plan, model: ir.Model) -> list[str]:
    """The layers, the largest first: their integers save the most time."""
    sizes = dict.fromkeys(names, 0)
    for site in plan.weights:
        if site.node in sizes and (value := model.graph.initializers.get(site.tensor)) is not None:
            sizes[site.node] += math.prod(value.shape.numpy()) if value.shape is not None else 0
    return sorted(names, key=lambda name: -sizes[name])
