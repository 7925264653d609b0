"""Steps of random models: nested graphs, blocks of several operators, what exporters write around layers."""

import numpy as np
from onnx import TensorProto, helper

from tests.properties.random_graphs import HIGHEST_DEGREE, Builder, Tensor
from tests.properties.random_layers import IMAGE, ROW, SEQUENCE, VOLUME

FLOAT = TensorProto.FLOAT


def dropout(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None:
        return
    if b.opset < 12:
        b.give(x, "Dropout", [x.name], x.shape, ratio=0.3)
    else:
        b.give(x, "Dropout", [x.name, b.constant(np.float32(0.3))], x.shape)


def cast(b: Builder) -> None:
    """To the type that it has, or to double and back."""
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None:
        return
    name = x.name if b.chance() else b.add("Cast", [x.name], to=TensorProto.DOUBLE)[0]
    b.give(x, "Cast", [name], x.shape, to=FLOAT)


def where(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None:
        return
    if b.chance():  # A leaky function, written out.
        small = b.add("Mul", [x.name, b.constant(np.float32(0.1))])[0]
        positive = b.add("Greater", [x.name, b.constant(np.float32(0))])[0]
        b.give(x, "Where", [positive, x.name, small], x.shape)
        return
    mask = b.constant(b.random.random(x.shape) < 0.5)
    b.give(x, "Where", [mask, x.name, b.constant(np.float32(b.random.choice([0.0, -1.0])))], x.shape)


def several(b: Builder) -> None:
    """Variadic operators."""
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None:
        return
    others = [b.like(x) for _ in range(b.one_of(1, 2))]
    degree = max(item.degree for item in (x, *others))
    op = str(b.random.choice(["Sum", "Mean", "Max", "Min"]))
    name = b.add(op, [x.name, *(item.name for item in others)])[0]
    b.tensors.append(Tensor(name, x.shape, degree))


def broadcast(b: Builder) -> None:
    """A value and its own mean, or its last row."""
    x = b.pick(SEQUENCE, IMAGE)
    if x is None:
        return
    axis = x.rank - 1
    small = b.over("ReduceMean", x.name, [axis], 18, keepdims=1)
    op = str(b.random.choice(["Add", "Sub"]))
    b.give(x, op, [x.name, small] if b.chance() or op == "Sub" else [small, x.name], x.shape)


def elementwise(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None:
        return
    op = str(b.random.choice(["Abs", "Neg", "Sqrt", "Exp", "Sin", "Pow", "Reciprocal", "Identity", "Log"]))
    if op in ("Sqrt", "Reciprocal", "Log"):
        size = b.add("Abs", [x.name])[0]
        b.give(x, op, [b.add("Add", [size, b.constant(np.float32(1))])[0]], x.shape)
    elif op == "Exp":
        b.give(x, op, [b.add("Tanh", [x.name])[0]], x.shape)
    elif op == "Pow":
        if 2 * x.degree <= HIGHEST_DEGREE:
            power = b.add(op, [x.name, b.constant(np.float32(2))])[0]
            b.tensors.append(Tensor(power, x.shape, 2 * x.degree))
    else:
        b.give(x, op, [x.name], x.shape)


def moved(b: Builder) -> None:
    """Moves of values: Flatten, Tile, DepthToSpace and SpaceToDepth, Expand."""
    x = b.pick(SEQUENCE, IMAGE)
    if x is None or int(np.prod(x.shape)) > 200:
        return
    channels, *sizes = x.shape
    if x.rank == IMAGE and channels % 4 == 0 and b.chance():
        mode = str(b.random.choice(["DCR", "CRD"]))
        shape = (channels // 4, 2 * sizes[0], 2 * sizes[1])
        b.give(x, "DepthToSpace", [x.name], shape, blocksize=2, mode=mode)
    elif x.rank == IMAGE and not any(size % 2 for size in sizes):
        b.give(x, "SpaceToDepth", [x.name], (4 * channels, sizes[0] // 2, sizes[1] // 2), blocksize=2)
    elif b.chance():
        b.give(x, "Tile", [x.name, b.integers(1, 2, *[1] * len(sizes))], (2 * channels, *sizes))
    else:
        b.give(x, "Flatten", [x.name], (int(np.prod(x.shape)),), axis=b.one_of(1, 1 - x.rank))


def reshape_as_exported(b: Builder) -> None:
    """A Reshape whose first size is taken from the shape of the value."""
    x = b.pick(SEQUENCE, IMAGE)
    if x is None:
        return
    shape = b.add("Shape", [x.name])[0]
    size = b.add("Gather", [shape, b.constant(np.int64(0))], axis=0)[0]
    first = b.over("Unsqueeze", size, [0], 13)
    sizes = b.add("Concat", [first, b.integers(-1)], axis=0)[0]
    b.give(x, "Reshape", [x.name, sizes], (int(np.prod(x.shape)),))


def residual(b: Builder) -> None:
    x = b.pick(IMAGE)
    if x is None:
        return
    channels, name = x.shape[0], x.name
    for index in range(2):
        weight = b.weight(channels, channels, 3, 3, summed=9 * channels)
        name = b.add("Conv", [name, weight, b.weight(channels)], pads=[1, 1, 1, 1])[0]
        if index == 0 or b.chance():
            name = b.add(str(b.random.choice(["Relu", "LeakyRelu", "Sigmoid"])), [name])[0]
    total = b.add("Add", [name, x.name] if b.chance() else [x.name, name])[0]
    b.give(x, "Relu", [total], x.shape)


def heads(b: Builder) -> None:
    """Attention of two heads, written out."""
    x = b.pick(SEQUENCE)
    if x is None:
        return
    length, width = x.shape
    shape = b.integers(0, length, 2, 2)
    parts = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        mapped = b.add("MatMul", [x.name, b.weight(width, 4, summed=width)])[0]
        parts.append(b.add("Transpose", [b.add("Reshape", [mapped, shape])[0]], perm=order)[0])
    scores = b.add("Div", [b.add("MatMul", parts[:2])[0], b.constant(np.float32(np.sqrt(2)))])[0]
    chances = b.add("Softmax", [scores], axis=-1)[0]
    mixed = b.add("Transpose", [b.add("MatMul", [chances, parts[2]])[0]], perm=[0, 2, 1, 3])[0]
    b.give(x, "Reshape", [mixed, b.integers(0, length, 4)], (length, 4))


def softmax(b: Builder) -> None:
    """Over any axis; before opset 13 over all from there on."""
    x = b.pick(SEQUENCE, IMAGE)
    if x is None:
        return
    op = str(b.random.choice(["Softmax", "Softmax", "LogSoftmax"]))
    b.tensors.append(Tensor(b.add(op, [x.name], axis=b.one_of(*range(1, x.rank)))[0], x.shape))


def normalized(b: Builder) -> None:
    """LRN, LpNormalization, or a LayerNormalization that is written out."""
    x = b.pick(SEQUENCE, IMAGE, VOLUME)
    if x is None:
        return
    if x.rank == IMAGE and b.chance():
        b.give(x, "LRN", [x.name], x.shape, size=3)
        return
    center = b.over("ReduceMean", x.name, [-1], 18, keepdims=1)
    apart = b.add("Sub", [x.name, center])[0]
    square = b.add("Mul", [apart, apart])[0]
    variance = b.over("ReduceMean", square, [-1], 18, keepdims=1)
    root = b.add("Sqrt", [b.add("Add", [variance, b.constant(np.float32(1e-2))])[0]])[0]
    scaled = b.add("Mul", [b.add("Div", [apart, root])[0], b.weight(x.shape[-1])])[0]
    b.tensors.append(Tensor(b.add("Add", [scaled, b.weight(x.shape[-1])])[0], x.shape))


def _weight_inside(b: Builder, name: str, width: int) -> tuple[str, list[TensorProto]]:
    if b.chance():
        return b.weight(width, width, summed=width), []
    array = (b.random.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
    return name, [helper.make_tensor(name, FLOAT, array.shape, array.tobytes(), raw=True)]


def _truth(b: Builder, x: Tensor) -> str:
    """Return a truth that no tool can know beforehand, and that no rounding changes."""
    square = b.add("Mul", [x.name, x.name])[0]
    total = b.over("ReduceSum", square, range(x.rank), 13, keepdims=0)
    return b.add(str(b.random.choice(["Greater", "Less"])), [total, b.constant(np.float32(-1))])[0]


def if_(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE)
    if x is None:
        return
    width, tag, branches = x.shape[-1], f"b{len(b.nodes)}", []
    for side in ("then", "else"):
        weight, own = _weight_inside(b, f"{tag}.{side}.w", width)
        names = [f"{tag}.{side}.{index}" for index in range(2)]
        nodes = [
            helper.make_node("MatMul", [x.name, weight], names[:1], f"{tag}.product"),
            helper.make_node("Relu" if b.chance() else "Tanh", names[:1], names[1:], f"{tag}.{side}"),
        ]
        out = helper.make_tensor_value_info(names[1], FLOAT, [None, *x.shape])
        branches.append(helper.make_graph(nodes, side, [], [out], own))
    b.give(x, "If", [_truth(b, x)], x.shape, then_branch=branches[0], else_branch=branches[1])


def loop(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE)
    if x is None:
        return
    tag, width = f"l{len(b.nodes)}", x.shape[-1]
    weight, own = _weight_inside(b, f"{tag}.w", width)
    state = helper.make_tensor_value_info(f"{tag}.state", FLOAT, [None, *x.shape])
    after = helper.make_tensor_value_info(f"{tag}.after", FLOAT, [None, *x.shape])
    inside = helper.make_tensor_value_info(f"{tag}.go", TensorProto.BOOL, [])
    outside = helper.make_tensor_value_info(f"{tag}.on", TensorProto.BOOL, [])
    step = helper.make_tensor_value_info(f"{tag}.step", TensorProto.INT64, [])
    nodes = [
        helper.make_node("Identity", [f"{tag}.go"], [f"{tag}.on"], f"{tag}.same"),
        helper.make_node("MatMul", [f"{tag}.state", weight], [f"{tag}.product"], f"{tag}.product"),
        helper.make_node("Tanh", [f"{tag}.product"], [f"{tag}.after"], f"{tag}.tanh"),
    ]
    body = helper.make_graph(nodes, "body", [step, inside, state], [outside, after], own)
    # Without a condition, ONNX's reference takes no step at all.
    times, go = b.constant(np.int64(b.one_of(1, 2, 3))), b.constant(np.bool_(True))
    b.give(x, "Loop", [times, go, x.name], x.shape, body=body)


def scan(b: Builder) -> None:
    x = b.pick(SEQUENCE)
    if x is None:
        return
    tag, width = f"s{len(b.nodes)}", x.shape[1]
    weight, own = _weight_inside(b, f"{tag}.w", width)
    turned = b.add("Transpose", [x.name], perm=[1, 0, 2])[0]
    first = b.add("Slice", [turned, b.integers(0), b.integers(1), b.integers(0)])[0]
    start = b.over("Squeeze", first, [0], 13)
    infos = {
        name: helper.make_tensor_value_info(f"{tag}.{name}", FLOAT, [None, width])
        for name in ("state", "part", "after", "seen")
    }
    nodes = [
        helper.make_node("MatMul", [f"{tag}.part", weight], [f"{tag}.product"], f"{tag}.product"),
        helper.make_node("Add", [f"{tag}.product", f"{tag}.state"], [f"{tag}.sum"], f"{tag}.sum"),
        helper.make_node("Tanh", [f"{tag}.sum"], [f"{tag}.after"], f"{tag}.tanh"),
        helper.make_node("Identity", [f"{tag}.after"], [f"{tag}.seen"], f"{tag}.same"),
    ]
    body = helper.make_graph(
        nodes, "body", [infos["state"], infos["part"]], [infos["after"], infos["seen"]], own
    )
    # ONNX's reference knows no other axis than the first.
    last, stacked = b.add("Scan", [start, turned], 2, body=body, num_scan_inputs=1)
    b.tensors.append(Tensor(last, (width,), x.degree))
    b.give(x, "Transpose", [stacked], x.shape, perm=[1, 0, 2])


FORMS = (
    dropout,
    cast,
    where,
    several,
    broadcast,
    elementwise,
    moved,
    reshape_as_exported,
    *[residual] * 2,
    heads,
    softmax,
    normalized,
    if_,
    loop,
    scan,
)
