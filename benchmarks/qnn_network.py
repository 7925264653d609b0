"""One network's file for Qualcomm's HTP, evaluated on the simulator: a process of its own.

python -m benchmarks.qnn_network FOLDER SCRATCH --samples 64

It prints a line of JSON: a ``Network``.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.each_network import network_parser
from benchmarks.timing import evaluate_run, run_ptq
from ptq_cli.models.pair_operators import is_pair_node
from ptq_cli.qdq.read.quantized_file import open_quantized
from ptq_cli.runtime.engine import ON_CPU, ON_FLOATS, ON_HTP
from ptq_cli.runtime.qnn import QNN_HTP

_MODELS = Path(__file__).parents[1] / "sample_models"
# The language model is none of them: its sequences have no static length.
SAMPLE_MODELS = {
    "cnn": _MODELS / "cifar10_cnn",
    "speech": _MODELS / "spoken_digits_transformer",
    "detector": _MODELS / "shapes_detector",
}
WIDE = ("--set", "activations.dtype=uint16")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of a network with activations of one type.

    Attributes:
        activations: the type.
        integer: operators that the HTP computes in integers.
        floats, cpu: how many operators it computes in float16, and leaves to the CPU, by type.
        htp_db, runtime_db: SQNR of the worst output on the simulator, and on ONNX Runtime.
        metric, float_value, htp_value: the first metric of the sample's recipe; empty and 0 without one.
    """

    activations: str
    integer: int
    floats: Mapping[str, int]
    cpu: Mapping[str, int]
    htp_db: float
    runtime_db: float
    metric: str
    float_value: float
    htp_value: float


@dataclass(frozen=True)
class Network:
    """What was measured of a network, on how many samples."""

    name: str
    samples: int
    measured: list[Measured]


def main() -> None:
    """Parse the arguments, quantize, measure, and print the result."""
    arguments = network_parser("Measure one network's file on the HTP simulator.").parse_args()
    folder, scratch, samples = arguments.folder, arguments.scratch, arguments.samples
    named = {place: name for name, place in SAMPLE_MODELS.items()}.get(folder)
    measured = [measure(folder, scratch, samples, ())]
    if named == "cnn":
        measured.append(measure(folder, scratch, samples, WIDE))
    print(json.dumps(asdict(Network(named or folder.name, samples, measured))), flush=True)


def measure(folder: Path, scratch: Path, samples: int, flags: Sequence[str]) -> Measured:
    """Quantize a network, find where its operators are placed, and evaluate it."""
    run = scratch / f"run{len(flags)}"
    place = ["--run", str(run), "--set", "runtime.threads=1"]
    run_ptq(["quantize", *_words(folder, samples), *flags, "--target", "qnn", *place], folder)
    graph = open_quantized(run / "model_int8.onnx")
    kernels = QNN_HTP.find_kernels(graph)
    operators = [node for node in graph.graph.all_nodes() if not is_pair_node(node)]
    counts = {
        name: dict(Counter(node.op_type for node in operators if kernels[node.name or ""].name == name))
        for name in (ON_HTP, ON_FLOATS, ON_CPU)
    }
    evaluated = ["--eval-samples", str(samples), "--set", "runtime.threads=1"]
    if not (folder / "ptq.toml").exists():
        evaluated += ["--eval-data", "eval.npz"]
    htp, runtime = (
        evaluate_run(str(run), folder, *evaluated, "--engine", name)["metrics"]
        for name in ("qnn", "onnxruntime")
    )
    labeled = next((item for item in htp if item["needs_labels"]), None)
    return Measured(
        activations="uint16" if flags else "uint8",
        integer=sum(counts[ON_HTP].values()),
        floats=counts[ON_FLOATS],
        cpu=counts[ON_CPU],
        htp_db=worst_db(htp),
        runtime_db=worst_db(runtime),
        metric=labeled["name"] if labeled is not None else "",
        float_value=labeled["float_value"] if labeled is not None else 0.0,
        htp_value=labeled["quantized_value"] if labeled is not None else 0.0,
    )


def _words(folder: Path, samples: int) -> list[str]:
    """Return what says which model and data: a sample has a recipe for them."""
    words = ["--set", "run.evaluate=false"]
    if (folder / "ptq.toml").exists():
        return [*words, "--set", "model.input_shape.batch=1"]
    with np.load(folder / "calib.npz") as arrays:
        shapes = [f"{name}=1,{','.join(map(str, array.shape[1:]))}" for name, array in arrays.items()]
    shaped = [word for shape in shapes for word in ("--set", f"model.input_shape.{shape}")]
    return ["model.onnx", "--data", "calib.npz", "--samples", str(samples), *words, *shaped]


def worst_db(metrics: Sequence[Mapping[str, Any]]) -> float:
    """Return the smallest SQNR of the outputs.

    Example:
        >>> worst_db([{"name": "sqnr_db", "quantized_value": 30.0}, {"name": "top1", "quantized_value": 1.0}])
        30.0
    """
    return min(float(item["quantized_value"]) for item in metrics if item["name"] == "sqnr_db")


if __name__ == "__main__":
    main()
