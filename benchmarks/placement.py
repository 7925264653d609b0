"""Cost of placement on a large graph, and of an export compared with reading and writing the file.

python -m benchmarks.placement            print the table
python -m benchmarks.placement --write    also write it to benchmarks/RESULTS.md
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from benchmarks.first_export import WORK
from benchmarks.models import write_images, write_resnet50
from benchmarks.results_page import is_to_write, print_part, processor
from benchmarks.timing import median_ratio, take_turns
from ptq_cli.core.progress import silent
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target, target_names
from ptq_cli.runtime.machine import usable_cores
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory

NODES, ROUNDS = 5_000, 5
# For the model with large weights: width and number of its layers, and samples of its calibration.
WIDTH, LAYERS, DEPTH = 4096, 4, 3
MOST_SECONDS, MOST_RATIO = 5.0, 1.5


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Measure placement and export.")
    with tempfile.TemporaryDirectory() as scratch:
        print_part("placement", page(Path(scratch)), write=write)


def page(scratch: Path) -> Iterator[str]:
    """Measure, and yield the lines of the part."""
    yield (
        f"`python -m benchmarks.placement --write`, {processor()}, {usable_cores()} cores, load "
        f"{os.getloadavg()[0]:.1f} at the start; medians of {ROUNDS} rounds in which all take turns: `onnx` "
        "reads the float file and writes it (C++ throughout), ptq exports, and `onnx_ir` reads and writes (a "
        "Python object for each node and value). *Once per process* is how a command does it, without the "
        "imports; in the other rows, the process has allocated its memory already."
    )
    yield from ("", "| placement | required | seconds |", "|---|---|---|", *placement_rows(), "")
    yield (
        f"| export | float file | how | `onnx` | export | ratio (required: at most {MOST_RATIO}) | `onnx_ir` "
        "| ratio to that |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    yield from export_rows(scratch)


def placement_rows() -> Iterator[str]:
    """Place the large graph for each target, and yield the rows."""
    model = ir.from_proto(large_graph(NODES))
    targets = [load_target(name) for name in target_names()]
    times = take_turns([partial(make_plan, model, target) for target in targets], ROUNDS)
    for target, seconds in zip(targets, times, strict=True):
        yield f"| {NODES:,} nodes, `{target.name}` | at most {MOST_SECONDS:.0f} | {median(seconds):.2f} |"


def export_rows(scratch: Path) -> Iterator[str]:
    """Export each model, and read and write its file, in turns; yield the rows."""
    for name, run in cases(scratch):
        source, copy = run.float_model, scratch / "copy.onnx"
        paths = {"onnx": (source, copy), "export": (run.path, scratch), "onnx_ir": (source, copy)}
        first = [partial(in_own_process, kind, *pair) for kind, pair in paths.items()]
        columns = zip(*([work() for work in first] for _ in range(ROUNDS)), strict=True)
        again = take_turns([partial(WORK[kind], *pair) for kind, pair in paths.items()], ROUNDS)
        for how, times in (("once per process", columns), ("repeatedly in one process", again)):
            plain, exported, objects = times
            yield (
                f"| {name} | {source.stat().st_size / 1e6:.0f} MB | {how} | {median(plain):.2f} s "
                f"| {median(exported):.2f} s | {median_ratio(exported, plain):.1f} "
                f"| {median(objects):.2f} s | {median_ratio(exported, objects):.1f} |"
            )


def in_own_process(kind: str, *paths: Path) -> float:
    """Return the time of a piece of work that is the first of its process."""
    command = [sys.executable, "-m", "benchmarks.first_export", kind, *map(str, paths)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def cases(scratch: Path) -> Iterator[tuple[str, RunDirectory]]:
    """Yield calibrated models, each with its name for the table."""
    rng = np.random.default_rng(0)
    write_resnet50(scratch / "resnet50.onnx")
    write_images(scratch / "images.npz", 2)
    yield calibrated("ResNet-50-shaped", scratch / "resnet50.onnx", scratch / "images.npz", scratch)
    onnx.save(wide_graph(), scratch / "wide.onnx")
    np.savez(scratch / "rows.npz", x=rng.standard_normal((DEPTH, WIDTH)).astype(np.float32))
    yield calibrated(f"{LAYERS} layers of {WIDTH:,}", scratch / "wide.onnx", scratch / "rows.npz", scratch)
    onnx.save(large_graph(NODES), scratch / "large.onnx")
    np.savez(scratch / "maps.npz", x=rng.standard_normal((2, 8, 8, 8)).astype(np.float32))
    yield calibrated(f"{NODES:,} nodes", scratch / "large.onnx", scratch / "maps.npz", scratch)


def calibrated(name: str, model: Path, data: Path, scratch: Path) -> tuple[str, RunDirectory]:
    """Calibrate a model, and return it."""
    run = RunDirectory(scratch / f"run-{model.stem}")
    run_calibrate(
        Request(settings={"data": str(data), "method": "max"}, model=model, folder=scratch), run, silent
    )
    return name, run


def large_graph(nodes: int, channels: int = 8) -> onnx.ModelProto:
    """Return a model of residual blocks of Conv, Relu, Conv, Add and Relu."""
    random = np.random.default_rng(0)
    made, weights, before = [], [], "x"
    for block in range(nodes // 5):
        names = [f"b{block}.{part}" for part in ("c", "r", "d", "a", "o")]
        for part in ("v", "w"):
            # Small, so that a thousand sums stay finite.
            array = (random.standard_normal((channels, channels, 1, 1)) / 100).astype(np.float32)
            weights.append(numpy_helper.from_array(array, f"b{block}.{part}"))
        inputs = (
            [before, f"b{block}.v"],
            [names[0]],
            [names[1], f"b{block}.w"],
            [names[2], before],
            [names[3]],
        )
        for op, taken, name in zip(("Conv", "Relu", "Conv", "Add", "Relu"), inputs, names, strict=True):
            made.append(helper.make_node(op, taken, [name], f"{name}/node"))
        before = names[-1]
    return model_of(made, weights, ["N", channels, 8, 8], before)


def wide_graph() -> onnx.ModelProto:
    """Return a model of few nodes with large weights."""
    random = np.random.default_rng(0)
    made, weights, before = [], [], "x"
    for layer in range(LAYERS):
        array = (random.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{layer}"))
        made.append(helper.make_node("MatMul", [before, f"w{layer}"], [f"h{layer}"], f"layer{layer}"))
        before = f"h{layer}"
    return model_of(made, weights, ["N", WIDTH], before)


def model_of(
    nodes: list[onnx.NodeProto], weights: list[TensorProto], shape: list[str | int], output: str
) -> onnx.ModelProto:
    """Return a model whose output has its input's shape, with shapes inferred."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


if __name__ == "__main__":
    main()
