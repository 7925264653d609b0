"""``verify --pack``: a folder of cases for devices without ptq, with its list of hashes and versions."""

import hashlib
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ptq_cli.core.documents import read_document, to_json
from ptq_cli.core.errors import CasesError, InputFileError, OutputFileError, UsageError, first_line
from ptq_cli.core.files import Content, write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.read_files import is_folder, read_file, require_file, sha256_file
from ptq_cli.core.tensors import Array
from ptq_cli.devices.integer_kernels import (
    Expected,
    IntegerKernels,
    KernelCase,
    KernelTensors,
    ReferenceSession,
)
from ptq_cli.evaluation.document.device_document import CASE_MODEL, PACK_AGAIN, Case, Manifest
from ptq_cli.evaluation.verification import GRID_STEPS
from ptq_cli.models.batch_axes import Axes, noted_axes
from ptq_cli.models.files.stored import StoredModel, read_model, serialize
from ptq_cli.models.files.storing import store_model
from ptq_cli.pipeline.evaluation.compared_kernels import ComparedSamples, compared_samples, single_samples
from ptq_cli.pipeline.run_verify import open_to_verify
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.runtime.session import Session
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory

MANIFEST = "manifest.json"
# By their name in the folder, the files beside this one that are copied there.
RUNNERS = {
    "run.py": "run.py",
    "run.mjs": "run.mjs",
    "cases.mjs": "cases.mjs",
    "index.html": "index.html",
    "README.md": "pack_readme.md",
}
_DATA = "model.data"  # the file of the constants of a model that has them apart
# What a tensor of a case is, in the middle of its name: RUN:KIND:NAME.
CASE_INPUT, CASE_OUTPUT, CASE_TOLERANCE, CASE_REFERENCE = "input", "output", "tolerance", "reference"


@dataclass(frozen=True, kw_only=True)
class CaseFiles:
    """A case before it is written."""

    node: str
    op: str
    exact: bool
    model: StoredModel
    runs: Sequence[Mapping[str, Array]]

    def written(self, number: int) -> tuple[Case, dict[str, Content]]:
        """The entry of the case and its files; number 0 is the whole file."""
        name = f"kernel-{number:03}" if number else CASE_MODEL
        stem = f"kernels/{name}" if number else name
        arrays = {
            f"{run}:{key}": np.asarray(array, order="C")
            for run, tensors in enumerate(self.runs)
            for key, array in tensors.items()
        }
        tensors: bytes = save(arrays)
        case = Case(
            name=name,
            node=self.node,
            op=self.op,
            exact=self.exact,
            runs=len(self.runs),
            model=f"{stem}.onnx",
            model_sha256=hashlib.sha256(self.model.content).hexdigest(),
            data=_DATA if self.model.data else "",
            data_sha256=sha256_file(self.model.data[0]) if self.model.data else "",
            tensors=f"{stem}.safetensors",
            tensors_sha256=hashlib.sha256(tensors).hexdigest(),
        )
        files: dict[str, Content] = {case.model: self.model.content, case.tensors: tensors}
        if self.model.data:
            files[_DATA] = self.model.data[0]
        return case, files


def run_tensors(
    inputs: Mapping[str, Array], expected: Mapping[str, Expected], reference: Mapping[str, Array]
) -> dict[str, Array]:
    """The tensors of one run by KIND:NAME."""
    found: dict[str, Array] = {f"{CASE_INPUT}:{name}": array for name, array in inputs.items()}
    for name, item in expected.items():
        found |= {f"{CASE_OUTPUT}:{name}": item.value, f"{CASE_TOLERANCE}:{name}": item.tolerance}
    return found | {f"{CASE_REFERENCE}:{name}": array for name, array in reference.items()}


def write_cases(folder: Path, cases: Sequence[CaseFiles], about: Mapping[str, Any]) -> Manifest:
    """Write a folder of cases, the whole file first, with its runners; earlier cases there are replaced.

    ``about`` has the other fields of the manifest.
    """
    if is_folder(folder) and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise OutputFileError(
            f"'{folder}' holds other files, expected a new folder or earlier cases", hint="name a new folder"
        )
    entries, contents = [], dict[Path, Content]()
    for number, case in enumerate(cases):
        entry, files = case.written(number)
        entries.append(entry)
        contents |= {folder / name: content for name, content in files.items()}
    manifest = Manifest(cases=tuple(entries), machine=platform.machine(), **about)
    here = Path(__file__).parent
    contents |= {folder / name: (here / source).read_bytes() for name, source in RUNNERS.items()}
    contents[folder / MANIFEST] = to_json(manifest).encode()
    write_together(contents)
    for path in (folder / _DATA, *(folder / "kernels").glob("kernel-*")):
        if path not in contents:
            path.unlink(missing_ok=True)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder of cases."""
    path = folder / MANIFEST
    try:
        manifest = read_document(Manifest, path)
    except InputFileError as error:
        raise InputFileError(error.message, hint="name the folder that ptq verify --pack wrote") from error
    if not manifest.cases or manifest.cases[0].op:
        raise CasesError(f"manifest '{path}' has no case of the whole file", hint=PACK_AGAIN)
    return manifest


def read_tensors(folder: Path, case: Case) -> list[dict[str, dict[str, Array]]]:
    """The tensors of each run of a case, by kind and name."""
    for name, sha256 in case.files:
        if sha256_file(require_file(folder / name, "case")) != sha256:
            raise CasesError(
                f"'{folder / name}' does not have the hash that {MANIFEST} says: it was changed or cut off",
                hint=PACK_AGAIN,
            )
    try:
        runs: list[dict[str, dict[str, Array]]] = [{} for _ in range(case.runs)]
        for key, array in load(read_file(folder / case.tensors, "case")).items():
            run, kind, name = key.split(":", 2)
            runs[int(run)].setdefault(kind, {})[name] = array
    except (SafetensorError, ValueError, IndexError) as error:
        raise CasesError(
            f"'{folder / case.tensors}' is damaged: {first_line(error)}", hint=PACK_AGAIN
        ) from error
    return runs


AS_FAR = 4.0  # how many times as far from this machine as the file as it is written an output may be
PACKED_SAMPLES = 8
# Samples that kernels get: with one, ONNX Runtime takes other kernels than with several.
SMALL_BATCHES = (1, 2)


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
    samples: int = PACKED_SAMPLES,
    made_up: bool = False,
    progress: ProgressCallback = silent,
) -> PackedCases:
    """Write a folder of cases of a quantized model, for devices without ptq.

    The model is any ONNX file with Q/DQ or with integer operators, or the run's own; the whole of it runs on
    so many ``samples``, one by one. Without data, inputs are generated if ``made_up``.
    """
    if samples < 1:
        raise UsageError(
            f"--samples is {samples}, expected at least 1", hint=f"the default is {PACKED_SAMPLES}"
        )
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
        stored = store_model(stored.load(), cases.absolute().parent, CASE_MODEL)
    whole, reference = _whole_case(path, stored, graph.metadata_props.get(MetadataKey.FLOAT_SHA256, ""), runs)
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


def _runs(
    compared: ComparedSamples, axes: Axes, most: int
) -> tuple[list[KernelTensors], list[KernelTensors]]:
    """The inputs of the whole file's runs, and those that kernels get."""
    if compared.fixed:
        return list(compared.batches[:most]), list(compared.batches[:1])
    singles = [run for batch in compared.batches for run in single_samples(batch, axes, most)]
    batches = (single_samples(compared.batches[0], axes, size, size) for size in SMALL_BATCHES)
    return list(singles[:most]), [run for found in batches for run in found]


def _whole_case(
    path: Path, model: StoredModel, float_sha256: str, runs: Sequence[KernelTensors]
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
    """How far an output may be from this machine's: which values are rounded otherwise is chance."""
    # ``AS_FAR`` times as far as the file as it is written, and at least a step of 8 bits over its range.
    if here.dtype.kind != "f" or here.shape != written.shape or not here.size:
        return np.array(0.0)
    apart = np.abs(here.astype(np.float64) - written.astype(np.float64))
    finite = here[np.isfinite(here)].astype(np.float64)
    step = (finite.max() - finite.min()) / GRID_STEPS if finite.size else 0.0
    return np.array(max(AS_FAR * float(np.max(apart[np.isfinite(apart)], initial=0.0)), step))


def _kernel_case(kernel: KernelCase) -> CaseFiles:
    runs = [run_tensors(inputs, expected, {}) for inputs, expected in kernel.runs]
    model = StoredModel(content=kernel.model)
    return CaseFiles(node=kernel.node, op=kernel.op, exact=kernel.adds_products, model=model, runs=runs)
