"""Time and SQNR of recurrent layers with int8 weights in ONNX Runtime, compared with the float layer.

python -m benchmarks.rnn            print the tables
python -m benchmarks.rnn --write    also write them to benchmarks/RESULTS.md
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.results_page import is_to_write, print_part, processor
from benchmarks.timing import median_ratio
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.tensors import Array
from ptq_cli.models.pair_operators import DYNAMIC_LSTM, KERNEL_PARAMETERS
from ptq_cli.placement.placed_graph import place
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.rules import OpRule, Target
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import decide_all
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import WeightSettings
from ptq_cli.runtime.session import Session

GATES = {"LSTM": 4, "GRU": 3}
ROUNDS = 25
LEAST_SECONDS = 2e-3  # A turn takes at least as long; a small layer runs several times in it


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a layer and of its input."""

    inputs: int
    hidden: int
    steps: int
    batch: int = 1
    directions: int = 1

    @property
    def weights(self) -> int:
        """How many weights an LSTM of these sizes has in a direction."""
        return 4 * self.hidden * (self.inputs + self.hidden)


SHAPES = [
    *(Shape(inputs=i, hidden=h, steps=s) for h, i, s in product((32, 128, 512), (64, 512), (1, 20, 160))),
    *(Shape(inputs=i, hidden=h, steps=20) for h, i in ((16, 16), (48, 64), (64, 64), (16, 512))),
    *(Shape(inputs=64, hidden=h, steps=20, batch=8) for h in (32, 128, 512)),
    *(Shape(inputs=64, hidden=h, steps=20, directions=2) for h in (32, 128, 512)),
    Shape(inputs=512, hidden=512, steps=20, batch=8, directions=2),
]
VARIED = [shape for shape in SHAPES if shape.batch == 1 and shape.steps == 20 and shape.inputs == 64]


def main() -> None:
    """Measure each shape with one thread, and print or write the tables."""
    write = is_to_write("Measure weights of recurrent layers in integers.")
    print_part("rnn", _tables(), write=write)


def _tables() -> Iterator[str]:
    yield from (
        f"`python -m benchmarks.rnn --write`, {processor()}, onnxruntime {onnxruntime.__version__}, "
        "one thread: processor time over that of the float layer, and SQNR of all steps against it, on "
        "normal noise. Integers: DynamicQuantizeLSTM. Product: int8 behind a Cast and a Mul, which are "
        "computed once, at loading. Dequantized: int8 behind a DequantizeLinear, which runs each time.",
        "",
        "| layer | directions, inputs, hidden, steps, batch | weights in a direction | integers | product "
        "| dequantized |",
        "| --- | --- | --- | --- | --- | --- |",
    )
    yield from (_row("LSTM", shape) for shape in SHAPES)
    yield from (_row("GRU", shape) for shape in VARIED)
    yield from (
        "",
        "DynamicQuantizeLSTM with other scales and weights, one direction, 64 inputs, 20 steps:",
        "",
        "| hidden | int8, per channel | int8, one scale | uint8, per channel |",
        "| --- | --- | --- | --- |",
    )
    yield from (_variants(shape) for shape in VARIED if shape.directions == 1)


def _row(op: str, shape: Shape) -> str:
    model = _model(op, shape)
    target = load_target("ort-cpu")
    rule = target.op[op]
    forms = {
        "product": _quantized(model, _with(target, op, replace(rule, kernel=""))),
        "dequantized": _quantized(model, load_target("generic")),
    }
    if op == "LSTM":
        integers = _quantized(model, _with(target, op, replace(rule, kernel_from=0)))
        forms = {"integers": integers, **forms}
    found = _measured(model, forms, shape)
    sizes = f"{shape.directions}, {shape.inputs}, {shape.hidden}, {shape.steps}, {shape.batch}"
    weights = shape.weights * GATES[op] // GATES["LSTM"]
    cells = (found.get(name, "-") for name in ("integers", "product", "dequantized"))
    return f"| {op} | {sizes} | {weights:,} | {' | '.join(cells)} |"


def _variants(shape: Shape) -> str:
    model = _model("LSTM", shape)
    target = load_target("ort-cpu")
    target = _with(target, "LSTM", replace(target.op["LSTM"], kernel_from=0))
    channels = _quantized(model, target)
    forms = {
        "channels": channels,
        "one": _quantized(model, target, "tensor"),
        "unsigned": _unsigned(channels),
    }
    return f"| {shape.hidden} | {' | '.join(_measured(model, forms, shape).values())} |"


def _with(target: Target, op: str, rule: OpRule) -> Target:
    return replace(target, op={**target.op, op: rule})


def _measured(model: ir.Model, forms: Mapping[str, ir.Model], shape: Shape) -> dict[str, str]:
    """Return the time over that of the float model, and the SQNR, of each form."""
    random = np.random.default_rng(1)
    size = (shape.steps, shape.batch, shape.inputs)
    inputs = {"x": random.standard_normal(size).astype(np.float32)}
    sessions = [Session(_serialized(item), threads=1) for item in (model, *forms.values())]
    reference, *times = _turns(sessions, inputs)
    wanted, *outputs = (session.run(inputs)[0] for session in sessions)
    return {
        name: f"{median_ratio(taken, reference):.2f}, {_sqnr_db(wanted, output):.0f} dB"
        for name, taken, output in zip(forms, times, outputs, strict=True)
    }


def _turns(sessions: Sequence[Session], inputs: Mapping[str, Array]) -> list[list[float]]:
    """Return the processor seconds of each session in each round, which other processes change little."""
    counts = []
    for session in sessions:
        session.run(inputs)
        counts.append(max(1, round(LEAST_SECONDS / _seconds(session, inputs, 3) * 3)))
    times = [
        [_seconds(session, inputs, count) / count for session, count in zip(sessions, counts, strict=True)]
        for _ in range(ROUNDS)
    ]
    return [list(column) for column in zip(*times, strict=True)]


def _seconds(session: Session, inputs: Mapping[str, Array], count: int) -> float:
    start = time.thread_time()
    for _ in range(count):
        session.run(inputs)
    return time.thread_time() - start


def _sqnr_db(wanted: Array, found: Array) -> float:
    signal = wanted.astype(np.float64)
    return float(10 * np.log10(np.sum(signal**2) / np.sum((signal - found.astype(np.float64)) ** 2)))


def _quantized(model: ir.Model, target: Target, granularity: str | None = None) -> ir.Model:
    recipe = replace(tensor_recipe(Recipe()), weights=WeightSettings(granularity=granularity))
    found = place(model, make_plan(model, target), target, recipe)
    activations: dict[str, QuantParameters] = {}  # there are none
    quantizers = found.quantizers.__getitem__
    parameters = decide_all(model, found.plan, lambda site: activations[site.tensor], quantizers)
    made = model.clone()
    quantize_in_place(made, found.plan, parameters)
    return made


def _unsigned(model: ir.Model) -> ir.Model:
    """Return a model whose integer LSTM has unsigned weights with zero points of 128."""
    made = model.clone()
    (node,) = (node for node in made.graph if node.op_type == DYNAMIC_LSTM)
    for index, scale in KERNEL_PARAMETERS.items():
        for value in (node.inputs[index], node.inputs[scale + 1]):
            assert value is not None and value.const_value is not None  # noqa: S101 - ptq wrote it
            array = (value.const_value.numpy().astype(np.int16) + 128).astype(np.uint8)
            value.const_value = ir.tensor(array, name=value.name)
            value.type = ir.TensorType(ir.DataType.UINT8)
    return made


def _serialized(model: ir.Model) -> bytes:
    content: bytes = ir.to_proto(model).SerializeToString()
    return content


def _model(op: str, shape: Shape) -> ir.Model:
    """Return a model with one layer; its weights are drawn as PyTorch draws them."""
    random = np.random.default_rng(0)
    rows, bound = GATES[op] * shape.hidden, shape.hidden**-0.5
    sizes = {"w": (rows, shape.inputs), "r": (rows, shape.hidden), "b": (2 * rows,)}
    constants = [
        numpy_helper.from_array(
            random.uniform(-bound, bound, (shape.directions, *size)).astype(np.float32), name
        )
        for name, size in sizes.items()
    ]
    direction = "bidirectional" if shape.directions == 2 else "forward"
    node = helper.make_node(
        op, ["x", "w", "r", "b"], ["y"], "layer", hidden_size=shape.hidden, direction=direction
    )
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "batch", shape.inputs])
    made = helper.make_tensor_value_info(
        "y", TensorProto.FLOAT, ["steps", shape.directions, "batch", shape.hidden]
    )
    graph = helper.make_graph([node], "layer", [given], [made], constants)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


if __name__ == "__main__":
    main()
