"""How fast quantized models are where they are served, and their operators that are slower than float."""

import os
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ptq_cli.core.errors import PtqError, UntrustedCodeError
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.document.gate_result import (
    SWITCHED_OFF,
    Latency,
    LatencyCause,
    OwnFileLatency,
    Times,
    current_time,
)
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.evaluation.interval import Interval
from ptq_cli.evaluation.latency import LatencyTurns, take_latency_turns
from ptq_cli.latency.operator_times import node_times
from ptq_cli.models.files.stored import StoredModel, holds_same_graph, read_model, serialize
from ptq_cli.models.files.storing import release
from ptq_cli.models.fixed_inputs import fix_inputs
from ptq_cli.models.graph_reading import input_at
from ptq_cli.models.loading.onnx_source import input_specs, load_onnx
from ptq_cli.models.loading.source import ModelKind, detect_kind
from ptq_cli.models.pair_operators import QUANTIZE, is_pair_node
from ptq_cli.plan.planner import ACTIVATIONS_IN_FLOAT
from ptq_cli.plan.target.rules import QNN, Target
from ptq_cli.recipe.sections import ModelSettings
from ptq_cli.report.text.result_warnings import BY_LATENCY
from ptq_cli.report.text.speed import slower_warning
from ptq_cli.runtime.engine import Engine
from ptq_cli.runtime.engine_registry import measuring_engine
from ptq_cli.runtime.machine import processor_words
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.run_directory import DEFAULT_RUN, RunDirectory
from ptq_cli.setup.served_inputs import inputs_of_recipe, served_batch

LEAST_LOSS = 0.05  # of the float model's time; less is within the error of a short measurement
MOST_CAUSES = 3
INPUT_CONVERSION, OUTPUT_CONVERSION = (
    "the conversion of the inputs to integers",
    "the conversion of the outputs to floats",
)


@dataclass(frozen=True)
class SlowerOperators:
    """Operators of one kind that take longer in the quantized model."""

    what: str
    floating: float
    quantized: float


def slower_operators(
    float_model: ir.Model,
    quantized_model: ir.Model,
    integer: Collection[str],
    floating: Mapping[str, float],
    quantized: Mapping[str, float],
) -> tuple[SlowerOperators, ...]:
    """Where a quantized model loses time, the largest loss first, at most three.

    ``integer`` names the layers that are to be computed in integers.

    Edge case: A conversion belongs to the operator that is computed in float beside it, because it would not
        be there without it. Operators that lose less than 5 % of the float model's time are not returned.
    """
    nodes = {node.name or "": node for node in float_model.graph}
    computed = _computed_in_float(quantized_model, integer, quantized)
    taken, converted = defaultdict[str, float](float), set[str]()
    for node in quantized_model.graph:
        time, owner = quantized.get(node.name or "", 0.0), _owner(node, nodes, computed)
        taken[owner] += time
        if is_pair_node(node) and owner in computed and time > 0:
            converted.add(owner)
    groups: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys([*nodes, *taken]):
        what = _described(name, nodes, integer, converted)
        before, after = groups.get(what, (0.0, 0.0))
        groups[what] = (before + floating.get(name, 0.0), after + taken.get(name, 0.0))
    least = LEAST_LOSS * sum(floating.values())
    found = [SlowerOperators(what, *times) for what, times in groups.items() if times[1] - times[0] > least]
    return tuple(sorted(found, key=lambda item: item.floating - item.quantized)[:MOST_CAUSES])


def _computed_in_float(
    quantized_model: ir.Model, integer: Collection[str], quantized: Mapping[str, float]
) -> set[str]:
    """The operators that have no integers, and those whose result takes time to be quantized again."""
    found = set[str]()
    for node in quantized_model.graph:
        if is_pair_node(node):
            if node.op_type == QUANTIZE and quantized.get(node.name or "", 0.0) > 0:
                found.update(_computed_before(node))
        elif (node.name or "") not in integer:
            found.add(node.name or "")
    return found


def _owner(node: ir.Node, nodes: Mapping[str, ir.Node], computed: Collection[str]) -> str:
    """The node of the float model that one of the quantized model belongs to, or what it does."""
    if not is_pair_node(node):
        name = node.name or ""
        whole = name if name in nodes else name.rpartition("/")[0]
        return whole if whole in nodes else node.op_type
    if node.op_type == QUANTIZE:
        return next((name for name in _computed_before(node) if name in nodes), INPUT_CONVERSION)
    after = [name for name in _computed_after(node) if name in nodes]
    return next((name for name in after if name in computed), after[0] if after else OUTPUT_CONVERSION)


def _computed_before(node: ir.Node) -> Iterator[str]:
    """Yield the operator whose result reaches a conversion through other conversions."""
    value = input_at(node, 0)
    producer = value.producer() if value is not None else None
    if producer is not None and is_pair_node(producer):
        yield from _computed_before(producer)
    elif producer is not None:
        yield producer.name or ""


def _computed_after(node: ir.Node) -> Iterator[str]:
    """Yield the operators that read the result of a conversion through other conversions."""
    for reader, _ in node.outputs[0].uses():
        if is_pair_node(reader):
            yield from _computed_after(reader)
        else:
            yield reader.name or ""


def _described(
    name: str, nodes: Mapping[str, ir.Node], integer: Collection[str], converted: Collection[str]
) -> str:
    if name not in nodes:
        return name
    label = _label(nodes[name])
    if name in converted:
        return f"{label} between integer layers"
    return f"{label} in {'integers' if name in integer else 'float'}"


def _label(node: ir.Node) -> str:
    weight, group = input_at(node, 1), node.attributes.get_int("group", 1)
    if node.op_type != "Conv" or group == 1 or weight is None or weight.shape is None:
        return node.op_type
    return "depthwise Conv" if weight.shape[1] == 1 else "grouped Conv"


PROFILED_SECONDS = 1.0  # for which each of the two models is profiled, if the quantized one is slower
SAME_MODEL = "no layer is quantized, so it is the same model as the float one"
# Where nothing else could be exported.
LAST_HINT = "ptq bench measures for longer; if the model stays slower, serve the float model"
HINT_OF_WEIGHTS = (
    "integer weights alone speed up single tokens, not long inputs: measure a token with ptq bench "
    "--set model.input_shape.NAME=1,1"
)


@dataclass(frozen=True)
class QuantizedFile:
    """A quantized model, and where its layers run."""

    model: StoredModel
    target: Target
    layers: Sequence[LayerEntry]


@dataclass(frozen=True)
class _OwnFile:
    """The file that the user named, if it is an ONNX file that can be timed; otherwise why it cannot."""

    name: str = ""
    model: Path | StoredModel | None = None
    fault: str = ""


def require_served_batch(resolved: Resolved, graph: ir.Model) -> None:
    """Refuse a batch that the model does not take before any work begins."""
    if resolved.recipe.evaluation.latency:
        served_batch(input_specs(graph), resolved.recipe.export.serve_batch)


def served_latency(
    resolved: Resolved,
    float_model: StoredModel,
    quantized: Sequence[QuantizedFile],
    run: RunDirectory,
    progress: ProgressCallback,
) -> tuple[Times, ...]:
    """How fast each quantized model is, with the causes and a warning where it is slower.

    What cannot be measured is an error only if a limit depends on it: the result says why. Without a limit,
    nothing is measured of a model for a target that names no runtime, and of one above 2 GB.
    """
    limited = resolved.recipe.gate.max_latency_ratio is not None
    reasons = [_unmeasured(resolved, float_model, item, limited=limited) for item in quantized]
    timed = [item for item, reason in zip(quantized, reasons, strict=True) if not reason]
    found: dict[int, Latency] = {}
    try:
        for engine in dict.fromkeys(measuring_engine(item.target) for item in timed):
            own = [item for item in timed if measuring_engine(item.target) is engine]
            latencies = _measured(resolved, engine, float_model, own, run, progress, limited=limited)
            found |= dict(zip(map(id, own), latencies, strict=True))
    except PtqError as error:
        if limited or isinstance(error, UntrustedCodeError):
            raise
        reasons = [reason or error.message for reason in reasons]
    times, processor = current_time(), processor_words()
    return tuple(
        Times(times, None if reason else found[id(item)], reason, processor)
        for item, reason in zip(quantized, reasons, strict=True)
    )


def _unmeasured(resolved: Resolved, float_model: StoredModel, item: QuantizedFile, *, limited: bool) -> str:
    """Why nothing is measured of a model; an empty text if it is."""
    if limited:
        return ""
    if not resolved.recipe.evaluation.latency:
        return SWITCHED_OFF
    if item.target.runtime == QNN:
        return "the HTP simulator does not run at the speed of a device"
    if not item.target.runtime:
        return f"no installed runtime runs models for target {item.target.name}"
    if holds_same_graph(float_model, item.model):
        return SAME_MODEL
    return "the model is above 2 GB; ptq bench measures it" if float_model.is_apart else ""


def _measured(
    resolved: Resolved,
    engine: Engine,
    float_model: StoredModel,
    quantized: Sequence[QuantizedFile],
    run: RunDirectory,
    progress: ProgressCallback,
    *,
    limited: bool,
) -> list[Latency]:
    progress(Progress("measuring the latency", 0, None))
    recipe, threads = resolved.recipe, resolved.machine.threads
    graph = float_model.load()
    specs = input_specs(graph)
    batch = served_batch(specs, recipe.export.serve_batch)
    inputs = inputs_of_recipe(resolved, graph, specs, batch).batches
    release(graph)
    own = _own_file(recipe.model, float_model, inputs[0], threads, engine)
    models = [float_model, *(item.model for item in quantized), *([own.model] if own.model else [])]
    turns = take_latency_turns(models, inputs, threads=threads, limited=limited, engine=engine)
    hint = _hint(resolved, run, batch, threads) if engine.has_profiler else LAST_HINT
    found = []
    for index, item in enumerate(quantized, 1):
        is_same = holds_same_graph(float_model, item.model)
        latency = _latency(turns, index, own, batch, threads, is_same=is_same)
        if latency.verdict == "slower" and engine.has_profiler:
            progress(Progress("measuring what is slower", 0, None))
            latency = replace(latency, causes=_causes(float_model, item, latency, inputs))
        warning = slower_warning(latency, _hint_of(item.layers, resolved, hint))
        found.append(replace(latency, warnings=(warning,) if warning is not None else ()))
    return found


def _own_file(
    settings: ModelSettings,
    float_model: StoredModel,
    inputs: Mapping[str, Array],
    threads: int,
    engine: Engine,
) -> _OwnFile:
    """The user's own file, with the inputs fixed that the recipe fixes; nothing if it is not ONNX."""
    path = Path(settings.path or "")
    if not path.is_file():  # An evaluation needs the prepared model alone.
        return _OwnFile()
    try:
        if detect_kind(path) is not ModelKind.ONNX or holds_same_graph(read_model(path), float_model):
            return _OwnFile()
        model: Path | StoredModel = path
        if settings.inputs:
            graph = load_onnx(path)
            model = serialize(graph) if fix_inputs(graph, settings.inputs, path.name) else path
        engine.open(model, threads=threads).run(inputs)
    except PtqError as error:
        return _OwnFile(path.name, fault=error.message)
    return _OwnFile(path.name, model)


def _latency(
    turns: LatencyTurns, model: int, own: _OwnFile, batch: int, threads: int, *, is_same: bool
) -> Latency:
    beside_float = turns.ratio(model, 0)
    value, interval = beside_float.value, beside_float.interval
    if is_same:  # Two sessions of one model differ, and no limit should fail for it.
        value, interval = 1.0, Interval(1.0, 1.0, "student")
    beside_own = None
    if own.model is not None:
        ratio = turns.ratio(model, -1)
        beside_own = OwnFileLatency(own.name, turns.median_ms(-1), ratio.value, ratio.interval)
    return Latency(
        float_ms=turns.median_ms(0),
        quantized_ms=turns.median_ms(model),
        batch_size=batch,
        threads=threads,
        rounds=turns.turns,
        ratio=value,
        ratio_interval=interval,
        own=beside_own,
        own_fault=own.fault,
    )


def _causes(
    float_model: StoredModel,
    quantized: QuantizedFile,
    latency: Latency,
    inputs: Sequence[Mapping[str, Array]],
) -> tuple[LatencyCause, ...]:
    """Where the quantized model loses time, by a profile of both."""
    graphs = float_model.load(), quantized.model.load()
    times = []
    for graph, whole in zip(graphs, (latency.float_ms, latency.quantized_ms), strict=True):
        nodes = node_times(graph, inputs, threads=latency.threads, seconds=PROFILED_SECONDS)
        # A profiled run takes longer, and the parts should add up to what was measured.
        scale = whole / max(sum(node.microseconds for node in nodes), 1e-9)
        times.append({node.name: node.microseconds * scale for node in nodes})
    integer = frozenset(layer.name for layer in quantized.layers if layer.integer)
    found = slower_operators(*graphs, integer, *times)
    return tuple(
        LatencyCause(item.what, item.floating, item.quantized, item.quantized / latency.quantized_ms)
        for item in found
    )


def _hint(resolved: Resolved, run: RunDirectory, batch: int, threads: int) -> str:
    words = ["ptq", "export", "--prefer", "latency", "--set", f"runtime.threads={threads}"]
    if resolved.recipe.export.serve_batch != 1:
        words += ["--set", f"export.serve_batch={batch}"]
    if run.path != DEFAULT_RUN:
        words += ["--run", os.path.relpath(run.path)]
    return f"{shlex.join(words)} keeps layers in float where that is faster"


def _hint_of(layers: Sequence[LayerEntry], resolved: Resolved, otherwise: str) -> str:
    """Hint for a slow model with these layers."""
    if any(layer.reason.startswith(BY_LATENCY) for layer in layers):
        if resolved.recipe.export.profile is not None:
            return "ptq export --prefer latency measures this machine if 'export.profile' is not set"
        return LAST_HINT
    in_float = any(layer.reason.startswith(ACTIVATIONS_IN_FLOAT) for layer in layers)
    if in_float and not any(layer.integer for layer in layers):
        return HINT_OF_WEIGHTS
    return otherwise
