"""Time of ONNX Runtime's merged kernel for Add and LayerNormalization, compared with the two kernels.

python -m benchmarks.layer_norm            print the table
python -m benchmarks.layer_norm --write    also write it to benchmarks/RESULTS.md
"""

from collections.abc import Iterator

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.results_page import is_to_write, print_part, processor
from ptq_cli.evaluation.latency import Scenario, measure_latencies

SHAPES = ((1, 64, 256), (8, 64, 256), (1, 64, 768), (8, 64, 768), (8, 256, 768))
RUNS = 60


def main() -> None:
    """Measure each shape with one thread and with two, and print or write the table."""
    write = is_to_write("Measure Add before LayerNormalization against Sum.")
    print_part("layer_norm", _table(), write=write)


def _table() -> Iterator[str]:
    yield from (
        f"`python -m benchmarks.layer_norm --write`, {processor()}, onnxruntime "
        f"{onnxruntime.__version__}: the time of Add and LayerNormalization, which are merged into one "
        "kernel, over that of Sum and LayerNormalization, which are not.",
        "",
        "| batch, length, width | one thread | two threads |",
        "| --- | --- | --- |",
    )
    for shape in SHAPES:
        ratios = [f"{_ratio(shape, threads):.1f}" for threads in (1, 2)]
        yield f"| {', '.join(map(str, shape))} | {' | '.join(ratios)} |"


def _ratio(shape: tuple[int, int, int], threads: int) -> float:
    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal(shape).astype(np.float32) for name in ("x", "skip")}
    models = [_model(operator, shape[-1]) for operator in ("Sum", "Add")]
    return measure_latencies(models, [Scenario([inputs], threads)], runs=RUNS)[0].ratios[0].value


def _model(operator: str, width: int) -> bytes:
    """Return a serialized model that applies LayerNormalization to the sum of two inputs."""
    nodes = [
        helper.make_node(operator, ["x", "skip"], ["added"], "add"),
        helper.make_node("LayerNormalization", ["added", "scale", "bias"], ["y"], "norm", axis=-1),
    ]
    shape: list[str | int | None] = ["batch", "length", width]
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "skip")]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    constants = [
        numpy_helper.from_array(np.full(width, value, np.float32), name)
        for name, value in (("scale", 1), ("bias", 0))
    ]
    graph = helper.make_graph(nodes, "add_and_norm", given, made, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    content: bytes = model.SerializeToString()
    return content


if __name__ == "__main__":
    main()
