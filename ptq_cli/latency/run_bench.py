"""``bench``: how long models take, one beside the other; that they belong together, and what they take."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import onnx_ir as ir

from ptq_cli.core.documents import FileFormat
from ptq_cli.core.errors import (
    ModelFormatError,
    ModelInputError,
    ProfilerError,
    RecipeValueError,
    RuntimeFailedError,
)
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array, TensorSpec, format_shape
from ptq_cli.core.words import require_known
from ptq_cli.evaluation.document.report_document import Saturation
from ptq_cli.evaluation.latency import LatencyComparison, Scenario, measure_latencies
from ptq_cli.evaluation.verification import saturation_here
from ptq_cli.latency.latency_doubts import latency_doubts
from ptq_cli.latency.operator_times import NodeTime, OperatorSummary, by_operator, node_times, scaled_to
from ptq_cli.models.batch_axes import note_told_axes
from ptq_cli.models.files.stored import StoredModel, holds_same_graph, read_model, serialize
from ptq_cli.models.fixed_inputs import fix_inputs, fixed_earlier, unknown_input
from ptq_cli.models.loading.onnx_source import input_specs, load_onnx
from ptq_cli.models.loading.source import ModelKind, detect_kind
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.target.target_file import known_targets, load_target
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.recipe_layers import file_layer
from ptq_cli.runtime.engine import Engine
from ptq_cli.runtime.engine_registry import ENGINES, ONNX_RUNTIME, at_level, measuring_engine
from ptq_cli.runtime.machine import thread_counts
from ptq_cli.runtime.session import EXACT, ROUNDED, reads_blocks
from ptq_cli.runtime.timing import Duration
from ptq_cli.setup.remembered_data import with_run_data
from ptq_cli.setup.resolve import Request, Resolved, resolve
from ptq_cli.setup.run_directory import RunDirectory
from ptq_cli.setup.served_inputs import (
    MADE_UP,
    ServedInputs,
    batches_of,
    inputs_of_recipe,
    made_up_batches,
    own_batch_size,
)


@dataclass(frozen=True, kw_only=True)
class BenchedModels:
    """Models with the same inputs.

    Attributes:
        graphs: what is in them, with inputs fixed.
        timed: what runs: the files, or graphs that were changed.
        specs: the inputs that all take; a size that one of them fixes is fixed.
    """

    paths: tuple[Path, ...]
    graphs: tuple[ir.Model, ...]
    timed: tuple[Path | StoredModel, ...]
    specs: tuple[TensorSpec, ...]
    notes: tuple[str, ...] = ()

    def shaped(self) -> ir.Model:
        """The first graph with the sizes that any of the models fixes, to make up inputs for."""
        graph, shapes = self.graphs[0].clone(), {spec.name: spec.shape for spec in self.specs}
        for value in graph.graph.inputs:
            if value.name in shapes and value.shape is not None:
                sizes = zip(value.shape, shapes[value.name], strict=True)
                value.shape = ir.Shape([size if fixed is None else fixed for size, fixed in sizes])
        return graph

    def targets(self, target: Target) -> tuple[Target, ...]:
        """The target that each file is for; ``target`` if it does not say one of ptq's own."""
        noted = [graph.metadata_props.get(MetadataKey.TARGET, "") for graph in self.graphs]
        others = {name: load_target(name) for name in {*noted} - {target.name} if name in known_targets()}
        return tuple(others.get(name, target) for name in noted)

    def engines(self, names: Sequence[str], target: Target) -> tuple[Engine, ...]:
        """The runtimes of these names; without any, those of the targets that the files are for."""
        for name in names:
            require_known("runtime", name, tuple(ENGINES))
        found = [ENGINES[name] for name in names] or [
            measuring_engine(target if noted == target.name else load_target(noted))
            for graph in self.graphs
            if (noted := graph.metadata_props.get(MetadataKey.TARGET, "")) in (*known_targets(), target.name)
        ]
        for engine in found:
            engine.require()
        return tuple(dict.fromkeys(found)) or (ONNX_RUNTIME,)


def open_models(
    paths: Sequence[Path], values: Mapping[str, Any], batch_axis: Mapping[str, int | str]
) -> BenchedModels:
    """The models of files."""
    graphs = [_load(path) for path in paths]
    timed = _with_fixed(graphs, paths, values)
    notes = [
        note
        for graph, path in zip(graphs, paths, strict=True)
        for note in note_told_axes(graph, batch_axis, path.name)
    ]
    specs = _common_inputs(paths, [input_specs(graph) for graph in graphs])
    return BenchedModels(
        paths=tuple(paths),
        graphs=tuple(graphs),
        timed=tuple(timed),
        specs=specs,
        notes=tuple(dict.fromkeys(notes)),
    )


def shown_names(paths: Sequence[Path]) -> list[str]:
    """The names of files, with their folders if two have the same name.

    Example:
        >>> shown_names([Path("a/x.onnx"), Path("a/y.onnx")])
        ['x.onnx', 'y.onnx']
        >>> shown_names([Path("x.onnx"), Path("old/x.onnx")])
        ['x.onnx', 'old/x.onnx']
    """
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _load(path: Path) -> ir.Model:
    kind = detect_kind(path)
    if kind is not ModelKind.ONNX:
        raise ModelFormatError(
            f"model '{path.name}' is a {kind.value}, expected ONNX",
            hint="ptq export --float converts every kind of model to ONNX",
        )
    return load_onnx(path)


def _with_fixed(
    graphs: Sequence[ir.Model], paths: Sequence[Path], values: Mapping[str, Any]
) -> list[Path | StoredModel]:
    """Fix inputs of the graphs that have them, and return what is timed: files, or changed graphs."""
    timed: list[Path | StoredModel] = []
    inputs = [[value.name or "" for value in graph.graph.inputs] for graph in graphs]
    for name in values:
        if not any(
            name in names or name in fixed_earlier(graph) for names, graph in zip(inputs, graphs, strict=True)
        ):
            raise unknown_input(name, inputs[0], paths[0].name)
    for graph, path, names in zip(graphs, paths, inputs, strict=True):
        known = {*names, *fixed_earlier(graph)}
        own = fix_inputs(graph, {name: value for name, value in values.items() if name in known}, path.name)
        timed.append(serialize(graph) if own else path)
    return timed


def _common_inputs(paths: Sequence[Path], specs: Sequence[tuple[TensorSpec, ...]]) -> tuple[TensorSpec, ...]:
    """The inputs that all models take: a size that one of them fixes is fixed."""
    common = {spec.name: spec for spec in specs[0]}
    for path, others in zip(paths[1:], specs[1:], strict=True):
        for name in sorted({*common, *(spec.name for spec in others)}):
            one, other = common.get(name), next((spec for spec in others if spec.name == name), None)
            if one is None or other is None or one.dtype != other.dtype or not _alike(one.shape, other.shape):
                mine, theirs = shown_names([paths[0], path])
                raise ModelInputError(
                    f"'{mine}' has {_described(one, name)}, '{theirs}' has {_described(other, name)}",
                    hint="compare models with the same inputs, such as a model and its own quantized model",
                )
            sizes = zip(one.shape, other.shape, strict=True)
            common[name] = replace(one, shape=tuple(two if first is None else first for first, two in sizes))
    return tuple(common.values())


def _alike(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    return len(one) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True)
    )


def _described(spec: TensorSpec | None, name: str) -> str:
    return (
        f"no input '{name}'" if spec is None else f"input {spec.name}: {spec.dtype}{format_shape(spec.shape)}"
    )


PROFILED = 0.2  # the share of the time of a scenario that the profile of each model takes in addition
LONGEST_PROFILE = 3.0  # seconds
MICROSECONDS = 1e6


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What ``bench`` is asked for besides a recipe's settings.

    Attributes:
        batches: samples a run, each of these; none for one, or as many as the models fix.
        threads: of one operator, each of these; 0 for one per core. None for those of the recipe.
        seconds: how long to measure each batch size with each number of threads, about.
        runs: how many runs of each model to count, instead of ``seconds``.
        runtimes: names of runtimes; none for that of the targets that the models were quantized for.
        accuracy_levels: of ONNX Runtime's kernel for weights in blocks, each of these; none for its default
            and 0 if a model has such weights.
    """

    batches: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    seconds: float = 10.0
    runs: int | None = None
    profile: bool = False
    runtimes: tuple[str, ...] = ()
    accuracy_levels: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BenchScenario:
    """All models with one batch size and number of threads."""

    DERIVED: ClassVar[tuple[str, ...]] = ("notes", "operators")

    latency: Annotated[LatencyComparison, "Percentiles and ratios, in the order of the models."]
    inputs: Annotated[tuple[TensorSpec, ...], "What a run was given: name, dtype and shape."]
    profiles: Annotated[
        tuple[tuple[NodeTime, ...], ...],
        "What each node of each model takes, in the order of the graph; empty without --profile.",
    ] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the numbers may say little; (1) is the first model."""
        return tuple(
            latency_doubts(self.latency, [f"({index})" for index, _ in enumerate(self.latency.models, 1)])
        )

    @property
    def operators(self) -> tuple[tuple[OperatorSummary, ...], ...]:
        """What each type of operator of each model takes, the slowest first; empty without --profile."""
        return tuple(map(by_operator, self.profiles))


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """How long models take."""

    FORMAT: ClassVar[FileFormat] = FileFormat(name="ptq.bench", version=1, noun="bench")

    models: Annotated[tuple[Path, ...], "The files."]
    same_as_first: Annotated[
        tuple[bool, ...],
        "Whether each model is the first one, as of a file in which nothing was quantized: they have no "
        "ratio.",
    ]
    scenarios: Annotated[
        tuple[BenchScenario, ...], "Each batch size with each number of threads and runtime."
    ]
    data: Annotated[str, "Whose samples, or that they were made up."]
    data_faults: Annotated[
        tuple[str, ...], "Why data of the recipe were not used; empty if the first were."
    ] = ()
    saturation: Annotated[
        tuple[Saturation, ...], "Which layers of each model can saturate on this processor."
    ] = ()

    @property
    def latency(self) -> LatencyComparison:
        """The latencies of the first scenario."""
        return self.scenarios[0].latency

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the first scenario."""
        return self.scenarios[0].inputs


def run_bench(
    request: Request,
    run: RunDirectory,
    models: Sequence[Path] = (),
    options: BenchOptions = BenchOptions(),
    progress: ProgressCallback = silent,
) -> BenchResult:
    """Let models take turns at the same inputs, and return how long they take; nothing is written.

    Without data and shapes, the data of the recipe are used, which is that of the run for models in a run
    directory; inputs are made up if there are none. Ratios are to the first model.
    """
    Duration(options.seconds, options.runs)  # refuses one that makes no sense
    paths = tuple(models) or (run.require_stage(run.float_model, "ptq calibrate"), run.require_model())
    beside = next((file for path in paths if (file := RunDirectory(path.parent).recipe).is_file()), None)
    resolved = resolve(request, otherwise=file_layer(beside) if beside is not None else None)
    resolved = with_run_data(resolved, beside)
    threads = _threads(options.threads, resolved)
    for path in paths:
        progress(Progress(f"reading {path.name}", 0, None))
    opened = open_models(paths, resolved.recipe.model.inputs, resolved.recipe.data.batch_axis)
    for note in opened.notes:
        progress(Progress("bench", 0, None, note))
    shapes = resolved.recipe.model.input_shape if "input_shape" in request.settings else {}
    engines = _at_levels(opened, opened.engines(options.runtimes, resolved.target), options)
    if options.profile:
        _require_profilers(engines)
    batches, graph = _batches(options.batches, opened.specs, shapes), opened.shaped()
    served = {batch: _inputs(request, resolved, graph, opened.specs, batch) for batch in batches}
    scenarios = [
        Scenario(found.batches, count, batch, engine)
        for engine, (batch, found), count in product(engines, served.items(), threads)
    ]
    try:
        measured = tuple(_measured(opened, scenarios, options, progress))
    except RuntimeFailedError as error:
        first = next(iter(served.values()))
        if first.data != MADE_UP:
            raise
        made_up = ", ".join(map(str, _inputs_of(first.batches)))
        hint = f"the inputs were made up: {made_up}; pass --data, or other sizes with --set model.input_shape"
        raise RuntimeFailedError(error.message, hint=hint) from error
    return BenchResult(
        models=paths,
        same_as_first=_same_as_first(opened),
        scenarios=measured,
        data=next(iter(served.values())).data,
        data_faults=tuple(dict.fromkeys(fault for found in served.values() for fault in found.faults)),
        saturation=tuple(map(saturation_here, opened.graphs, opened.targets(resolved.target))),
    )


def _measured(
    opened: BenchedModels, scenarios: Sequence[Scenario], options: BenchOptions, progress: ProgressCallback
) -> Iterator[BenchScenario]:
    stage, count = "measuring", len(scenarios)
    if count > 1:
        length = f", about {count * options.seconds:.0f} s" if options.runs is None else ""
        stage = f"measuring {count} combinations{length}"
    latencies = measure_latencies(
        opened.timed, scenarios, seconds=options.seconds, runs=options.runs, progress=progress, stage=stage
    )
    seconds = min(PROFILED * options.seconds, LONGEST_PROFILE) if options.runs is None else 0.0
    for scenario, latency in zip(scenarios, latencies, strict=True):
        profiles = []
        for path, graph, model in zip(opened.paths, opened.graphs, latency.models, strict=True):
            if options.profile:
                progress(Progress(f"measuring the operators of {path.name}", 0, None))
                nodes = node_times(graph, scenario.inputs, threads=scenario.threads, seconds=seconds)
                profiles.append(scaled_to(nodes, MICROSECONDS * model.p50))
        yield BenchScenario(latency=latency, inputs=_inputs_of(scenario.inputs), profiles=tuple(profiles))


def _at_levels(opened: BenchedModels, engines: Sequence[Engine], options: BenchOptions) -> tuple[Engine, ...]:
    """The runtimes at each level that is asked for; of models with weights in blocks, at two."""
    levels = tuple(dict.fromkeys(options.accuracy_levels))
    for level in levels:
        if not EXACT <= level <= ROUNDED:
            raise RecipeValueError(f"--accuracy-level must be 0 to 4, got {level}", hint="the default is 4")
    if not levels and any(map(reads_blocks, map(_stored, opened.timed))):
        levels = (ROUNDED, EXACT)
    found = [at_level(engine, level) for engine in engines for level in levels]
    return tuple(dict.fromkeys(found)) if levels else tuple(engines)


def _same_as_first(opened: BenchedModels) -> tuple[bool, ...]:
    first, *others = map(_stored, opened.timed)
    return (True, *(holds_same_graph(first, other) for other in others))


def _stored(model: Path | StoredModel) -> StoredModel:
    return model if isinstance(model, StoredModel) else read_model(model)


def _require_profilers(engines: Sequence[Engine]) -> None:
    for engine in engines:
        if not engine.has_profiler:
            raise ProfilerError(
                f"ptq has no profiler for {engine.title}",
                hint="leave --profile out, or pass --runtime onnxruntime",
            )


def _inputs_of(batches: Sequence[Mapping[str, Array]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, array.dtype, array.shape) for name, array in batches[0].items())


def _inputs(
    request: Request, resolved: Resolved, graph: ir.Model, specs: Sequence[TensorSpec], batch: int
) -> ServedInputs:
    """Samples of the data that were asked for, else of those in the recipe, else made-up ones."""
    recipe = resolved.recipe
    if "data" in request.settings and recipe.calibration.data is not None:
        data = recipe.calibration.data
        return ServedInputs(data, batches_of(data, resolved, graph, specs, batch))
    if "input_shape" in request.settings:
        return ServedInputs(MADE_UP, made_up_batches(graph, batch, shapes=recipe.model.input_shape))
    return inputs_of_recipe(resolved, graph, specs, batch)


def _threads(asked: Sequence[int], resolved: Resolved) -> tuple[int, ...]:
    recipe = resolved.recipe
    for threads in asked:
        check_recipe(replace(recipe, runtime=replace(recipe.runtime, threads=threads)))
    return thread_counts(asked) or (resolved.machine.threads,)


def _batches(
    asked: Sequence[int], specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    fixed, shaped = own_batch_size(specs), _shaped_batch(specs, shapes)
    for batch in asked:
        if batch < 1:
            raise RecipeValueError(f"--batch must be at least 1, got {batch}", hint="the usual size is 1")
        if fixed not in (None, batch):
            raise RecipeValueError(
                f"--batch is {batch}, but the model takes batches of {fixed}",
                hint="leave --batch out, or export the model with a dynamic batch axis",
            )
        if shaped is not None and shaped[1] != batch:
            name, size = shaped
            raise RecipeValueError(
                f"--batch is {batch}, but --set model.input_shape says {size} samples for '{name}'",
                hint="leave one of them out",
            )
    return tuple(dict.fromkeys(asked)) or (fixed or (shaped[1] if shaped is not None else 1),)


def _shaped_batch(specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> tuple[str, int] | None:
    for spec in specs:
        shape, axis = shapes.get(spec.name, ()), spec.samples_axis
        if axis is not None and axis < len(shape):
            return spec.name, shape[axis]
    return None
