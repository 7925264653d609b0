"""Models and data of typical sizes, made from a seed: nothing is downloaded.

Weights are random, scaled so that activations neither vanish nor explode. The cost of a calibration depends
on the shapes and on the distribution of the values, not on what the model has learned.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper, save

OPSET = 20
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # Width, blocks and stride of ResNet-50's stages
SMALL_STAGES = ((16, 9, 1), (32, 9, 2), (64, 9, 2))  # The same of ResNet-56's
DEEP_STAGES = ((16, 134, 1), (32, 134, 2), (64, 133, 2))  # The same with 1,207 layers that compute
LAYERS, WIDTH, HEADS, INNER, VOCABULARY, POSITIONS = 6, 768, 12, 3072, 1000, 512


Shape = list[str | int | None]
Kind = tuple[int, Shape]


class _Graph:
    """Nodes and constants under construction; each method returns its output's name."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.random = np.random.default_rng(0)

    def constant(self, values: npt.NDArray[np.generic]) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, shape: Sequence[int], fan_in: int, gain: float) -> str:
        values = self.random.standard_normal(shape) * (gain / fan_in) ** 0.5
        return self.constant(values.astype(np.float32))

    def add(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def conv(self, x: str, sizes: tuple[int, int, int], stride: int = 1, gain: float = 2.0) -> str:
        channels, filters, kernel = sizes
        weight = self.weight((filters, channels, kernel, kernel), channels * kernel**2, gain)
        bias = self.constant(self.random.normal(0, 0.1, filters).astype(np.float32))
        pads = [kernel // 2] * 4
        return self.add("Conv", [x, weight, bias], strides=[stride] * 2, pads=pads)

    def linear(self, x: str, taken: int, given: int, gain: float = 1.0) -> str:
        bias = self.constant(np.zeros(given, np.float32))
        return self.add("Add", [self.add("MatMul", [x, self.weight((taken, given), taken, gain)]), bias])

    def product(self, x: str, taken: int, given: int) -> str:
        # Heavy tails, as in trained models: a block's largest weight is far above the others.
        values = self.random.standard_t(4, (taken, given)) * (0.5 / taken) ** 0.5
        return self.add("MatMul", [x, self.constant(values.astype(np.float32))])

    @property
    def parameters(self) -> int:
        return sum(int(np.prod(item.dims)) for item in self.constants)

    def norm(self, x: str) -> str:
        scale = self.constant(self.random.normal(1, 0.1, WIDTH).astype(np.float32))
        return self.add("LayerNormalization", [x, scale, self.constant(np.zeros(WIDTH, np.float32))], axis=-1)

    def save(self, path: Path, inputs: dict[str, Kind], output: str, shape: Shape) -> None:
        taken = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
        given = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, "g", taken, given, self.constants)
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10), path)


def write_resnet50(path: Path) -> None:
    """Write a model of ResNet-50's shape: input ``image`` float32 [batch, 3, 224, 224].

    Source:
        He et al., Deep Residual Learning for Image Recognition, table 1; BatchNorm is folded already.
    """
    graph = _Graph()
    x = graph.add("Relu", [graph.conv("image", (3, 64, 7), 2)])
    x = graph.add("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for width, blocks, stride in STAGES:
        for block in range(blocks):
            step = stride if block == 0 else 1
            inner = graph.add("Relu", [graph.conv(x, (channels, width, 1))])
            inner = graph.add("Relu", [graph.conv(inner, (width, width, 3), step)])
            # A small gain, so that the sum over the blocks stays in range.
            inner = graph.conv(inner, (width, 4 * width, 1), gain=0.2)
            if block == 0:
                x = graph.conv(x, (channels, 4 * width, 1), step, gain=1.0)
            x = graph.add("Relu", [graph.add("Add", [x, inner])])
            channels = 4 * width
    x = graph.add("Flatten", [graph.add("GlobalAveragePool", [x])])
    weight, bias = graph.weight((channels, 1000), channels, 1.0), graph.constant(np.zeros(1000, np.float32))
    x = graph.add("Gemm", [x, weight, bias])
    graph.save(path, {"image": (TensorProto.FLOAT, ["batch", 3, 224, 224])}, x, ["batch", 1000])


def write_resnet56(path: Path) -> None:
    """Write a model of ResNet-56's shape, for small images: input ``image`` float32 [batch, 3, 32, 32].

    Source:
        He et al., Deep Residual Learning for Image Recognition, section 4.2, n = 9, with a 1x1 convolution
        where the shape changes; BatchNorm is folded already.
    """
    # A small gain, so that the sum over the blocks stays in range.
    _write_small_resnet(path, SMALL_STAGES, itertools.repeat(0.2))


def write_deep_resnet(path: Path) -> None:
    """Write a very deep model like ResNet-56, whose blocks add little, some much less than others."""
    random = np.random.default_rng(5)
    _write_small_resnet(path, DEEP_STAGES, iter(0.02 * np.exp(random.normal(0, 1, 401))))


def _write_small_resnet(path: Path, stages: Sequence[tuple[int, int, int]], gains: Iterator[float]) -> None:
    graph = _Graph()
    x = graph.add("Relu", [graph.conv("image", (3, 16, 3))])
    channels = 16
    for width, blocks, stride in stages:
        for block in range(blocks):
            step = stride if block == 0 else 1
            inner = graph.add("Relu", [graph.conv(x, (channels, width, 3), step)])
            inner = graph.conv(inner, (width, width, 3), gain=next(gains))
            if channels != width:
                x = graph.conv(x, (channels, width, 1), step, gain=1.0)
            x = graph.add("Relu", [graph.add("Add", [x, inner])])
            channels = width
    x = graph.add("Flatten", [graph.add("GlobalAveragePool", [x])])
    weight, bias = graph.weight((channels, 10), channels, 1.0), graph.constant(np.zeros(10, np.float32))
    x = graph.add("Gemm", [x, weight, bias])
    graph.save(path, {"image": (TensorProto.FLOAT, ["batch", 3, 32, 32])}, x, ["batch", 10])


def write_bert(path: Path, *, masked: bool = False) -> None:
    """Write a model of BERT's shape with 6 layers, as DistilBERT: input ``ids`` int64 [batch, length].

    A masked one also takes ``mask`` int64 [batch, length], 0 where a sequence has ended, and adds the
    smallest float32 to the scores there, as exporters of transformers do.

    Source:
        Devlin et al., BERT, section 3: 768 wide, 12 heads, 3072 inside.
    """
    graph = _Graph()
    words = graph.add("Gather", [graph.weight((VOCABULARY, WIDTH), 1, 0.1), "ids"])
    length = graph.add("Shape", ["ids"], start=1, end=2)
    zero = graph.constant(np.zeros(1, np.int64))
    positions = graph.add("Slice", [graph.weight((POSITIONS, WIDTH), 1, 0.1), zero, length])
    x = graph.norm(graph.add("Add", [words, positions]))
    mask = _mask(graph) if masked else None
    for _ in range(LAYERS):
        x = graph.norm(graph.add("Add", [x, _attention(graph, x, mask)]))
        inner = graph.linear(x, WIDTH, INNER)
        # Gelu as exporters wrote it before opset 20, so that calibrators see its parts.
        scaled = graph.add("Div", [inner, graph.constant(np.array(2**0.5, np.float32))])
        inside = graph.add("Add", [graph.add("Erf", [scaled]), graph.constant(np.array(1, np.float32))])
        gelu = graph.add(
            "Mul", [graph.add("Mul", [inner, inside]), graph.constant(np.array(0.5, np.float32))]
        )
        x = graph.norm(graph.add("Add", [x, graph.linear(gelu, INNER, WIDTH)]))
    taken: dict[str, Kind] = {"ids": (TensorProto.INT64, ["batch", "length"])}
    if masked:
        taken["mask"] = (TensorProto.INT64, ["batch", "length"])
    graph.save(path, taken, x, ["batch", "length", WIDTH])


def _mask(graph: _Graph) -> str:
    kept = graph.add("Cast", ["mask"], to=TensorProto.FLOAT)
    ended = graph.add("Sub", [graph.constant(np.array(1, np.float32)), kept])
    huge = graph.add("Mul", [ended, graph.constant(np.array(np.finfo(np.float32).min))])
    return graph.add("Unsqueeze", [huge, graph.constant(np.array([1, 2], np.int64))])


def _attention(graph: _Graph, x: str, mask: str | None) -> str:
    heads = graph.constant(np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))

    def split(order: list[int]) -> str:
        return graph.add(
            "Transpose", [graph.add("Reshape", [graph.linear(x, WIDTH, WIDTH), heads])], perm=order
        )

    query, key, value = split([0, 2, 1, 3]), split([0, 2, 3, 1]), split([0, 2, 1, 3])
    scale = graph.constant(np.array((WIDTH // HEADS) ** 0.5, np.float32))
    scores = graph.add("Div", [graph.add("MatMul", [query, key]), scale])
    if mask is not None:
        scores = graph.add("Add", [scores, mask])
    mixed = graph.add("MatMul", [graph.add("Softmax", [scores], axis=-1), value])
    joined = graph.add("Transpose", [mixed], perm=[0, 2, 1, 3])
    whole = graph.constant(np.array([0, 0, WIDTH], np.int64))
    return graph.linear(graph.add("Reshape", [joined, whole]), WIDTH, WIDTH)


DECODER_WIDTH, DECODER_INNER, HEAD, GROUPS, IN_GROUP, WORDS = 2048, 5632, 64, 4, 8, 32000
# Channels of each normalization that are so many times as large, as in trained models.
WILD, WILD_GAIN = 16, 20.0


def write_decoder(path: Path, *, layers: int, words: int = WORDS) -> int:
    """Write a model of some layers of TinyLlama's shape; return how many parameters a layer has.

    Input ``ids`` int64 [batch, length]; the last layer has a weight of its own. Without positions and mask,
    which cost little.

    Source:
        Zhang et al., TinyLlama, table 1: 22 layers, 4 groups of heads that share keys and values.
    """
    graph = _Graph()
    x = graph.add("Gather", [graph.weight((words, DECODER_WIDTH), 1, 1.0), "ids"])
    before = graph.parameters
    for _ in range(layers):
        x = graph.add("Add", [x, _grouped_attention(graph, _root_mean_square(graph, x))])
        read = _root_mean_square(graph, x)
        gate, up = (graph.product(read, DECODER_WIDTH, DECODER_INNER) for _ in range(2))
        gated = graph.add("Mul", [graph.add("Mul", [gate, graph.add("Sigmoid", [gate])]), up])
        x = graph.add("Add", [x, graph.product(gated, DECODER_INNER, DECODER_WIDTH)])
    each = (graph.parameters - before) // layers
    x = graph.product(_root_mean_square(graph, x), DECODER_WIDTH, words)
    graph.save(path, {"ids": (TensorProto.INT64, ["batch", "length"])}, x, ["batch", "length", words])
    return each


def _root_mean_square(graph: _Graph, x: str) -> str:
    mean = graph.add("ReduceMean", [graph.add("Mul", [x, x]), graph.constant(np.array([-1]))])
    root = graph.add("Sqrt", [graph.add("Add", [mean, graph.constant(np.array(1e-5, np.float32))])])
    gains = np.ones(DECODER_WIDTH, np.float32)
    gains[graph.random.choice(DECODER_WIDTH, WILD, replace=False)] = WILD_GAIN
    return graph.add("Mul", [graph.add("Div", [x, root]), graph.constant(gains)])


def _grouped_attention(graph: _Graph, x: str) -> str:
    def split(heads: int, order: list[int]) -> str:
        product = graph.product(x, DECODER_WIDTH, GROUPS * heads * HEAD)
        shape = graph.constant(np.array([0, 0, GROUPS, heads, HEAD]))
        return graph.add("Transpose", [graph.add("Reshape", [product, shape])], perm=order)

    query = split(IN_GROUP, [0, 2, 3, 1, 4])
    key, value = split(1, [0, 2, 3, 4, 1]), split(1, [0, 2, 3, 1, 4])
    scale = graph.constant(np.array(HEAD**0.5, np.float32))
    scores = graph.add("Div", [graph.add("MatMul", [query, key]), scale])
    mixed = graph.add("MatMul", [graph.add("Softmax", [scores], axis=-1), value])
    joined = graph.add("Transpose", [mixed], perm=[0, 3, 1, 2, 4])
    shape = graph.constant(np.array([0, 0, DECODER_WIDTH]))
    return graph.product(graph.add("Reshape", [joined, shape]), DECODER_WIDTH, DECODER_WIDTH)


def write_images(path: Path, count: int, *, side: int = 224, seed: int = 1) -> None:
    """Write ``count`` square images as an ``.npz``: smooth, like photographs; 8 must divide their side."""
    random = np.random.default_rng(seed)
    coarse = random.standard_normal((count, 3, side // 8, side // 8)).astype(np.float32)
    images = np.repeat(np.repeat(coarse, 8, axis=2), 8, axis=3)
    images += random.normal(0, 0.2, images.shape).astype(np.float32)
    np.savez(path, image=images)


def write_sequences(path: Path, count: int, length: int, *, masked: bool = False, seed: int = 2) -> None:
    """Write sequences of word numbers as an ``.npz``; masked ones end anywhere in their second half."""
    random = np.random.default_rng(seed)
    arrays: dict[str, Any] = {"ids": random.integers(0, VOCABULARY, (count, length))}
    if masked:
        ends = random.integers(length // 2, length + 1, (count, 1))
        arrays["mask"] = (np.arange(length) < ends).astype(np.int64)
    np.savez(path, **arrays)
