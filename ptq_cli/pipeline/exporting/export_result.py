"""What an export returns: the result, and the files of a model that is not written yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ptq_cli.core.files import Content
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.exporting.placing.latency_preference import LatencyPreference
from ptq_cli.pipeline.exporting.recovering.ranges_by_effect import RangesByEffect
from ptq_cli.pipeline.exporting.recovering.recovery_effects import Recovery
from ptq_cli.plan.sites import Plan
from ptq_cli.report.document.report_warning import ReportWarning
from ptq_cli.runtime.engines.engine import KernelCounts


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The result of ``export``.

    Attributes:
        output: the quantized model's file.
        bytes, float_bytes: sizes of the quantized and the float file. The float file is the one that the
            user named, with its external data, if it is ONNX; otherwise the float model.
        target: the target's name.
        amax: the method that decided the ranges, ``auto`` resolved.
        plan: what was quantized, and why not the rest.
        kernels: what the runtime makes of it on this machine; None for a target whose runtime is not here,
            and where ``uncounted`` says why it was not asked.
        uncounted: why the runtime was not asked in passing; empty if it was.
        widened: weights whose scale was widened so that their bias fits, with how many channels.
        weight_amax: the method that decided the weights' ranges.
        overridden: activations and weights that an override changed the settings of, in the plan's order.
        unsearched: tensors whose method had only one candidate, so that it chose nothing, with the method.
        weights, activations: how many have which quantizer.
        plain: all are scaled, to the target's own integers.
        outliers: by a weight's name, what leaves most of its values only a few steps.
        never_run: by its name, why a layer stays float that the calibration never ran.
        ranges: what was chosen by its effect; None if it was not asked for.
        recovery: what recovery did; None if it was not asked for.
        taken: number of weights that were decided with another model of the same folder.
        warnings: about the file's size and where its work is done.
    """

    output: Path
    bytes: int
    float_bytes: int
    target: str
    amax: str
    plan: Plan
    kernels: KernelCounts | None
    widened: Mapping[str, int]
    uncounted: str = ""
    weight_amax: str = "max"
    overridden: tuple[str, ...] = ()
    unsearched: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    activations: Mapping[str, int] = field(default_factory=dict)
    plain: bool = True
    outliers: Mapping[str, str] = field(default_factory=dict)
    latency: LatencyPreference | None = None
    never_run: Mapping[str, str] = field(default_factory=dict)
    ranges: RangesByEffect | None = None
    recovery: Recovery | None = None
    taken: int = 0
    warnings: tuple[ReportWarning, ...] = ()


@dataclass(frozen=True)
class Exported:
    """A quantized model that is not written yet.

    Attributes:
        result: what was done.
        model: the quantized model, as its files will hold it.
        files: the content of each file to write.
    """

    result: ExportResult
    model: StoredModel
    files: Mapping[Path, Content]
