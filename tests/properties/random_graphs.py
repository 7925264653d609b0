"""Random valid models: 1 to 40 operators of images, sequences and rows, with weights from the same seed.

Every operator keeps its values near 1 in size: weights are divided by the root of what they sum, a product of
two tensors is taken only of such that are no high powers of the inputs, and what is divided by is at least 1.
So the bound that the quantized model is held to is about quantization, and not about numbers that explode.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.core.tensors import Array

BATCH = 2
OPSETS = range(11, 24)
SHAPES = ((3, 6, 6), (3, 6, 6), (4, 8), (8,), (3, 10), (2, 3, 4, 4))
HIGHEST_DEGREE = 3
SENTINELS = (-1e4, -3.4e38, -np.inf, np.finfo(np.float32).min)


@dataclass(frozen=True)
class Tensor:
    """A float value of the graph: its name, its shape without the batch, and its degree in the inputs."""

    name: str
    shape: tuple[int, ...]
    degree: int = 1

    @property
    def rank(self) -> int:
        return len(self.shape) + 1


@dataclass(kw_only=True)
class Builder:
    """A model under construction."""

    random: np.random.Generator
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def constant(self, array: Array) -> str:
        """Add a constant: mostly an initializer, sometimes a node, or one behind an Identity."""
        name = f"c{len(self.constants) + len(self.nodes)}"
        tensor = numpy_helper.from_array(np.asarray(array), name)
        form = self.random.integers(0, 10)
        if form == 0:
            self.nodes.append(helper.make_node("Constant", [], [name], name, value=tensor))
            return name
        if form == 2 and self.opset >= 12 and not tensor.dims and tensor.data_type == TensorProto.FLOAT:
            self.nodes.append(helper.make_node("Constant", [], [name], name, value_float=float(array)))
            return name
        self.constants.append(tensor)
        if form == 1:
            self.nodes.append(helper.make_node("Identity", [name], [f"{name}.same"], f"{name}.same"))
            return f"{name}.same"
        return name

    def weight(self, *shape: int, summed: int = 1) -> str:
        values = self.random.standard_normal(shape) / np.sqrt(summed)
        return self.constant(values.astype(np.float32))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: object) -> list[str]:
        name = f"n{len(self.nodes)}"
        names = [name] if outputs == 1 else [f"{name}.{index}" for index in range(outputs)]
        self.read.update(inputs)
        self.nodes.append(helper.make_node(op, list(inputs), names, name, **attributes))
        return names

    def give(self, x: Tensor, op: str, inputs: Sequence[str], shape: tuple[int, ...], **attributes: object):
        """Add an operator with one result of the degree of ``x``, and keep the result."""
        self.tensors.append(Tensor(self.add(op, inputs, **attributes)[0], shape, x.degree))

    def over(self, op: str, x: str, axes: Sequence[int], since: int, **attributes: object) -> str:
        """Add an operator over axes, which are an attribute before the opset ``since``, and then an input."""
        if self.opset < since:
            return self.add(op, [x], axes=list(axes), **attributes)[0]
        return self.add(op, [x, self.integers(*axes)], **attributes)[0]

    def pick(self, *ranks: int) -> Tensor | None:
        """Return one of the values with so many axes, later ones more often."""
        fitting = [tensor for tensor in self.tensors if tensor.rank in ranks]
        return (
            fitting[-1 - int(self.random.integers(0, len(fitting)) * self.random.random())]
            if fitting
            else None
        )

    def like(self, x: Tensor) -> Tensor:
        """Return a value of the same shape, which may be the same."""
        fitting = [tensor for tensor in self.tensors if tensor.shape == x.shape]
        return fitting[int(self.random.integers(0, len(fitting)))]

    def chance(self) -> bool:
        return bool(self.random.random() < 0.5)

    def one_of(self, *choices: int) -> int:
        return int(self.random.choice(choices))


Step = Callable[[Builder], None]


def random_model(seed: int, count: int, steps: Sequence[tuple[Step, int]]) -> onnx.ModelProto:
    """Return a model of about ``count`` operators that the checker accepts.

    Args:
        seed: of everything.
        count: how many steps are taken; one makes one to four operators.
        steps: to choose from, each with the oldest opset that knows its operators.
    """
    random = np.random.default_rng(seed)
    builder = Builder(random=random, opset=int(random.choice(OPSETS)))
    for index in range(int(random.integers(1, 3))):
        shape = SHAPES[int(random.integers(0, len(SHAPES)))]
        builder.tensors.append(Tensor(f"x{index}", shape))
        sizes = ["N" if random.random() < 0.5 else BATCH, *shape]
        builder.inputs.append(helper.make_tensor_value_info(f"x{index}", TensorProto.FLOAT, sizes))
    usable = [step for step, opset in steps if opset <= builder.opset]
    tries = 0
    while len(builder.nodes) < count and tries < 20 * count:
        usable[int(random.integers(0, len(usable)))](builder)
        tries += 1
    return _finished(builder)


def _finished(builder: Builder) -> onnx.ModelProto:
    made = [tensor for tensor in builder.tensors if not tensor.name.startswith("x")]
    if not made:  # No step fitted the inputs.
        x = builder.tensors[0]
        builder.give(x, "Identity", [x.name], x.shape)
        made = builder.tensors[-1:]
    unread = [tensor for tensor in made if tensor.name not in builder.read]
    outputs = {tensor.name: tensor for tensor in [*unread, made[int(builder.random.integers(0, len(made)))]]}
    graph = helper.make_graph(
        builder.nodes,
        "random",
        builder.inputs,
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, *tensor.shape])
            for name, tensor in outputs.items()
        ],
        builder.constants,
    )
    opset = helper.make_opsetid("", builder.opset)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model
