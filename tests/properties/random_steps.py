"""The steps of which random models are made: each adds an operator, or a few that belong together."""

import numpy as np
from onnx import TensorProto, helper

from tests.properties import random_layers as layers
from tests.properties.random_graphs import BATCH, HIGHEST_DEGREE, Builder, Step, Tensor
from tests.properties.random_layers import IMAGE, ROW, SEQUENCE

WORDS = "words"


def sum_of_two(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is not None:
        z = b.like(x)
        op = "Add" if b.chance() else "Sub"
        b.tensors.append(Tensor(b.add(op, [x.name, z.name])[0], x.shape, max(x.degree, z.degree)))


def product_of_two(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None:
        return
    z = b.like(x)
    if x.degree + z.degree <= HIGHEST_DEGREE:
        b.tensors.append(Tensor(b.add("Mul", [x.name, z.name])[0], x.shape, x.degree + z.degree))


def quotient(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None:
        return
    size = b.add("Abs", [b.like(x).name])[0]
    divisor = b.add("Add", [size, b.constant(np.float32(1))])[0]
    b.give(x, "Div", [x.name, divisor], x.shape)


def with_constant(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None:
        return
    op = str(b.random.choice(["Add", "Sub", "Mul", "Div"]))
    shape = [(), (1,), x.shape[-1:], (x.shape[0], *(1,) * (len(x.shape) - 1))][b.one_of(0, 1, 2, 3)]
    values = np.sign(b.random.standard_normal(shape)) * b.random.uniform(0.5, 1.5, shape)
    b.give(x, op, [x.name, b.constant(values.astype(np.float32))], x.shape)


def concat(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE)
    if x is not None and x.shape[0] <= 6:
        z = b.like(x)
        joined = b.add("Concat", [x.name, z.name], axis=1)[0]
        b.tensors.append(Tensor(joined, (2 * x.shape[0], *x.shape[1:]), max(x.degree, z.degree)))


def split(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None or x.shape[0] % 2:
        return
    attributes = {"num_outputs": 2} if b.opset >= 18 else {}
    for name in b.add("Split", [x.name], 2, axis=1, **attributes):
        b.tensors.append(Tensor(name, (x.shape[0] // 2, *x.shape[1:]), x.degree))


def slice_(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is not None and x.shape[-1] > 2:
        bounds = [b.integers(1), b.integers(x.shape[-1]), b.integers(-1)]
        b.give(x, "Slice", [x.name, *bounds], (*x.shape[:-1], x.shape[-1] - 1))


def pad(b: Builder) -> None:
    x = b.pick(IMAGE)
    if x is None or max(x.shape[1:]) > 8:
        return
    mode = "constant" if b.chance() or min(x.shape[1:]) < 2 else "reflect"
    shape = (x.shape[0], x.shape[1] + 2, x.shape[2] + 1)
    b.give(x, "Pad", [x.name, b.integers(0, 0, 1, 0, 0, 0, 1, 1)], shape, mode=mode)


def resize(b: Builder) -> None:
    x = b.pick(IMAGE)
    if x is None or max(x.shape[1:]) > 4:
        return
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    mode = "nearest" if b.chance() else "linear"
    where = "asymmetric" if mode == "nearest" else "half_pixel"
    b.give(
        x,
        "Resize",
        [x.name, "", scales],
        (x.shape[0], 2 * x.shape[1], 2 * x.shape[2]),
        mode=mode,
        coordinate_transformation_mode=where,
        nearest_mode="floor",
    )


def gather(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE)
    if x is not None:
        b.give(x, "Gather", [x.name, b.integers(x.shape[0] - 1, 0)], (2, *x.shape[1:]), axis=1)


def embedding(b: Builder) -> None:
    """Rows of a table: the model takes word numbers besides."""
    if not any(info.name == WORDS for info in b.inputs):
        b.inputs.append(helper.make_tensor_value_info(WORDS, TensorProto.INT64, [BATCH, 4]))
    b.tensors.append(Tensor(b.add("Gather", [b.weight(5, 8), WORDS])[0], (4, 8)))


def reshape(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE)
    if x is not None:
        shape = (int(np.prod(x.shape)),) if b.chance() else (x.shape[0], int(np.prod(x.shape[1:])))
        b.give(x, "Reshape", [x.name, b.integers(0, -1, *shape[1:])], shape)


def transpose(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE)
    if x is not None:
        order = b.random.permutation(len(x.shape))
        shape = tuple(x.shape[axis] for axis in order)
        b.give(x, "Transpose", [x.name], shape, perm=[0, *(int(axis) + 1 for axis in order)])


def unsqueeze(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE)
    if x is not None:
        wide = b.add("Unsqueeze", [x.name, b.integers(1)])[0]
        b.tensors.append(Tensor(wide, (1, *x.shape), x.degree))
        if b.chance():
            b.give(x, "Squeeze", [wide, b.integers(1)], x.shape)


def pool(b: Builder) -> None:
    x = b.pick(IMAGE)
    if x is None or min(x.shape[1:]) < 2:
        return
    # ONNX Runtime 1.31 merges a Pad of zeros into a MaxPool, which pads with -inf, in float models too.
    padded = any(node.op_type == "Pad" and x.name in node.output for node in b.nodes)
    op = "MaxPool" if b.chance() and not padded else "AveragePool"
    shape = (x.shape[0], *(size - 1 for size in x.shape[1:]))
    b.give(x, op, [x.name], shape, kernel_shape=[2, 2])


def mean(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE)
    if x is None:
        return
    if x.rank == IMAGE and b.chance():
        b.give(x, "GlobalAveragePool", [x.name], (x.shape[0], 1, 1))
        return
    axes = list(range(2, x.rank))
    inputs, attributes = ([b.integers(*axes)], {}) if b.opset >= 18 else ([], {"axes": axes})
    kept = b.chance()
    shape = (x.shape[0], *(1 for _ in axes if kept))
    b.give(x, "ReduceMean", [x.name, *inputs], shape, keepdims=int(kept), **attributes)


def activation(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None:
        return
    choices = ["Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "Tanh", "Elu"]
    choices += ["HardSwish"] * (b.opset >= 14) + ["Gelu"] * (b.opset >= 20)
    op = str(b.random.choice(choices))
    inputs = [x.name]
    if op == "Clip":
        bounds = [(0.0, 6.0), (-1.0, 1.0), (0.1, 2.0)][b.one_of(0, 1, 2)]
        inputs += [b.constant(np.float32(bound)) for bound in bounds]
    if op == "PRelu":
        inputs.append(b.constant(np.float32(0.25)))
    b.give(x, op, inputs, x.shape)


def written_out(b: Builder) -> None:
    """SiLU, or GELU by erf."""
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None:
        return
    if b.chance():
        b.give(x, "Mul", [x.name, b.add("Sigmoid", [x.name])[0]], x.shape)
        return
    scaled = b.add("Div", [x.name, b.constant(np.float32(np.sqrt(2)))])[0]
    shifted = b.add("Add", [b.add("Erf", [scaled])[0], b.constant(np.float32(1))])[0]
    product = b.add("Mul", [x.name, shifted])[0]
    b.give(x, "Mul", [product, b.constant(np.float32(0.5))], x.shape)


LAYERS: tuple[Step, ...] = (
    *[layers.conv] * 3,
    *[layers.matmul] * 2,
    *[layers.gemm] * 2,
    layers.matmul_of_two,
    layers.matmul_left,
    layers.conv_transpose,
    layers.einsum,
    layers.recurrent,
    layers.batch_norm,
    layers.gate,
    layers.normalize,
    layers.masked_softmax,
)
OTHERS: tuple[Step, ...] = (
    *[activation] * 2,
    sum_of_two,
    product_of_two,
    quotient,
    with_constant,
    concat,
    split,
    slice_,
    pad,
    resize,
    gather,
    embedding,
    reshape,
    transpose,
    unsqueeze,
    pool,
    mean,
    written_out,
)
STEPS: list[tuple[Step, int]] = [*((step, 13) for step in (*LAYERS, *OTHERS)), (layers.attention, 23)]
"""Each with the oldest opset that knows its operators; what comes several times is taken more often."""
