"""``verify --pack``: a folder of cases for devices without ptq."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from ptq_cli.core.errors import (
    UsageError,
)
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array
from ptq_cli.devices.integer_kernels import Expected, IntegerKernels, KernelCase, ReferenceSession, Tensors
from ptq_cli.devices.manifest import CaseFiles, run_tensors, write_cases
from ptq_cli.evaluation.document.device_document import MODEL, Manifest
from ptq_cli.evaluation.verification import STEPS
from ptq_cli.models.batch_axes import Axes, noted_axes
from ptq_cli.models.files.stored import StoredModel, read_model, serialize
from ptq_cli.models.files.storing import store_model
from ptq_cli.pipeline.evaluation.compared_kernels import ComparedSamples, compared_samples, single_samples
from ptq_cli.pipeline.run_verify import open_to_verify
from ptq_cli.qdq.read.quantized_file import FLOAT_SHA256
from ptq_cli.runtime.session import Session
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory

AS_FAR = 4.0  # how many times as far from this machine as the file as it is written an output may be
SAMPLES = 8
SMALL_BATCHES = (1, 2)
"""Samples that kernels get: with one, ONNX Runtime takes other kernels than with several."""


@dataclass(frozen=True, kw_only=True)
class PackedCases:
    """What ``ptq verify --pack`` wrote."""

    cases: Annotated[Path, "The folder."]
    bytes: Annotated[int, "Size of all its files."]
    manifest: Annotated[Manifest, "What it holds."]


def run_pack(
    request: Request,
    run: RunDirectory,
    model: Path | None,
    cases: Path,
    *,
    samples: int = SAMPLES,
    made_up: bool = False,
    progress: ProgressCallback = silent,
) -> PackedCases:
    """Write a folder of cases of a quantized model, for devices without ptq.

    The model is any ONNX file with Q/DQ or with integer operators, or the run's own; the whole of it runs on
    so many ``samples``, one by one. Without data, inputs are generated if ``made_up``.
    """
    if samples < 1:
        raise UsageError(f"--samples is {samples}, expected at least 1", hint=f"the default is {SAMPLES}")
    path, graph, resolved, target = open_to_verify(request, run, model, progress)
    required = "data" in request.settings
    reading = resolved.strict_reading() if required else resolved.reading
    compared, faults = compared_samples(graph, resolved.recipe, reading, required=required, made_up=made_up)
    if not compared.batches:
        raise UsageError(
            f"there are no data for the cases of '{path.name}'{': ' if faults else ''}{'; '.join(faults)}",
            hint="pass samples with --data PATH, or --random-inputs",
        )
    runs, batches = _runs(compared, noted_axes(graph), samples)
    progress(Progress("cutting out kernels", 0, None))
    with tempfile.TemporaryDirectory() as folder:
        kernels = IntegerKernels(graph, Path(folder)).cases(batches)
    source = read_model(path)
    stored = serialize(graph) if resolved.recipe.model.inputs else source
    if stored.data:  # What one file can hold, it holds.
        stored = store_model(stored.load(), cases.absolute().parent, MODEL)
    whole, reference = _whole_case(path, stored, graph.metadata_props.get(FLOAT_SHA256, ""), runs)
    manifest = write_cases(
        cases,
        [whole, *map(_kernel_case, kernels)],
        {
            "versions": {name: version(name) for name in ("ptq-cli", "onnxruntime", "numpy")},
            "source": path.name,
            "source_sha256": source.sha256,
            "target": target.name,
            "data": Path(compared.data).name,  # The folder travels; where the data are here does not matter.
            "samples": len(runs),
            "reference": reference,
        },
    )
    size = sum(item.stat().st_size for item in cases.rglob("*") if item.is_file())
    return PackedCases(cases=cases, bytes=size, manifest=manifest)


def _runs(compared: ComparedSamples, axes: Axes, most: int) -> tuple[list[Tensors], list[Tensors]]:
    """The inputs of the whole file's runs, and those that kernels get."""
    if compared.fixed:
        return list(compared.batches[:most]), list(compared.batches[:1])
    singles = [run for batch in compared.batches for run in single_samples(batch, axes, most)]
    batches = (single_samples(compared.batches[0], axes, size, size) for size in SMALL_BATCHES)
    return list(singles[:most]), [run for found in batches for run in found]


def _whole_case(
    path: Path, model: StoredModel, float_sha256: str, runs: Sequence[Tensors]
) -> tuple[CaseFiles, Literal["float", "written"]]:
    """The case of the whole file, and what its reference outputs are of."""
    float_model = RunDirectory(path.parent).float_model
    is_known = float_model.is_file() and read_model(float_model).sha256 == float_sha256
    written = Session(model, threads=1, optimize=False)
    session, other = ReferenceSession(model), Session(float_model, threads=1) if is_known else written
    tensors = []
    for inputs in runs:
        here, near = session.run(inputs), dict(zip(written.outputs, written.run(inputs), strict=True))
        far = dict(zip(other.outputs, other.run(inputs), strict=True))
        expected = {name: Expected(array, _rounding(array, near[name])) for name, array in here.items()}
        floats = {name: array for name, array in far.items() if array.dtype.kind == "f" and name in here}
        tensors.append(run_tensors(inputs, expected, floats))
    case = CaseFiles(node="", op="", exact=False, model=model, runs=tensors)
    return case, "float" if is_known else "written"


def _rounding(here: Array, written: Array) -> Array:
    """How far an output may be from this machine's: which values are rounded otherwise is chance.

    ``AS_FAR`` times as far as the file as it is written, and at least a step of 8 bits over its range.
    """
    if here.dtype.kind != "f" or here.shape != written.shape or not here.size:
        return np.array(0.0)
    apart = np.abs(here.astype(np.float64) - written.astype(np.float64))
    finite = here[np.isfinite(here)].astype(np.float64)
    step = (finite.max() - finite.min()) / STEPS if finite.size else 0.0
    return np.array(max(AS_FAR * float(np.max(apart[np.isfinite(apart)], initial=0.0)), step))


def _kernel_case(kernel: KernelCase) -> CaseFiles:
    runs = [run_tensors(inputs, expected, {}) for inputs, expected in kernel.runs]
    model = StoredModel(content=kernel.model)
    return CaseFiles(node=kernel.node, op=kernel.op, exact=kernel.adds_products, model=model, runs=runs)
