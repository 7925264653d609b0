"""``drift``: new data beside those of a run's calibration, tensor by tensor."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from ptq_cli.amax.decide import ScaleRules
from ptq_cli.calibdata.bind import BoundDataset, bind_inputs, fit_dataset, fixed_batch_size
from ptq_cli.calibdata.carries import named_carries
from ptq_cli.calibdata.dataset.batches import Batch, decoded_ahead
from ptq_cli.calibration.collect import CountedTensors, collect, counting_on
from ptq_cli.calibration.open_forward import open_forward
from ptq_cli.calibration.provenance import LoadedRun, loaded_run
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.collectors.histogram_collector import compile_kernel
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.documents import to_json
from ptq_cli.core.errors import (
    EmptyDataError,
    GateError,
    MissingStatisticError,
    NonFiniteActivationError,
    UsageError,
)
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.models.graph_reading import nested_values
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.monitoring.compared_drift import Limits, Observed, Seen, compare
from ptq_cli.monitoring.drift import BLOCKS, Drift, make_grid, row_of
from ptq_cli.monitoring.drift_page import render_drift
from ptq_cli.pipeline.evaluation.report_page import stored_parameters
from ptq_cli.pipeline.exported_file import quantized_metadata, require_origin
from ptq_cli.placement.placed_graph import Placement, place
from ptq_cli.placement.ranges import decide_activations, with_moved_statistics
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.planner import make_plan
from ptq_cli.recipe.sections import FLOAT16
from ptq_cli.runtime.tapping.pieces import Forward
from ptq_cli.setup.output_checks import input_files, require_free_outputs
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory

_STAGE = "drift"
EACH = 8  # Samples of a batch where it is not known how many there are


@dataclass(frozen=True, kw_only=True)
class DriftOptions:
    """What of a drift is wanted.

    Attributes:
        samples: the first so many; None for all.
        inputs_only: the model's inputs are looked at, and no model is run.
    """

    samples: int | None = None
    inputs_only: bool = False
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class DriftResult:
    """The result of ``drift``, with the run where it was written."""

    drift: Drift
    run: RunDirectory


def run_drift(
    request: Request,
    run: RunDirectory,
    data: str,
    options: DriftOptions | None = None,
    progress: ProgressCallback = silent,
) -> DriftResult:
    """Compare data with those of a run's calibration, and write ``drift.json`` and ``drift.html``."""
    options = options or DriftOptions()
    _require_limits(options.limits)
    with loaded_run(request, run) as loaded:
        resolved = loaded.resolved
        if named_carries(resolved.recipe.data.carry):
            raise UsageError(
                "the run was calibrated on recordings with carried states, which drift does not run",
                hint="ptq evaluate compares the models on new recordings, step by step",
            )
        inputs = input_files(resolved.recipe) | {"the data": Path(data)}
        require_free_outputs((run.drift, run.drift_page), inputs)
        specs = input_specs(loaded.graph)
        fed = {spec.name for spec in specs}
        watched, exported = _watched(loaded, run, fed if options.inputs_only else None)
        dataset, _ = fit_dataset(resolved.strict_reading().open(data, options.samples), specs)
        model = _Model(loaded.graph, loaded.float_model, specs)
        seen = _pass(model, loaded, bind_inputs(dataset, specs), watched, progress)
        if not seen.blocks.samples:
            raise EmptyDataError(f"'{data}' has no samples", hint="pass data that has samples")
    observed = Observed(
        source=data,
        inputs_only=options.inputs_only,
        exported=exported,
        calibration_samples=loaded.calibration.provenance.samples,
        watched=watched,
        seen=seen,
    )
    progress(Progress("comparing with the calibration", 0, None))
    drift, pictures = compare(observed, options.limits)
    page = render_drift(drift, pictures)
    write_together({run.drift: to_json(drift).encode(), run.drift_page: page.encode()})
    return DriftResult(drift, run)


def parse_share(text: str) -> float:
    """Return a share that may be written in percent.

    Example:
        >>> parse_share("0.1%"), parse_share("0.25")
        (0.001, 0.25)
    """
    number = text.strip().removesuffix("%")
    try:
        return float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        raise GateError(f"'{text}' is not a share", hint="--max-clipped 0.1%, or 0.001") from None


def _require_limits(limits: Limits) -> None:
    share, decibels = limits.max_clipped, limits.min_expected_sqnr
    if share is not None and not 0.0 <= share <= 1.0:
        raise GateError(f"a limit of {share:g} is not a share from 0 to 1", hint="--max-clipped 0.1%")
    if decibels is not None and not math.isfinite(decibels):
        raise GateError(f"a limit of {decibels:g} dB is not finite", hint="--min-expected-sqnr 30")


def _watched(
    loaded: LoadedRun, run: RunDirectory, only: set[str] | None
) -> tuple[dict[str, tuple[QuantParameters, TensorStatistics]], bool]:
    """Return parameters and statistics by tensor, and whether the parameters are those of a model's file."""
    resolved, graph, target = loaded.resolved, loaded.graph, loaded.resolved.target
    calibration = with_moved_statistics(loaded.calibration, graph.graph)
    if not calibration.statistics:
        raise MissingStatisticError(
            f"the calibration of '{run.path}' measured no tensor: no range depends on data",
            hint="weights alone are quantized, or activations at each run; ptq evaluate compares the models "
            "on new data",
        )
    plan = make_plan(graph, target)
    placement = place(graph, plan, target, tensor_recipe(resolved.recipe), calibration, may_be_empty=True)
    sites, found = placement.plan.activations, calibration.statistics
    sources = {
        name: sites[name].source for name in placement.plan.measured if name in found and found[name].count
    }
    if only is not None:
        sources = {name: source for name, source in sources.items() if name in only}
    file = _exported(run, loaded.calibration)
    parameters = (
        dict(stored_parameters(file.load()))
        if file is not None
        else _decided(placement, set(sources.values()), calibration)
    )
    watched = {
        name: (parameters[source], found[name]) for name, source in sources.items() if source in parameters
    }
    if not watched:
        what = "no input of the model is quantized" if only is not None else "no activation is quantized"
        raise MissingStatisticError(
            f"{what}, so that none was measured",
            hint="leave out --inputs-only" if only is not None else "ptq inspect says why",
        )
    return watched, file is not None


def _decided(placement: Placement, sources: set[str], calibration: Calibration) -> dict[str, QuantParameters]:
    """Return the parameters that an export would decide for tensors, by the names of their sources."""
    sites = placement.plan.activations.items()
    part = {name: site for name, site in sites if site.source in sources}
    decisions = decide_activations(
        replace(placement.plan, activations=part),
        placement.settings.activations,
        calibration,
        placement.settings.activation_families,
        ScaleRules(half=placement.float_type == FLOAT16),
    )
    return {name: decision.parameters for name, decision in decisions.items()}


def _exported(run: RunDirectory, calibration: Calibration) -> StoredModel | None:
    """Return the run's quantized model, which must be of this calibration; None if there is none."""
    elsewhere = run.model_elsewhere()
    files = (path for path in (elsewhere, run.quantized_model) if path is not None and path.is_file())
    path = next(files, None)
    if path is None:
        return None
    model = read_model(path)
    require_origin(quantized_metadata(model, path), calibration, path)
    return model


@dataclass(frozen=True)
class _Model:
    """The float model, as ``open_forward`` takes it."""

    model: ir.Model
    stored: StoredModel
    inputs: tuple[TensorSpec, ...]


def _pass(
    model: _Model,
    loaded: LoadedRun,
    data: BoundDataset,
    watched: Mapping[str, tuple[QuantParameters, TensorStatistics]],
    progress: ProgressCallback,
) -> Seen:
    """Run the data a block at a time, and return what each block left."""
    machine, fed = loaded.resolved.machine, {spec.name for spec in model.inputs}
    size = _batch_size(loaded, data, model.inputs)
    inputs, taps = ([name for name in watched if (name in fed) == is_fed] for is_fed in (True, False))
    compile_kernel()
    forward = open_forward(model, taps, machine, data, size, progress)
    counter = _Counter(
        forward=forward, inputs=inputs, taps=taps, nested=nested_values(model.model.graph), loaded=loaded
    )
    grids = {name: make_grid(parameters) for name, (parameters, _) in watched.items()}
    seen = Seen(grids)
    progress(Progress(_STAGE, 0, data.count))
    with closing(decoded_ahead(data.batches(size))) as batches:
        for batch in batches:
            found = counter.count(batch)
            seen.add(found, {name: row_of(grids[name], item) for name, item in found.items()}, batch)
            progress(Progress(_STAGE, seen.blocks.samples, data.count))
    return seen


def _batch_size(loaded: LoadedRun, data: BoundDataset, inputs: Sequence[TensorSpec]) -> int:
    """Return how many samples are run at a time: few enough for as many blocks as intervals need."""
    fixed = fixed_batch_size(inputs)
    if fixed is not None:
        return fixed
    most = loaded.resolved.recipe.data.batch_size
    return max(1, min(most, data.count // (BLOCKS // 2) if data.count is not None else EACH))


@dataclass(frozen=True, kw_only=True)
class _Counter:
    """Counts the tensors of a batch."""

    forward: Forward
    inputs: Sequence[str]
    taps: Sequence[str]
    nested: frozenset[str] | set[str]
    loaded: LoadedRun

    def count(self, batch: Batch) -> dict[str, TensorStatistics]:
        """Return what a batch holds; NaN and infinities are counted by kind."""
        if self.loaded.resolved.recipe.calibration.allow_nonfinite:
            return self._collected(batch, allow_nonfinite=True)
        try:
            return self._collected(batch, allow_nonfinite=False)
        except NonFiniteActivationError:
            # A watching job wants to hear of all the data, and of the broken sample among them.
            return self._collected(batch, allow_nonfinite=True)

    def _collected(self, batch: Batch, *, allow_nonfinite: bool) -> dict[str, TensorStatistics]:
        machine = self.loaded.resolved.machine
        found, _, _ = collect(
            self.forward,
            [batch],
            CountedTensors(
                inputs=self.inputs,
                taps=self.taps,
                method="histogram",
                make_tapped=counting_on(machine.device),
                allow_nonfinite=allow_nonfinite,
                nested=self.nested,
            ),
            machine.threads if machine.device.is_host else min(machine.threads, 2),
        )
        return found
