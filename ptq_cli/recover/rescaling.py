"""A float model's channels get factors before it is calibrated, where the recipe asks for it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from ptq_cli.calibdata.bind import bind_inputs, count_samples, fixed_batch_size
from ptq_cli.calibdata.dataset.batches import Batch, checked, cut
from ptq_cli.calibdata.recordings import Recordings
from ptq_cli.calibration.subject import CalibrationSubject
from ptq_cli.collectors.host_kernels import find_range
from ptq_cli.core.documents import rounded
from ptq_cli.core.formats import BYTE
from ptq_cli.core.process import most_resident_bytes
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.core.words import format_bytes
from ptq_cli.models.files.stored import check_stored, is_large, serialize, store_mapped
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.rescaling.scale_rules import trace_scales
from ptq_cli.models.rescaling.scale_spaces import ScaleSpace, scale_spaces
from ptq_cli.placement.planning import as_asked
from ptq_cli.plan.dynamic_layers import COMPUTED, dynamic_operators, slow_layers
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.metadata import RESCALED
from ptq_cli.recipe.known_modes import DYNAMIC, EQUALIZE, ROUND, ROW
from ptq_cli.recipe.quantizer_settings import activation_family, weight_family
from ptq_cli.recipe.recovery_rungs import (
    default_rungs,
    exporting_rungs,
    granularity_of,
    mode_of,
    rewriting_rungs,
)
from ptq_cli.recipe.sections import ActivationSettings, WeightSettings
from ptq_cli.recover.limited_metric import LimitedMetric, gain_in_words, limited_metric
from ptq_cli.recover.metric_gain import MetricGain
from ptq_cli.recover.recovery_samples import RecoverySamples
from ptq_cli.recover.rescale_model import LITTLE, SAME, RescaledModel, Seen, rescale_model
from ptq_cli.runtime.tapping.memory_plan import tapped_sizes
from ptq_cli.setup.carried import with_states
from ptq_cli.setup.resolve import Resolved

# What was done to the channels of a float model before it was calibrated, in words and values.


@dataclass(frozen=True, kw_only=True)
class Rescaling:
    """What a rung did to the channels of a float model."""

    rung: Annotated[str, "Its name."]
    kept: Annotated[bool, "Whether the model has the factors."] = False
    groups: Annotated[int, "How many groups of channels got factors, or would have."] = 0
    possible: Annotated[int, "How many could have."] = 0
    before: Annotated[float, "SQNR of the output without it on the held-out samples, in dB."] = float("nan")
    after: Annotated[float, "SQNR of the output with it on the held-out samples, in dB."] = float("nan")
    gain: Annotated[
        tuple[float, float], "The ends of the 95 % interval of the gain, in dB, of pieces of these samples."
    ] = (float("nan"), float("nan"))
    samples: Annotated[int, "How many samples ranges were taken from."] = 0
    decided_by: Annotated[int, "How many samples were held out."] = 0
    difference: Annotated[float, "Of the float model's outputs, as a share of their largest value."] = 0.0
    strengths: Annotated[
        Mapping[str, float] | None, "Of each group, by the layer that makes its channels."
    ] = None
    reason: Annotated[str, "Why nothing was done, if that is not for want of gain."] = ""
    is_limited: Annotated[bool, "Whether the limit of memory is that reason."] = False
    metric: Annotated[
        MetricGain | None, "Of the metric that the recipe limits, where these samples tell it."
    ] = None

    def values(self) -> dict[str, object]:
        """Return it for JSON, and for the metadata of a model; an SQNR that is not finite is null."""
        found = {
            "rung": self.rung,
            "kept": self.kept,
            "groups": self.groups,
            "possible": self.possible,
            "sqnr_db": [rounded(self.before), rounded(self.after)],
            "samples": self.samples,
            "decided_by": self.decided_by,
            "difference": float(f"{self.difference:.3g}"),
            "strengths": dict(self.strengths or {}),
            "reason": self.reason,
        }
        return found if self.metric is None else found | {"metric": self.metric.values()}

    def describe(self) -> str:
        """Return what was done, or why nothing was, as a line.

        Example:
            >>> gain = {"before": 8.57, "after": 37.06, "decided_by": 32}
            >>> Rescaling(rung="equalize", kept=True, groups=9, **gain).describe()
            'equalize: 9 groups of channels; output SQNR from 8.6 to 37.1 dB on 32 held-out samples'
            >>> Rescaling(rung="smooth").describe()
            'note: smooth changed nothing: the model has no channels that it could change'
        """
        change, metric = self._change(), self.metric
        if self.kept:
            groups = f"{self.groups} group{'' if self.groups == 1 else 's'} of channels"
            return f"{self.rung}: {groups}; {change}"
        reason = self.reason
        if not reason and self.groups:
            is_more = self.after > self.before and (metric is None or not metric.is_sure)
            helped = f"gained less than {LITTLE} dB, which may be chance" if is_more else "did not help"
            reason = f"it {helped}, so it was not kept ({change})"
        elif not reason and self.possible:
            reason = "no group of channels would lose enough of its error"
        return (
            f"note: {self.rung} changed nothing: {reason or 'the model has no channels that it could change'}"
        )

    def _change(self) -> str:
        """Return what decided, with its gain: the SQNR, or the metric where that tells a gain from a loss."""
        samples = f"{self.decided_by} held-out sample{'' if self.decided_by == 1 else 's'}"
        if self.metric is not None and self.metric.is_sure:
            return gain_in_words(self.metric, samples)
        change = f"output SQNR from {self.before:.1f} to {self.after:.1f} dB on {samples}"
        low, high = self.gain
        if self.kept and low <= 0.0:
            # A gain that may be chance is kept, as it is likelier than a loss, and told as what it is.
            change += f", a gain of {low:.1f} to {high:.1f} dB with 95 % confidence"
        return change if self.metric is None else f"{change}; {gain_in_words(self.metric)}"


MOST_SAMPLES = 64
"""Ranges of channels need fewer samples than ranges of tensors: they decide factors, not scales."""
SET_ASIDE = 2
"""Every second piece decides: nothing is fitted to the others but ranges."""
CLEAR_GAIN = 3.0
"""In dB: what nobody asked for by name is kept only if it gains so much; less may be chance."""
FEWEST_PIECES = 8
"""If there are as many samples."""
PIECE = 4
"""Samples that run together: every tensor that is looked at is in memory at once."""
MOST_TENSORS, MOST_WEIGHTS = 8, 6
"""Copies of a piece's tensors and of the weights that may be in memory at once, with compared outputs
and what the allocators keep; six of the tensors were measured on a model of large ones."""


def rescaled(
    subject: CalibrationSubject, resolved: Resolved, progress: ProgressCallback
) -> tuple[CalibrationSubject, tuple[Rescaling, ...]]:
    """Return what is calibrated with factors for its channels, and what was done.

    A rung that is asked for by default says nothing if it changed nothing, unless memory was too little.
    """
    recipe = resolved.recipe
    rungs, by_default = rewriting_rungs(recipe), default_rungs(recipe)
    bits, by_row = _weight_bits(recipe.weights), _is_by_row(recipe.activations)
    if not rungs:
        return subject, ()
    reason = _refusal(subject, bits)
    done = []
    looked_at: _LookedAt | None = None
    known: Seen | None = None
    for rung in rungs:
        kind = _is_equalized if rung == EQUALIZE else _is_smoothed
        if reason or not any(map(kind, scale_spaces(trace_scales(subject.model.model.graph)))):
            done.append(Rescaling(rung=rung, reason=reason))  # No sample is read for it.
            continue
        progress(Progress(rung, 0, None))
        looked_at = looked_at or _look_at_samples(subject, resolved)
        samples, watch, unfit, is_limited = looked_at
        if unfit:
            done.append(Rescaling(rung=rung, reason=unfit, is_limited=is_limited))
            continue
        found = rescale_model(
            subject.model.model,
            _with_few_bits(subject.plan, recipe.activations),
            samples,
            _trial_bits(bits or BYTE, resolved),
            kind,
            judged=_judged(subject, resolved),
            by_row=by_row,
            least_gain=_least_gain(samples, by_row=by_row) if rung in by_default else None,
            watch=watch,
            known=known,
            threads=resolved.machine.threads,
        )
        known = found.seen  # The next rung begins with the model that this one has left.
        done.append(_told(rung, found, samples, subject.model.inputs))
        if found.kept:
            subject = _with_model(subject, found, done[-1], resolved)
    return subject, tuple(
        item for item in done if item.kept or item.is_limited or item.rung not in by_default
    )


def _with_model(
    subject: CalibrationSubject, found: RescaledModel, told: Rescaling, resolved: Resolved
) -> CalibrationSubject:
    model = found.model
    earlier = json.loads(model.metadata_props.get(RESCALED, "[]"))
    model.metadata_props[RESCALED] = json.dumps([*earlier, told.values()])
    earlier = subject.model.stored
    stored = serialize(model)
    if (
        earlier.folder is not None
    ):  # Its constants are in memory and in the file that goes with the earlier one.
        stored = store_mapped(model, earlier.folder.parent, subject.model.file.path.name)
    check_stored(stored, model, subject.model.file.path.name)
    earlier.discard()
    changed = replace(subject.model, model=model, stored=stored)
    data = subject.data
    if data is not None:
        data = with_states(data, resolved.recipe.data, model, stored)
    return replace(subject, model=changed, data=data, plan=make_plan(model, resolved.target))


def _judged(subject: CalibrationSubject, resolved: Resolved) -> Plan | None:
    """Return the plan that says whether factors help, where ranges are found at each run; None otherwise."""
    settings, target = resolved.recipe.activations, resolved.target
    if settings.mode != DYNAMIC:
        return None
    graph = subject.model.model
    dynamic = dict.fromkeys((site.node for site in subject.plan.weights), granularity_of(settings))
    computing = dynamic_operators(target)
    nodes = (node for node in every_node(graph.graph) if node.op_type in computing)
    # A product of two activations stays in float where ranges are found at each run.
    excluded = {node.name or "": COMPUTED for node in nodes if node.name not in dynamic}
    excluded |= slow_layers(graph, target)
    return make_plan(graph, target, excluded=excluded, dynamic=dynamic, may_be_empty=True)


def _with_few_bits(plan: Plan, settings: ActivationSettings) -> Plan:
    """Return the plan with activations of as many bits as the recipe says of all, if these are few."""
    if not _are_few(settings):
        return plan
    family = activation_family(settings)
    return replace(
        plan, activations={name: as_asked(site, family) for name, site in plan.activations.items()}
    )


def _trial_bits(bits: int, resolved: Resolved) -> int:
    """Return how many bits weights have while factors are tried.

    Rounded to nearest, few bits of weights hide what few bits of activations lose; recovery brings them back.
    """
    are_recovered = ROUND in exporting_rungs(resolved.recipe.recovery)
    return max(bits, BYTE) if are_recovered and _are_few(resolved.recipe.activations) else bits


def _are_few(settings: ActivationSettings) -> bool:
    return settings.bits is not None and settings.bits < BYTE


def _is_by_row(settings: ActivationSettings) -> bool:
    return mode_of(settings) == DYNAMIC and granularity_of(settings) == ROW


def _refusal(subject: CalibrationSubject, bits: int | None) -> str:
    if bits is None:
        return "the quantizer of the weights has no evenly spaced integers"
    if is_large(subject.model.model):
        return "constants of the model lie outside its file"
    return ""


def _weight_bits(weights: WeightSettings) -> int | None:
    family = weight_family(weights)
    return family.bits if family.is_even else None


def _least_gain(samples: RecoverySamples, *, by_row: bool) -> float:
    """Return by how many dB a rung that nobody named must surely help."""
    # No range of a row is fitted to samples, so that any sure gain is one on others, too.
    return 0.0 if by_row and len(samples.decide) >= FEWEST_PIECES // SET_ASIDE else CLEAR_GAIN


def _is_equalized(space: ScaleSpace) -> bool:
    return not space.through


def _is_smoothed(space: ScaleSpace) -> bool:
    return bool(space.through)


def _told(
    rung: str, found: RescaledModel, samples: RecoverySamples, inputs: Sequence[TensorSpec]
) -> Rescaling:
    learned, decided = (
        sum(count_samples(piece, inputs) for piece in part) for part in (samples.fit, samples.decide)
    )
    return Rescaling(
        rung=rung,
        kept=found.kept,
        groups=len(found.chosen),
        possible=found.spaces,
        before=found.before,
        after=found.after,
        gain=found.gain,
        reason=f"the float model's own outputs would change by {found.difference:.1g} of their largest value"
        if not found.difference <= SAME
        else "",
        samples=learned + decided,
        decided_by=decided,
        difference=found.difference,
        metric=found.metric,
        strengths={item.space.makers[0]: item.strength for item in found.chosen},
    )


_LookedAt = tuple[RecoverySamples, Callable[[], LimitedMetric] | None, str, bool]


def _look_at_samples(subject: CalibrationSubject, resolved: Resolved) -> _LookedAt:
    """Return samples, their metric, why they do not allow factors, if so, and whether memory is why."""
    fit, decide = _samples(subject, allow_nonfinite=resolved.recipe.calibration.allow_nonfinite)
    samples = RecoverySamples(fit=[piece.inputs for piece in fit], decide=[piece.inputs for piece in decide])
    if not fit or not decide:
        return samples, None, "it needs at least 2 samples, or batches where their size is fixed", False
    reason = _too_much_memory(subject, samples, resolved.machine.memory)
    # Steps of a recording depend on each other, and an interval of so many samples would be too narrow.
    is_apart = not isinstance(subject.data, Recordings)
    watch = limited_metric(resolved.recipe, subject.model.model, decide) if is_apart else None
    return samples, watch, reason, bool(reason)


def _samples(subject: CalibrationSubject, *, allow_nonfinite: bool) -> tuple[list[Batch], list[Batch]]:
    """Return the first samples in pieces to learn from, and to decide by: every second, or the last."""
    fixed = fixed_batch_size(subject.model.inputs)
    batches = list(_batches(subject, fixed or MOST_SAMPLES, allow_nonfinite=allow_nonfinite))
    size = fixed or max(1, min(PIECE, sum(batch.size for batch in batches) // FEWEST_PIECES))
    pieces = [
        cut(batch, start, min(start + size, batch.size))
        for batch in batches
        for start in range(0, batch.size, size)
    ]
    aside = {number for number in range(len(pieces)) if number % SET_ASIDE == SET_ASIDE - 1}
    aside = aside or {len(pieces) - 1}
    learned = [piece for number, piece in enumerate(pieces) if number not in aside]
    return learned, [piece for number, piece in enumerate(pieces) if number in aside]


def _too_much_memory(subject: CalibrationSubject, samples: RecoverySamples, limit: int | None) -> str:
    """Return why the rungs do not fit below a limit of memory, or nothing if they do."""
    if limit is None:
        return ""
    model = subject.model
    fed = {spec.name for spec in model.inputs}
    taps = [name for name in subject.plan.measured if name not in fed]
    count, piece = max(
        ((count_samples(piece, model.inputs), piece) for piece in (*samples.fit, *samples.decide)),
        key=lambda counted: counted[0],
    )
    sizes, grown = tapped_sizes(model.model, taps, {name: array[:1] for name, array in piece.items()})
    tensors = count * (MOST_TENSORS * sum(sizes.values()) + grown)
    find_range(np.zeros(1, np.int32))  # With it comes numba, a hundred MB that stay.
    needed = most_resident_bytes() + tensors + MOST_WEIGHTS * model.stored.size
    if needed <= limit:
        return ""
    allowed = f"'runtime.max_memory' allows {format_bytes(limit)}"
    return f"it takes up to about {format_bytes(needed)} of memory, and {allowed}"


def _batches(subject: CalibrationSubject, size: int, *, allow_nonfinite: bool) -> Iterator[Batch]:
    """Yield the first batches, copied, since a source may reuse arrays."""
    seen = 0
    batches = bind_inputs(subject.dataset, subject.model.inputs).batches(size)
    with closing(batches if allow_nonfinite else checked(batches)) as given:
        for batch in given:
            labels = None if batch.labels is None else batch.labels.copy()
            inputs = {name: array.copy() for name, array in batch.inputs.items()}
            yield replace(batch, inputs=inputs, labels=labels)
            seen += batch.size
            if seen >= MOST_SAMPLES:
                return
