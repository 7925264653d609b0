"""``verify``: which layers of a quantized model run in integers, and whether it is as its target asks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ptq_cli.core.errors import InvalidOnnxError, UsageError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.evaluation.document.report_document import Saturation
from ptq_cli.evaluation.verification import (
    DOUBTFUL_DB,
    KERNEL_STEPS,
    KernelComparison,
    Verification,
    saturates_here,
)
from ptq_cli.models.batch_axes import note_told_axes
from ptq_cli.models.fixed_inputs import fix_inputs
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.opset import opset_of
from ptq_cli.models.pair_operators import QUANTIZE
from ptq_cli.pipeline.evaluation.compared_kernels import (
    Execution,
    compare_each_kernel,
    compare_outputs,
    compared_samples,
    right_together,
    sample_work,
)
from ptq_cli.plan.target.rules import QNN, Target
from ptq_cli.qdq.proof.operators import in_blocks, prove_operators
from ptq_cli.qdq.proof.portable_sums import portable_sums
from ptq_cli.qdq.proof.target_faults import Fault, target_faults
from ptq_cli.qdq.read.quantized_file import MetadataKey, open_quantized
from ptq_cli.recipe.recipe_layers import file_layer
from ptq_cli.runtime.engine import Engine, Kernel
from ptq_cli.runtime.engine_registry import engine_of, measuring_engine
from ptq_cli.runtime.openvino import OPEN_VINO
from ptq_cli.runtime.qnn import HINT
from ptq_cli.setup.remembered_data import with_run_data
from ptq_cli.setup.resolve import Request, Resolved, resolve, target_of
from ptq_cli.setup.run_directory import RunDirectory

UNPROVEN = f"where the HTP places each operator, and what it computes ({HINT})"


@dataclass(frozen=True)
class VerifyOptions:
    """Options of ``verify`` besides a recipe's settings.

    Attributes:
        min_integer_share: the least share of the multiply-accumulates in integers, 0 to 1.
        made_up: compare outputs on generated inputs if there are no data.
        max_kernel_steps: the largest difference of a kernel from its operators as written, in steps.
    """

    min_integer_share: float | None = None
    made_up: bool = False
    max_kernel_steps: float = KERNEL_STEPS


def run_verify(
    request: Request,
    run: RunDirectory,
    model: Path | None = None,
    options: VerifyOptions = VerifyOptions(),
    progress: ProgressCallback = silent,
) -> Verification:
    """Verify a quantized model; nothing is written."""
    _require_limits(options)
    path, graph, resolved, target = open_to_verify(request, run, model, progress)
    asked = resolved.recipe.runtime.engine
    engine = measuring_engine(target, asked) if asked else engine_of(target)
    if engine is not None:
        progress(Progress(f"asking {engine.title}'s optimizer", 0, None))
    kernels = engine.find_kernels(graph) if engine is not None else None
    execution = Execution(target, resolved.recipe.runtime, resolved.machine.threads)
    required = "data" in request.settings
    reading = resolved.strict_reading() if required else resolved.reading
    samples, faults = compared_samples(
        graph, resolved.recipe, reading, required=required, made_up=options.made_up
    )
    work = sample_work(graph, samples)
    operators = prove_operators(graph, target, work, kernels)
    saturation = Saturation.of(portable_sums(graph, target, operators))
    comparison = compare_outputs(graph, samples, execution, progress)
    alone = compare_each_kernel(graph, samples, execution, options.max_kernel_steps, progress)
    if alone is not None and engine is OPEN_VINO:
        alone = right_together(alone, comparison)
    return Verification(
        model=str(path),
        made_by=_maker(graph),
        target=target.name,
        opset=opset_of(graph),
        runtime=engine.version() if engine is not None else "",
        operators=operators,
        unknown=work.unknown,
        assumed=work.assumed,
        once=work.once,
        faults=(*target_faults(graph, target), *_unread_blocks(graph, target, kernels)),
        comparison=comparison,
        min_integer_share=options.min_integer_share,
        data_faults=faults,
        kernel_comparison=alone,
        min_output_sqnr_db=DOUBTFUL_DB if _outputs_decide(engine, alone) else None,
        saturation=saturation,
        saturates_here=saturates_here(saturation, target),
        require_portable=resolved.recipe.gate.require_portable,
        unproven=UNPROVEN if engine is None and target.runtime == QNN else "",
    )


def _outputs_decide(engine: Engine | None, alone: KernelComparison | None) -> bool:
    """Tell whether a runtime has to give the outputs of the file as a whole: OpenVINO fuses past pairs."""
    return engine is OPEN_VINO or (engine is not None and (alone is None or bool(alone.fault)))


def open_to_verify(
    request: Request, run: RunDirectory, model: Path | None, progress: ProgressCallback
) -> tuple[Path, ir.Model, Resolved, Target]:
    """Return the file that is meant, its graph, what was asked with the recipe beside it, and its target."""
    path = model if model is not None else run.require_model()
    beside = RunDirectory(path.parent).recipe
    kept = beside if beside.is_file() else None
    resolved = resolve(request, otherwise=file_layer(kept) if kept is not None else None)
    resolved = with_run_data(resolved, kept)
    progress(Progress(f"reading {path.name}", 0, None))
    graph = open_quantized(path)
    fix_inputs(graph, resolved.recipe.model.inputs, path.name)
    for note in note_told_axes(graph, resolved.recipe.data.batch_axis, path.name):
        progress(Progress(f"reading {path.name}", 0, None, note))
    target = target_of(graph, resolved, named="target" in request.settings)
    _require_opset(graph, target, path)
    return path, graph, resolved, target


def _require_limits(options: VerifyOptions) -> None:
    share, steps = options.min_integer_share, options.max_kernel_steps
    if share is not None and not 0 <= share <= 1:
        raise UsageError(
            f"--min-integer-share is {share:g}, expected a share from 0 to 1",
            hint="for example: --min-integer-share 0.95",
        )
    if not steps >= 0:
        raise UsageError(
            f"--max-kernel-steps is {steps:g}, expected a number from 0 on",
            hint=f"the default is {KERNEL_STEPS:g}",
        )


def _unread_blocks(graph: ir.Model, target: Target, kernels: Mapping[str, Kernel] | None) -> Iterator[Fault]:
    """Yield layers whose weight is in blocks that a kernel reads, and that did not get that kernel."""
    if kernels is None or any(node.op_type == QUANTIZE for node in every_node(graph.graph)):
        return  # Beside integers a weight may be in blocks for the sake of the file alone.
    for node in every_node(graph.graph):
        described, kernel = in_blocks(node, target), kernels[node.name or ""]
        wanted = target.op[node.op_type].blocks if described else None
        if wanted is not None and kernel.name != wanted.kernel:
            found = kernel.name or "another operator"
            text = f"{described}, and became {found} where {wanted.kernel} was expected"
            yield Fault("blocks", f"{node.op_type} '{node.name}': {text}")


def _require_opset(graph: ir.Model, target: Target, path: Path) -> None:
    opset = opset_of(graph)
    if opset < target.opset:
        raise InvalidOnnxError(
            f"model '{path.name}' has opset {opset}, target '{target.name}' needs {target.opset} or later",
            hint="quantize a float model with a newer opset",
        )


def _maker(graph: ir.Model) -> str:
    version = graph.metadata_props.get(MetadataKey.VERSION)
    if version is not None:
        return f"ptq {version}"
    return " ".join(filter(None, (graph.producer_name, graph.producer_version)))
