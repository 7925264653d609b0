"""Steps of random models that hold weights or products: layers, normalizations and attention."""

import numpy as np

from tests.properties.random_graphs import HIGHEST_DEGREE, SENTINELS, Builder, Tensor

ROW, SEQUENCE, IMAGE, VOLUME = 2, 3, 4, 5
"""How many axes they have."""


def conv(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE, VOLUME)
    if x is None:
        return
    channels, *sizes = x.shape
    given = b.one_of(2, 3, 4)
    kernel = [b.one_of(1, min(3, size)) for size in sizes]
    group = 1
    if b.random.random() < 0.4:  # depthwise
        group = given = channels
    pads = [b.one_of(0, 1) for _ in range(2 * len(sizes))]
    stride = [b.one_of(1, 1, 2) for _ in sizes]
    weight = b.weight(given, channels // group, *kernel, summed=channels // group * int(np.prod(kernel)))
    inputs = [x.name, weight] + ([b.weight(given)] if b.chance() else [])
    ends = zip(sizes, pads[: len(sizes)], pads[len(sizes) :], kernel, stride, strict=True)
    shape = tuple((size + low + high - k) // s + 1 for size, low, high, k, s in ends)
    b.give(x, "Conv", inputs, (given, *shape), kernel_shape=kernel, pads=pads, strides=stride, group=group)


def conv_transpose(b: Builder) -> None:
    x = b.pick(IMAGE)
    if x is None or max(x.shape[1:]) > 6:
        return
    channels, *sizes = x.shape
    weight = b.weight(channels, 3, 2, 2, summed=channels)
    b.give(x, "ConvTranspose", [x.name, weight], (3, *(2 * size for size in sizes)), strides=[2, 2])


def matmul(b: Builder) -> None:
    x = b.pick(ROW, SEQUENCE, IMAGE)
    if x is None:
        return
    width, given = x.shape[-1], b.one_of(4, 6, 8)
    product = b.add("MatMul", [x.name, b.weight(width, given, summed=width)])[0]
    b.tensors.append(Tensor(product, (*x.shape[:-1], given), x.degree))
    if b.chance():
        b.give(x, "Add", [product, b.weight(given)], (*x.shape[:-1], given))


def matmul_left(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE)
    if x is None:
        return
    given = b.one_of(2, 3, 4)
    weight = b.weight(given, x.shape[-2], summed=x.shape[-2])
    b.give(x, "MatMul", [weight, x.name], (*x.shape[:-2], given, x.shape[-1]))


def matmul_of_two(b: Builder) -> None:
    x = b.pick(SEQUENCE)
    if x is None:
        return
    z = b.like(x)
    if x.degree + z.degree > HIGHEST_DEGREE:
        return
    turned = b.add("Transpose", [z.name], perm=[0, 2, 1])[0]
    product = b.add("MatMul", [x.name, turned])[0]
    scaled = b.add("Mul", [product, b.constant(np.float32(1 / np.sqrt(x.shape[1])))])[0]
    b.tensors.append(Tensor(scaled, (x.shape[0], x.shape[0]), x.degree + z.degree))


def gemm(b: Builder) -> None:
    x = b.pick(ROW)
    if x is None:
        return
    width, given, turned = x.shape[0], b.one_of(4, 6, 8), b.one_of(0, 1)
    weight = b.weight(*((given, width) if turned else (width, given)), summed=width)
    inputs = [x.name, weight] + ([b.weight(given)] if b.chance() else [])
    alpha, beta = float(b.random.choice([1.0, 0.5])), float(b.random.choice([1.0, 2.0]))
    b.give(x, "Gemm", inputs, (given,), transB=turned, alpha=alpha, beta=beta)


def einsum(b: Builder) -> None:
    x = b.pick(SEQUENCE)
    if x is None:
        return
    width, given = x.shape[1], b.one_of(4, 6)
    weight = b.weight(width, given, summed=width)
    b.give(x, "Einsum", [x.name, weight], (x.shape[0], given), equation="nsi,io->nso")


def recurrent(b: Builder) -> None:
    x = b.pick(SEQUENCE)
    if x is None:
        return
    op, gates = [("LSTM", 4), ("GRU", 3), ("RNN", 1)][b.one_of(0, 1, 2)]
    length, width = x.shape
    turned = b.add("Transpose", [x.name], perm=[1, 0, 2])[0]
    weights = [b.weight(1, gates * 4, size, summed=size) for size in (width, 4)]
    states = b.add(op, [turned, *weights], hidden_size=4)[0]
    flat = b.add("Squeeze", [states, b.integers(1)])[0]
    b.give(x, "Transpose", [flat], (length, 4), perm=[1, 0, 2])


def batch_norm(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE, VOLUME)
    if x is None:
        return
    channels = x.shape[0]
    variance = b.constant(b.random.uniform(0.5, 2.0, channels).astype(np.float32))
    b.give(x, "BatchNormalization", [x.name, *(b.weight(channels) for _ in range(3)), variance], x.shape)


def gate(b: Builder) -> None:
    """Squeeze-and-excitation."""
    x = b.pick(IMAGE)
    if x is None:
        return
    channels = x.shape[0]
    pooled = b.add("GlobalAveragePool", [x.name])[0]
    mixed = b.add("Conv", [pooled, b.weight(channels, channels, 1, 1, summed=channels)])[0]
    b.give(x, "Mul", [x.name, b.add("Sigmoid", [mixed])[0]], x.shape)


def normalize(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE)
    if x is None:
        return
    choices = ["LayerNormalization"] * (b.opset >= 17) + ["RMSNormalization"] * (b.opset >= 23)
    choices += ["InstanceNormalization"] + ["GroupNormalization"] * (b.opset >= 21)
    op = str(b.random.choice(choices))
    width = x.shape[0] if op in ("InstanceNormalization", "GroupNormalization") else x.shape[-1]
    inputs = [x.name, b.weight(width)] + ([b.weight(width)] if op != "RMSNormalization" else [])
    attributes = {"num_groups": 1} if op == "GroupNormalization" else {}
    b.tensors.append(Tensor(b.add(op, inputs, **attributes)[0], x.shape))


def masked_softmax(b: Builder) -> None:
    x = b.pick(SEQUENCE)
    if x is None:
        return
    scores = x.name
    if b.chance():
        mask = np.zeros(x.shape, np.float32)
        mask[:, x.shape[1] // 2 + 1 :] = b.random.choice(SENTINELS)
        scores = b.add("Add", [scores, b.constant(mask)])[0]
    b.tensors.append(Tensor(b.add("Softmax", [scores], axis=-1)[0], x.shape))


def attention(b: Builder) -> None:
    x = b.pick(SEQUENCE)
    if x is None:
        return
    length, width = x.shape
    heads = [b.add("MatMul", [x.name, b.weight(width, 4, summed=width)])[0] for _ in range(3)]
    b.give(x, "Attention", heads, (length, 4), q_num_heads=2, kv_num_heads=2)
