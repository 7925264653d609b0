"""Steps of random models that hold weights or products: layers, normalizations and attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.properties.random_graphs import HIGHEST_DEGREE, SENTINELS, Builder, Tensor

ROW, SEQUENCE, IMAGE, VOLUME = 2, 3, 4, 5  # How many axes they have


@dataclass(frozen=True)
class Window:
    """How a filter moves: of a convolution or a pooling."""

    kernel: list[int]
    strides: list[int]
    pads: list[int]
    dilations: list[int]
    auto: str = "NOTSET"

    @classmethod
    def draw(cls, b: Builder, sizes: Sequence[int], kernel: list[int]) -> "Window":
        """Return one that fits, with pads smaller than the kernel."""
        axes = range(len(kernel))
        fits = [2 * k - 1 <= size for k, size in zip(kernel, sizes, strict=True)]
        dilations = [2 if fit and b.random.random() < 0.2 else 1 for fit in fits]
        strides = [b.one_of(1, 1, 2) for _ in axes]
        if b.random.random() < 0.2:
            auto = str(b.random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
            return cls(kernel, strides, [0] * (2 * len(kernel)), [1] * len(kernel), auto)
        pads = [b.one_of(0, min(1, kernel[axis] - 1)) for axis in (*axes, *axes)]
        return cls(kernel, strides, pads, dilations)

    @property
    def attributes(self) -> dict[str, object]:
        """What a node says of it."""
        said: dict[str, object] = {"kernel_shape": self.kernel, "strides": self.strides}
        if self.auto != "NOTSET":
            return said | {"auto_pad": self.auto}
        return said | {"pads": self.pads, "dilations": self.dilations}

    def sizes(self, sizes: Sequence[int], *, up: bool = False) -> tuple[int, ...]:
        """Return the sizes of the result; where ``up``, rounded up, without a window that begins in pads."""
        if self.auto.startswith("SAME"):
            return tuple(-(-size // stride) for size, stride in zip(sizes, self.strides, strict=True))
        rooms = zip(self._rooms(sizes), self.strides, self._last(sizes), strict=True)
        return tuple((room // stride if not up else last) + 1 for room, stride, last in rooms)

    def ends_in_pads(self, sizes: Sequence[int]) -> bool:
        """Tell whether a window would begin in the pads at the end if sizes were rounded up."""
        rooms = zip(self._rooms(sizes), self.strides, self._last(sizes), strict=True)
        return any(-(-room // stride) != last for room, stride, last in rooms)

    def _rooms(self, sizes: Sequence[int]) -> list[int]:
        pairs = zip(self.pads[: len(self.kernel)], self.pads[len(self.kernel) :], strict=True)
        filters = [dilation * (k - 1) + 1 for dilation, k in zip(self.dilations, self.kernel, strict=True)]
        ends = zip(sizes, pairs, filters, strict=True)
        return [size + low + high - width for size, (low, high), width in ends]

    def _last(self, sizes: Sequence[int]) -> list[int]:
        """Return the number of the last window of each axis, rounded up."""
        found = []
        for axis, (room, stride) in enumerate(zip(self._rooms(sizes), self.strides, strict=True)):
            last = -(-room // stride)
            found.append(last - 1 if last * stride >= sizes[axis] + self.pads[axis] else last)
        return found


def conv(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE, VOLUME)
    if x is None:
        return
    channels, *sizes = x.shape
    given = b.one_of(2, 3, 4)
    kernel = [b.one_of(1, min(3, size)) for size in sizes]
    group = 1
    form = b.random.random()
    if form < 0.3:  # depthwise, with one or two filters a channel
        group, given = channels, channels * b.one_of(1, 1, 2)
    elif form < 0.5 and channels % 2 == 0:
        group, given = 2, 4
    window = Window.draw(b, sizes, kernel)
    weight = b.weight(given, channels // group, *kernel, summed=channels // group * int(np.prod(kernel)))
    inputs = [x.name, weight] + ([b.weight(given)] if b.chance() else [])
    b.give(x, "Conv", inputs, (given, *window.sizes(sizes)), group=group, **window.attributes)


def conv_transpose(b: Builder) -> None:
    x = b.pick(SEQUENCE, IMAGE, VOLUME)
    if x is None or max(x.shape[1:]) > 6:
        return
    channels, *sizes = x.shape
    group = channels if b.random.random() < 0.3 else 1
    given = 1 if group > 1 else 3
    axes = range(len(sizes))
    stride, kernel = b.one_of(1, 2), [b.one_of(2, 3) for _ in axes]
    pads = [b.one_of(0, 1) for _ in (*axes, *axes)]
    extra = [b.one_of(0, stride - 1) for _ in axes]
    shape = tuple(
        stride * (size - 1) + extra[axis] + kernel[axis] - pads[axis] - pads[axis + len(sizes)]
        for axis, size in enumerate(sizes)
    )
    if min(shape) < 1:
        return
    weight = b.weight(channels, given, *kernel, summed=max(1, channels // group) * 2)
    inputs = [x.name, weight] + ([b.weight(given * group)] if b.chance() else [])
    said = {"strides": [stride] * len(sizes), "pads": pads, "output_padding": extra, "group": group}
    b.give(x, "ConvTranspose", inputs, (given * group, *shape), kernel_shape=kernel, **said)


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
    shape = [(given,), (1, given), (1,), ()][b.one_of(0, 0, 1, 2, 3)]
    inputs = [x.name, weight] + ([b.weight(*shape)] if b.chance() else [])
    alpha, beta = float(b.random.choice([1.0, 0.5])), float(b.random.choice([1.0, 2.0]))
    said = {"transB": turned, "alpha": alpha, "beta": beta}
    if b.random.random() < 0.2:
        inputs[0], said["transA"] = b.add("Transpose", [x.name], perm=[1, 0])[0], 1
    b.give(x, "Gemm", inputs, (given,), **said)


def matmul_batched(b: Builder) -> None:
    """One matrix for each channel, or one for all with a leading axis."""
    x = b.pick(SEQUENCE, IMAGE)
    if x is None:
        return
    width, given = x.shape[-1], b.one_of(4, 6)
    leading = [(1,), (x.shape[0],)][b.one_of(0, 1)] if x.rank == IMAGE else (1,)
    b.give(x, "MatMul", [x.name, b.weight(*leading, width, given, summed=width)], (*x.shape[:-1], given))


def shared_weight(b: Builder) -> None:
    """Two layers of one matrix, on one value or two."""
    x = b.pick(ROW, SEQUENCE)
    if x is None:
        return
    z, width = b.like(x), x.shape[-1]
    weight = b.weight(width, width, summed=width)
    for item in (x, z):
        b.give(item, "MatMul", [item.name, weight], x.shape)
    if x.rank == ROW and b.chance():
        b.give(z, "Gemm", [z.name, weight, b.weight(width)], x.shape, transB=1)


def einsum(b: Builder) -> None:
    x = b.pick(SEQUENCE)
    if x is None or b.opset < 12:
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
    flat = b.over("Squeeze", states, [1], 13)
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
