"""A pack: cases with their inputs and what has to come out of them, and the scripts that run them anywhere.

``run.py`` and ``run.mjs`` lie at its top. Each folder in ``cases`` has ``model.onnx``, ``inputs.safetensors``
and ``expected.safetensors``, whose tensors are called RUN:NAME. A case is either a whole file, or the integer
kernels of one, each with inputs of its own.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tools.processors.exact import Numbers
from tools.processors.kernels import Kernels, Tensors, extremes, open_session, run

HERE = Path(__file__).parent
RUNNERS = ("run.py", "run.mjs")
TOLERANCE, WRITTEN = ":tolerance", ":written"
"""End the names of what lies beside an expected output: the largest difference that passes for a kernel; and
for a file the same output of the graph as it is written, whose operators round otherwise than kernels do."""


class FailedError(Exception):
    """A pack did not run to its end somewhere."""


@dataclass(frozen=True)
class QuantizedFile:
    """A quantized file, and what it runs on.

    Attributes:
        name: of its cases.
        content: without constants that lie outside.
        batches: for the whole file.
        kernel_batches: for its kernels, a few samples; the first also tells the shapes of extreme integers.
    """

    name: str
    content: bytes
    batches: Sequence[Tensors]
    kernel_batches: Sequence[Tensors]


def write_pack(folder: Path, files: Sequence[QuantizedFile], *, whole: bool = True) -> None:
    """Write a pack; one that is there is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in RUNNERS:
        shutil.copy(HERE / name, folder)
    for file in files:
        _write_kernels(folder / "cases" / f"{file.name}.kernels", file)
        if whole:
            _write_file(folder / "cases" / f"{file.name}.file", file)


def _write_kernels(folder: Path, file: QuantizedFile) -> None:
    """Write the integer kernels of a file, on what they met and on the extremes of their types."""
    kernels = Kernels(file.content)
    met = kernels.met(file.kernel_batches)
    runs = [*met, extremes(met[0], seed=0)]
    model = kernels.apart(met[0])
    session = open_session(model, exact=True)
    expected: dict[str, Numbers] = {}
    for number, inputs in enumerate(runs):
        for name, item in kernels.expected(inputs, run(session, inputs)).items():
            expected[f"{number}:{name}"] = item.value
            expected[f"{number}:{name}{TOLERANCE}"] = item.tolerance
    titles = {node.output[0]: f"{node.op_type} '{node.name}'" for node in kernels.nodes}
    _write_case(folder, model, runs, expected, titles)


def _write_file(folder: Path, file: QuantizedFile) -> None:
    """Write a whole file, with what this machine gives for its inputs."""
    here = open_session(file.content, exact=True)
    written = open_session(file.content, level="ORT_DISABLE_ALL")
    expected: dict[str, Numbers] = {}
    for number, inputs in enumerate(file.batches):
        expected |= {f"{number}:{name}": array for name, array in run(here, inputs).items()}
        expected |= {f"{number}:{name}{WRITTEN}": array for name, array in run(written, inputs).items()}
    _write_case(folder, file.content, file.batches, expected, {})


def _write_case(
    folder: Path,
    model: bytes,
    runs: Sequence[Tensors],
    expected: Tensors,
    titles: Mapping[str, str],
) -> None:
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model)
    inputs = {f"{number}:{name}": array for number, run in enumerate(runs) for name, array in run.items()}
    for path, tensors, about in (("inputs", inputs, None), ("expected", expected, dict(titles))):
        arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
        save_file(arrays, folder / f"{path}.safetensors", about)
