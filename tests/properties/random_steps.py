"""The steps of which random models are made: each adds an operator, or a few that belong together."""

from dataclasses import replace

import numpy as np
from onnx import TensorProto, helper

from tests.properties import random_layers as layers
from tests.properties.random_forms import FORMS
from tests.properties.random_graphs import BATCH, HIGHEST_DEGREE, Builder, Step, Tensor
from tests.properties.random_layers import IMAGE, ROW, SEQUENCE, VOLUME, Window

WORDS = "words"
# Of a Clip; those with None on one side alone.
BOUNDS = ((0.0, 6.0), (-1.0, 1.0), (0.1, 2.0), (0.0, None), (None, 1.0), (-0.5, None), (None, 0.0))


def sum_of_two(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE, VOLUME)
    if x is not None:
        z = b.like(x)
        op = "Add" if b.chance() else "Sub"
        b.tensors.append(Tensor(b.add(op, [x.name, z.name])[0], x.shape, max(x.degree, z.degree)))


def product_of_two(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE, VOLUME)
    if x is None:
        return
    z = b.like(x)
    if x.degree + z.degree <= HIGHEST_DEGREE:
        b.tensors.append(Tensor(b.add("Mul", [x.name, z.name])[0], x.shape, x.degree + z.degree))


def quotient(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE, VOLUME)
    if x is None:
        return
    size = b.add("Abs", [b.like(x).name])[0]
    divisor = b.add("Add", [size, b.constant(np.float32(1))])[0]
    b.give(x, "Div", [x.name, divisor], x.shape)


def with_constant(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE, VOLUME)
    if x is None:
        return
    op = str(b.random.choice(["Add", "Sub", "Mul", "Div"]))
    shape = [(), (1,), x.shape[-1:], (x.shape[0], *(1,) * (len(x.shape) - 1))][b.one_of(0, 1, 2, 3)]
    values = np.sign(b.random.standard_normal(shape)) * b.random.uniform(0.5, 1.5, shape)
    b.give(x, op, [x.name, b.constant(values.astype(np.float32))], x.shape)


def concat(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE, VOLUME)
    if x is not None and x.shape[0] <= 6:
        z = b.like(x)
        joined = b.add("Concat", [x.name, z.name], axis=1)[0]
        b.tensors.append(Tensor(joined, (2 * x.shape[0], *x.shape[1:]), max(x.degree, z.degree)))


def split(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None or x.shape[0] % 2:
        return
    sizes = [x.shape[0] // 2] * 2 if b.chance() else [1, x.shape[0] - 1]
    inputs, attributes = [x.name], {}
    if sizes[0] != sizes[1] and b.opset >= 13:
        inputs.append(b.integers(*sizes))
    elif b.opset >= 18:
        attributes = {"num_outputs": 2}
    elif b.opset < 13:
        attributes = {"split": sizes}
    for name, size in zip(b.add("Split", inputs, 2, axis=1, **attributes), sizes, strict=True):
        b.tensors.append(Tensor(name, (size, *x.shape[1:]), x.degree))


def slice_(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE, VOLUME)
    if x is not None and x.shape[-1] > 2:
        bounds = [b.integers(1), b.integers(x.shape[-1]), b.integers(-1)]
        b.give(x, "Slice", [x.name, *bounds], (*x.shape[:-1], x.shape[-1] - 1))


def pad(b: Builder) -> None:
    x = b.pick(IMAGE)
    if x is None or max(x.shape[1:]) > 8:
        return
    choices = ["constant", "constant", "edge"] + ["reflect"] * (min(x.shape[1:]) >= 2)
    mode = str(b.random.choice(choices + ["wrap"] * (b.opset >= 19)))
    shape = (x.shape[0], x.shape[1] + 2, x.shape[2] + 1)
    inputs = [x.name, b.integers(0, 0, 1, 0, 0, 0, 1, 1)]
    if mode == "constant" and b.chance():
        inputs.append(b.constant(np.float32(b.random.choice([0.0, 0.5, -1.0]))))
    b.give(x, "Pad", inputs, shape, mode=mode)


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
        [x.name, "" if b.opset >= 13 else b.constant(np.zeros(0, np.float32)), scales],
        (x.shape[0], 2 * x.shape[1], 2 * x.shape[2]),
        mode=mode,
        coordinate_transformation_mode=where,
        nearest_mode="floor",
    )


def gather(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE, VOLUME)
    if x is not None:
        b.give(x, "Gather", [x.name, b.integers(x.shape[0] - 1, 0)], (2, *x.shape[1:]), axis=1)


def embedding(b: Builder) -> None:
    """Rows of a table: the model takes word numbers besides."""
    if not any(info.name == WORDS for info in b.inputs):
        b.inputs.append(helper.make_tensor_value_info(WORDS, TensorProto.INT64, [BATCH, 4]))
    b.tensors.append(Tensor(b.add("Gather", [b.weight(5, 8), WORDS])[0], (4, 8)))


def reshape(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE, VOLUME)
    if x is not None:
        shape = (int(np.prod(x.shape)),) if b.chance() else (x.shape[0], int(np.prod(x.shape[1:])))
        b.give(x, "Reshape", [x.name, b.integers(0, -1, *shape[1:])], shape)


def transpose(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE, VOLUME)
    if x is not None:
        order = b.random.permutation(len(x.shape))
        shape = tuple(x.shape[axis] for axis in order)
        b.give(x, "Transpose", [x.name], shape, perm=[0, *(int(axis) + 1 for axis in order)])


def unsqueeze(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE)
    if x is not None:
        wide = b.over("Unsqueeze", x.name, [1], 13)
        b.tensors.append(Tensor(wide, (1, *x.shape), x.degree))
        if b.chance():
            b.tensors.append(Tensor(b.over("Squeeze", wide, [1], 13), x.shape, x.degree))


def pool(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE, VOLUME)
    if x is None or min(x.shape[1:]) < 2:
        return
    # ONNX Runtime 1.31 merges a Pad of zeros into a MaxPool, which pads with -inf, in float models too.
    padded = any(node.op_type == "Pad" and x.name in node.output for node in b.nodes)
    op = str(b.random.choice(["AveragePool", "AveragePool", "LpPool"] + ["MaxPool"] * (2 * (not padded))))
    window = Window.draw(b, x.shape[1:], [min(size, b.one_of(1, 2, 3)) for size in x.shape[1:]])
    given = {"AveragePool": 19, "MaxPool": 11, "LpPool": 18}
    if b.opset < given[op]:
        window = replace(window, dilations=[1] * len(window.kernel))
    is_up = window.auto == "NOTSET" and (op != "LpPool" or b.opset >= 18) and b.random.random() < 0.3
    # Before opset 22, ONNX's shapes count a last window that begins in the pads, which runtimes leave out.
    is_up = is_up and (b.opset >= 22 or not window.ends_in_pads(x.shape[1:]))
    attributes: dict[str, object] = {"ceil_mode": 1} if is_up else {}
    if op == "AveragePool" and b.chance():
        attributes["count_include_pad"] = 1
    if b.opset < given[op]:
        attributes |= {name: value for name, value in window.attributes.items() if name != "dilations"}
    else:
        attributes |= window.attributes
    b.give(x, op, [x.name], (x.shape[0], *window.sizes(x.shape[1:], up=is_up)), **attributes)


def mean(b: Builder) -> None:
    """Reduce, over one axis or some, kept or not."""
    x = b.pick(SEQUENCE, IMAGE, VOLUME)
    if x is None:
        return
    if x.rank >= IMAGE and b.chance():
        op = "GlobalAveragePool" if b.chance() else "GlobalMaxPool"
        b.give(x, op, [x.name], (x.shape[0], *[1] * (x.rank - 2)))
        return
    axes = list(range(2, x.rank)) if b.chance() else [b.one_of(*range(1, x.rank))]
    op = str(b.random.choice(["ReduceMean", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSum"]))
    if op == "ReduceSum" and np.prod([x.shape[axis - 1] for axis in axes]) > 12:
        op = "ReduceMean"
    kept = b.chance()
    shape = tuple(
        1 if axis in axes else size for axis, size in enumerate(x.shape, 1) if kept or axis not in axes
    )
    said = [axis - x.rank for axis in axes] if b.chance() else axes
    name = b.over(op, x.name, said, 13 if op == "ReduceSum" else 18, keepdims=int(kept))
    b.tensors.append(Tensor(name, shape, x.degree))


def activation(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE, VOLUME)
    if x is None:
        return
    choices = ["Relu", "Relu", "Clip", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "Tanh", "Elu"]
    choices += ["Selu", "Softplus", "Softsign", "ThresholdedRelu", "Celu"][: 5 if b.opset >= 12 else 4]
    choices += ["HardSwish"] * (b.opset >= 14) + ["Mish"] * (b.opset >= 18) + ["Gelu"] * (b.opset >= 20)
    op = str(b.random.choice(choices))
    inputs, attributes = [x.name], {}
    if op == "Clip":
        low, high = BOUNDS[int(b.random.integers(0, len(BOUNDS)))]
        inputs += ["" if bound is None else b.constant(np.float32(bound)) for bound in (low, high)]
        inputs = inputs[:2] if high is None else inputs
    elif op == "PRelu":
        shape = (x.shape[0], *[1] * (x.rank - 2)) if b.chance() else ()
        inputs.append(b.constant(np.float32(b.random.uniform(-0.3, 0.5, shape))))
    elif op == "Gelu" and b.chance():
        attributes["approximate"] = "tanh"
    elif op in ("LeakyRelu", "Elu", "HardSigmoid") and b.chance():
        attributes["alpha"] = float(b.random.choice([0.1, 0.3]))
    b.give(x, op, inputs, x.shape, **attributes)


def written_out(b: Builder) -> None:
    """SiLU, or GELU by erf."""
    x = b.pick(ROW, SEQUENCE, IMAGE, VOLUME)
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
    layers.matmul_batched,
    layers.shared_weight,
    layers.conv_transpose,
    layers.einsum,
    layers.recurrent,
    layers.batch_norm,
    layers.gate,
    layers.normalize,
    layers.masked_softmax,
)
OTHERS: tuple[Step, ...] = (
    *[activation] * 4,
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
    *[pool] * 2,
    mean,
    written_out,
)
# Each with the oldest opset that knows its operators; what comes several times is taken more often.
STEPS: list[tuple[Step, int]] = [*((step, 11) for step in (*LAYERS, *OTHERS, *FORMS)), (layers.attention, 23)]
