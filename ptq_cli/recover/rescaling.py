"""A float model's channels get factors before it is calibrated, where the recipe asks for it."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs, count_samples, fixed_batch_size
from ptq_cli.calibdata.dataset.batches import Batch, checked, cut
from ptq_cli.calibdata.recordings import Recordings
from ptq_cli.calibration.subject import CalibrationSubject
from ptq_cli.collectors.host_kernels import find_range
from ptq_cli.core.formats import BYTE
from ptq_cli.core.memory import most_resident_bytes
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.words import format_bytes
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.files.storing import check_stored, is_large, store_mapped
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.rescaling.scale_rules import trace_scales
from ptq_cli.models.rescaling.scale_spaces import ScaleSpace, scale_spaces
from ptq_cli.placement.planning import as_asked
from ptq_cli.plan.planner import LayerChoices, make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.weighted_operators import TWO_ACTIVATIONS, dynamic_operators, slow_layers
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recipe.check import activation_family, weight_family
from ptq_cli.recipe.declaration import DYNAMIC, EQUALIZE, ROUND, ROW, SMOOTH
from ptq_cli.recipe.recovery_rungs import (
    default_rungs,
    exporting_rungs,
    granularity_of,
    mode_of,
    rewriting_rungs,
)
from ptq_cli.recipe.sections import ActivationSettings, WeightSettings
from ptq_cli.recover.output_noise import LimitedMetric, limited_metric
from ptq_cli.recover.recovery_context import RecoverySamples
from ptq_cli.recover.recovery_effects import Rescaling
from ptq_cli.recover.rescale_model import QuantizedForm, RescalingSamples, rescale_model
from ptq_cli.runtime.tapping.memory_plan import tapped_sizes
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.served_inputs import with_states

_MOST_SAMPLES = 64  # ranges of channels need fewer than ranges of tensors: they decide factors, not scales
_SET_ASIDE = 2  # every second piece decides: nothing is fitted to the others but ranges
CLEAR_GAIN = 3.0  # dB that what nobody asked for by name has to gain; less may be chance
FEWEST_PIECES = 8  # if there are as many samples
_PIECE = 4  # samples that run together: every tensor that is looked at is in memory at once
# Copies of a piece's tensors and of the weights that may be in memory at once, with compared outputs
# and what the allocators keep; six of the tensors were measured on a model of large ones.
_MOST_TENSORS, MOST_WEIGHTS = 8, 6
_SPACES: dict[str, Callable[[ScaleSpace], bool]] = {  # Which spaces a rung gives factors.
    EQUALIZE: lambda space: not space.through,
    SMOOTH: lambda space: bool(space.through),
}


def rescaled(
    subject: CalibrationSubject, resolved: Resolved, progress: ProgressCallback
) -> tuple[CalibrationSubject, tuple[Rescaling, ...]]:
    """Return the subject of a calibration with factors for its channels, and the effects of the rungs.

    A rung that is asked for by default says nothing if it changed nothing, unless memory was too little.
    """
    recipe = resolved.recipe
    rungs, by_default = rewriting_rungs(recipe), default_rungs(recipe)
    bits = _weight_bits(recipe.weights)
    by_row = mode_of(recipe.activations) == DYNAMIC and granularity_of(recipe.activations) == ROW
    if not rungs:
        return subject, ()
    reason = _refusal(subject, bits)
    done = []
    looked_at: _LookedAt | None = None
    known: RescalingSamples | None = None
    for rung in rungs:
        kind = _SPACES[rung]
        if reason or not any(map(kind, scale_spaces(trace_scales(subject.model.model.graph)))):
            done.append(Rescaling(rung=rung, reason=reason))  # No sample is read for it.
            continue
        progress(Progress(rung, 0, None))
        looked_at = looked_at or _look_at_samples(subject, resolved)
        samples, watch, unfit, is_limited = looked_at
        if unfit:
            done.append(Rescaling(rung=rung, reason=unfit, is_limited=is_limited))
            continue
        form = QuantizedForm(
            plan=_with_few_bits(subject.plan, recipe.activations),
            samples=samples,
            bits=_trial_bits(bits or BYTE, resolved),
            judged=_judged(subject, resolved),
            by_row=by_row,
            watch=watch,
            threads=resolved.machine.threads,
        )
        least_gain = _least_gain(samples, by_row=by_row) if rung in by_default else None
        found = rescale_model(subject.model.model, form, rung, kind, least_gain=least_gain, known=known)
        known = found.seen  # The next rung begins with the model that this one has left.
        count = [
            sum(count_samples(piece, subject.model.inputs) for piece in part)
            for part in (samples.fit, samples.decide)
        ]
        done.append(replace(found.told, samples=sum(count), decided_by=count[1]))
        if done[-1].kept:
            subject = _with_model(subject, found.model, done[-1], resolved)
    return subject, tuple(
        item for item in done if item.kept or item.is_limited or item.rung not in by_default
    )


def _with_model(
    subject: CalibrationSubject, model: ir.Model, told: Rescaling, resolved: Resolved
) -> CalibrationSubject:
    done = json.loads(model.metadata_props.get(MetadataKey.RESCALED, "[]"))
    model.metadata_props[MetadataKey.RESCALED] = json.dumps([*done, told.values()])
    earlier, stored = subject.model.stored, serialize(model)
    if earlier.folder is not None:  # Its constants are in memory, and in the file that goes with that model.
        stored = store_mapped(model, earlier.folder.parent, subject.model.file.path.name)
    check_stored(stored, model, subject.model.file.path.name)
    earlier.discard()
    changed, data = replace(subject.model, model=model, stored=stored), subject.data
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
    excluded = {node.name or "": TWO_ACTIVATIONS for node in nodes if node.name not in dynamic}
    excluded |= slow_layers(graph, target)
    choices = LayerChoices(excluded=excluded, dynamic=dynamic)
    return make_plan(graph, target, choices, may_be_empty=True)


def _with_few_bits(plan: Plan, settings: ActivationSettings) -> Plan:
    """Return the plan with activations of as many bits as the recipe says of all, if these are few."""
    if not _are_few(settings):
        return plan
    family = activation_family(settings)
    return replace(
        plan, activations={name: as_asked(site, family) for name, site in plan.activations.items()}
    )


def _trial_bits(bits: int, resolved: Resolved) -> int:
    """Bits of weights while factors are tried."""
    # Rounded to nearest, few bits of weights hide what few bits of activations lose; recovery brings them
    # back.
    are_recovered = ROUND in exporting_rungs(resolved.recipe.recovery)
    return max(bits, BYTE) if are_recovered and _are_few(resolved.recipe.activations) else bits


def _are_few(settings: ActivationSettings) -> bool:
    return settings.bits is not None and settings.bits < BYTE


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
    return 0.0 if by_row and len(samples.decide) >= FEWEST_PIECES // _SET_ASIDE else CLEAR_GAIN


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
    batches = list(_batches(subject, fixed or _MOST_SAMPLES, allow_nonfinite=allow_nonfinite))
    size = fixed or max(1, min(_PIECE, sum(batch.size for batch in batches) // FEWEST_PIECES))
    pieces = [
        cut(batch, start, min(start + size, batch.size))
        for batch in batches
        for start in range(0, batch.size, size)
    ]
    aside = {number for number in range(len(pieces)) if number % _SET_ASIDE == _SET_ASIDE - 1}
    aside = aside or {len(pieces) - 1}
    learned = [piece for number, piece in enumerate(pieces) if number not in aside]
    return learned, [piece for number, piece in enumerate(pieces) if number in aside]


def _too_much_memory(subject: CalibrationSubject, samples: RecoverySamples, limit: int | None) -> str:
    """Reason why the rungs do not fit below a limit of memory, or nothing if they do."""
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
    tensors = count * (_MOST_TENSORS * sum(sizes.values()) + grown)
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
            if seen >= _MOST_SAMPLES:
                return
