"""Multiply-accumulates of each operator, counted from the shapes of all values for inputs of given sizes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import onnx_ir as ir

from ptq_cli.core.errors import DataShapeError, ModelInputError
from ptq_cli.core.tensors import format_shape, is_cache, starts_empty
from ptq_cli.core.words import did_you_mean
from ptq_cli.models.graph_reading import every_value, input_at, nested_graphs
from ptq_cli.models.pair_operators import is_dynamic_quantize
from ptq_cli.models.shapes import all_known, infer_shapes, longest_sequence

ASSUMED_BATCH = 1  # samples
ASSUMED_PIXELS = 224  # height and width of an image: ImageNet's
ASSUMED_LENGTH = 128  # size of any other axis, such as the length of a sequence
PLUS = "+"  # between the symbols of a sum, such as the length of a mask for a cache and new tokens
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class BoundShapes:
    """Shapes of values of known rank by name, None for a size that is not known before the model runs.

    Sizes that were not given are ``assumed``, by ``input[axis]``.
    """

    shapes: Mapping[str, Shape]
    assumed: Mapping[str, int]


def bind_shapes(model: ir.Model, sizes: Mapping[str, Sequence[int]] | None = None) -> BoundShapes:
    """Return the shape of each value of a copy of a model, for inputs of these sizes.

    Sizes that are not given are assumed and listed: 1 for the first axis, 0 for the length of a key-value
    cache that starts empty, 224 for the last two axes of a float input with four axes, 128 for any other, or
    the rows of a shorter table of positions. A symbol has the same size in every input, and ``past + new`` is
    the sum of two.
    """
    given = _given(model, sizes or {})
    fed = all(value.shape is not None and value.shape.is_static() for value in model.graph.inputs)
    if fed and all_known(model.graph):
        return _bound(model.graph, {})
    bound = model.clone()
    assumed: dict[str, int] = {}
    symbols: dict[str, int] = {}
    constants = bound.graph.initializers
    inputs = [
        value for value in bound.graph.inputs if value.name not in constants and value.shape is not None
    ]
    for value in inputs:
        for size, number in zip(value.shape or (), given.get(value.name or "", ()), strict=False):
            if isinstance(size, ir.SymbolicDim) and size.value:
                symbols.setdefault(size.value, number)
    length = min(ASSUMED_LENGTH, longest_sequence(model.graph) or ASSUMED_LENGTH)
    for value in sorted(inputs, key=_order):
        value.shape = ir.Shape(_numbers(value, given.get(value.name or ""), symbols, assumed, length))
    fixed = set(inputs)
    for value in every_value(bound.graph):
        if value not in fixed:
            _forget(value, symbols)
    infer_shapes(bound, strict=False)
    return _bound(bound.graph, assumed)


def _bound(graph: ir.Graph, assumed: Mapping[str, int]) -> BoundShapes:
    values = [*every_value(graph), *graph.initializers.values()]
    return BoundShapes(
        {value.name or "": _shape(value) for value in values if value.shape is not None}, assumed
    )


def _given(model: ir.Model, sizes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    inputs = {value.name or "": value for value in model.graph.inputs}
    names = [name for name in inputs if name not in model.graph.initializers]
    for name in sizes:
        if name not in names:
            raise ModelInputError(
                f"a shape is given for '{name}', which is not an input{did_you_mean(name, names)}",
                hint=f"the inputs are: {', '.join(names)}",
            )
    given = {name: tuple(sizes[name]) for name in inputs if name in sizes}
    for name, shape in given.items():
        wanted = _shape(inputs[name]) if inputs[name].shape is not None else None
        if wanted is None:
            continue
        same_rank = len(wanted) == len(shape)
        if not same_rank or any(size not in (None, shape[axis]) for axis, size in enumerate(wanted)):
            raise DataShapeError(
                f"input '{name}' has shape {format_shape(wanted)}, but {format_shape(shape)} was given",
                hint="give the shape in the model's layout",
            )
    return given


def _numbers(
    value: ir.Value,
    given: tuple[int, ...] | None,
    symbols: dict[str, int],
    assumed: dict[str, int],
    length: int,
) -> list[int]:
    if given is not None:
        return list(given)
    numbers = []
    sizes = list(value.shape or ())
    for axis, size in enumerate(sizes):
        own = f"{value.name}[{axis}]"
        symbol = own if isinstance(size, int) else size.value or own
        if not isinstance(size, int) and symbol not in symbols:
            if (total := _sum(symbol, symbols)) is None:
                total = assumed[own] = _assumed_size(value, axis, len(sizes), length)
            symbols[symbol] = total
        numbers.append(size if isinstance(size, int) else symbols[symbol])
    return numbers


def _order(value: ir.Value) -> int:
    """Sort inputs so that a symbol of a cache's length is one that no other input has, and sums come last."""
    if any(isinstance(size, ir.SymbolicDim) and PLUS in (size.value or "") for size in value.shape or ()):
        return 2
    return int(is_cache(value.name or ""))


def _sum(symbol: str, symbols: Mapping[str, int]) -> int | None:
    """Return the size of a sum such as ``past + 1``; None if it is not one, or a part is not known."""
    parts = [part.strip() for part in symbol.split(PLUS)]
    sizes = [int(part) if part.isdecimal() else symbols.get(part) for part in parts]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(parts) > 1 and len(known) == len(parts) else None


def _assumed_size(value: ir.Value, axis: int, rank: int, length: int) -> int:
    if axis == 0:
        return ASSUMED_BATCH
    if starts_empty(value.name or ""):
        return 0
    if is_cache(value.name or ""):
        return length
    is_image = rank == 4 and axis >= 2 and value.dtype is not None and value.dtype.is_floating_point()
    return ASSUMED_PIXELS if is_image else length


def _forget(value: ir.Value, symbols: Mapping[str, int]) -> None:
    """Replace known symbols by numbers, and leave the sizes that depend on others to inference."""
    if value.shape is not None:
        value.shape = ir.Shape(
            size if isinstance(size, int) else symbols.get(size.value or "") for size in value.shape
        )


def _shape(value: ir.Value) -> Shape:
    return tuple(size if isinstance(size, int) else None for size in value.shape or ())


# Domains whose operators are known: one without an entry below does not sum products.
ONNX_DOMAINS = ("", "ai.onnx", "com.microsoft", "com.microsoft.nchwc", "ai.onnx.ml")


class _UnknownError(Exception):
    """A count is not known; the message says why."""


@dataclass(frozen=True)
class MultiplyAccumulates:
    """Multiply-accumulates of the nodes of a graph and of those nested in it, by the node's name.

    Attributes:
        counts: 0 for an operator without sums of products, None where it is not known (``unknown`` says why).
        assumed: sizes that were not given, by ``input[axis]``.
        once: the Loop or Scan that a node is counted for one step of: only a run tells the number of steps.
    """

    counts: Mapping[str, int | None]
    unknown: Mapping[str, str]
    assumed: Mapping[str, int]
    once: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The sum of the known counts."""
        return sum(count or 0 for count in self.counts.values())

    def of_one(self, samples: int) -> "MultiplyAccumulates":
        """Return the work for one sample, given counts for a batch."""
        counts = {name: None if count is None else count // samples for name, count in self.counts.items()}
        return replace(self, counts=counts)


def multiply_accumulates(
    model: ir.Model,
    sizes: Mapping[str, Sequence[int]] | None = None,
    measured: Mapping[str, tuple[int, ...]] | None = None,
) -> MultiplyAccumulates:
    """Return how many products each node sums up, for inputs of these sizes.

    Convolutions, matrix products, Einsum, recurrent layers and attention are counted, in floats and in
    integers; products with a bias, a scale or a gate are not. In a quantized model a DequantizeLinear has
    the shape of its tensor, so that the counts are the same as those of the float model.

    Without ``sizes`` of inputs they are assumed as in ``bind_shapes``, and listed; ``measured`` are shapes of
    computed tensors that a run recorded.

    Edge case: If a size is known only when the model runs, the count is None, with the reason. Layers of a
        Loop or Scan count once for each step; both branches of an If count, although one of them is taken.
    """
    bound = bind_shapes(model, sizes)
    shapes = {**bound.shapes, **(measured or {})}
    counting = _Counting(shapes)
    counting.add(model.graph, 1, "")
    return MultiplyAccumulates(counting.counts, counting.unknown, bound.assumed, counting.once)


class _Counting:
    """The counts so far."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self.counts: dict[str, int | None] = {}
        self.unknown: dict[str, str] = {}
        self.once: dict[str, str] = {}
        self._shapes = shapes

    def add(self, graph: ir.Graph, times: int, once: str) -> None:
        """Count the nodes of a graph that runs so often; ``once`` names a loop whose steps are not known."""
        for node in graph:
            name = node.name or ""
            try:
                self.counts[name] = times * _count(node, _NodeShapes(node, self._shapes))
            except _UnknownError as error:
                self.counts[name], self.unknown[name] = None, str(error)
            if once and self.counts[name]:
                self.once[name] = once
            for inner in nested_graphs(node):
                steps = self._steps(node, inner)
                self.add(inner, times * (1 if steps is None else steps), name if steps is None else once)

    def _steps(self, node: ir.Node, inner: ir.Graph) -> int | None:
        """Return how often a nested graph runs, or None where only a run can tell."""
        if node.op_type == "Scan":
            scanned = node.attributes.get_int("num_scan_inputs", 1)
            axis = node.attributes.get_ints("scan_input_axes", (0,))[0]
            source = node.inputs[len(node.inputs) - scanned]
            sizes = self._shapes.get(source.name or "" if source is not None else "", ())
            return sizes[axis] if -len(sizes) <= axis < len(sizes) else None
        if node.op_type == "Loop":
            limit = node.inputs[0].const_value if node.inputs[0] is not None else None
            return max(int(limit.numpy().item()), 0) if limit is not None and _goes_on(inner) else None
        return 1


def _goes_on(body: ir.Graph) -> bool:
    """Tell whether a Loop's body never ends it: it hands on the condition that it was given, or true."""
    condition: ir.Value | None = body.outputs[0]
    while condition is not None and (producer := condition.producer()) is not None:
        if producer.op_type != "Identity":
            return False
        condition = producer.inputs[0]
    constant = condition.const_value if condition is not None else None
    return condition is body.inputs[1] or (constant is not None and bool(constant.numpy().all()))


class _NodeShapes:
    """The shapes around a node; asking for an unknown one raises an error."""

    def __init__(self, node: ir.Node, shapes: Mapping[str, Shape]) -> None:
        self._node, self._shapes = node, shapes

    def input(self, index: int) -> tuple[int, ...]:
        value = input_at(self._node, index)
        if value is None:
            raise _UnknownError(f"it has no input {index}")
        return self._known(value)

    def output(self) -> tuple[int, ...]:
        return self._known(self._node.outputs[0])

    def _known(self, value: ir.Value) -> tuple[int, ...]:
        sizes = self._shapes.get(value.name or "", (None,))
        known = tuple(size for size in sizes if size is not None)
        if len(known) != len(sizes):
            raise _UnknownError(f"the shape of '{value.name or ''}' is known only when the model runs")
        return known


Counter = Callable[[ir.Node, _NodeShapes], int]


def _count(node: ir.Node, sizes: _NodeShapes) -> int:
    if is_dynamic_quantize(node):
        return 0
    if node.domain not in ONNX_DOMAINS:
        raise _UnknownError(f"what {node.op_type} of domain '{node.domain}' computes is not known")
    counter = _COUNTERS.get(node.op_type)
    return counter(node, sizes) if counter is not None else 0


def _convolution(weight: int) -> Counter:
    # Each output element sums over the kernel and the channels of its group: W is [filters, those, *kernel].
    return lambda _, sizes: prod(sizes.output()) * prod(sizes.input(weight)[1:])


def _transposed_convolution(_: ir.Node, sizes: _NodeShapes) -> int:
    # Each input element meets the filters of its group: W is [channels, those, *kernel].
    return prod(sizes.input(0)) * prod(sizes.input(1)[1:])


def _matrix_product(node: ir.Node, sizes: _NodeShapes) -> int:
    shape = sizes.input(0)
    # Contrib operators that take a transposed matrix say so in an attribute.
    inner = shape[-2] if node.attributes.get_int("transA", 0) == 1 and len(shape) > 1 else shape[-1]
    return prod(sizes.output()) * inner


def _recurrent(_: ir.Node, sizes: _NodeShapes) -> int:
    # W is [directions, gates * hidden, width], R has the same layout: each step multiplies by both. Those of
    # DynamicQuantizeLSTM are transposed.
    weight, recurrence = sizes.input(1), sizes.input(2)
    return prod(sizes.input(0)[:2]) * (prod(weight) + prod(recurrence))


def _einsum(node: ir.Node, sizes: _NodeShapes) -> int:
    terms = node.attributes.get_string("equation", "").replace(" ", "").partition("->")[0].split(",")
    if len(terms) == 1:
        return 0  # A sum or a diagonal: nothing is multiplied.
    if len(terms) != 2:
        raise _UnknownError("an Einsum of more than two tensors may be computed in any order")
    axes: dict[str, int] = {}
    for index, term in enumerate(terms):
        for letter, size in _lettered(term, sizes.input(index)):
            axes[letter] = max(axes.get(letter, 1), size)
    return prod(axes.values())


def _lettered(term: str, shape: tuple[int, ...]) -> list[tuple[str, int]]:
    """Return a letter for each axis; those of an ellipsis are counted from its end, as broadcasting does."""
    before, _, after = term.partition("...")
    between = len(shape) - len(before) - len(after)
    letters = [*before, *(f"...{offset}" for offset in range(between, 0, -1)), *after]
    return list(zip(letters, shape, strict=True))


def _attention(node: ir.Node, sizes: _NodeShapes) -> int:
    if node.domain == "com.microsoft":  # another operator of that name, with projections inside
        return _refuse(node, sizes)
    # Operator Attention of opset 23: scores are Q K^T, the result is scores V; past keys come before K's.
    query, key, value = (sizes.input(index) for index in (0, 1, 2))
    if len(query) == 3:
        query_heads = node.attributes.get_int("q_num_heads", 1)
        kv_heads = node.attributes.get_int("kv_num_heads", 1)
        batch, steps, width = query[0], query[1], query[2] // query_heads
        keys, value_width = key[1], value[2] // kv_heads
    else:
        batch, query_heads, steps, width = query
        keys, value_width = key[2], value[3]
    past = sizes.input(4)[2] if input_at(node, 4) is not None else 0
    return batch * query_heads * steps * (keys + past) * (width + value_width)


def _refuse(node: ir.Node, sizes: _NodeShapes) -> int:  # noqa: ARG001 - a counter like the others
    raise _UnknownError(f"what {node.op_type} computes is not counted")


# By operator. ``QLinearMatMul`` has its second matrix as input 3, and no attribute; the first is input 0.
_COUNTERS: Mapping[str, Counter] = {
    operator: counter
    for counter, operators in (
        (_convolution(1), "Conv FusedConv NhwcFusedConv ConvInteger DeformConv"),
        (_convolution(3), "QLinearConv"),
        (_transposed_convolution, "ConvTranspose"),
        (_matrix_product, "Gemm MatMul FusedGemm FusedMatMul TransposeMatMul MatMulNBits"),
        (_matrix_product, "QGemm QLinearMatMul MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul"),
        (_einsum, "Einsum"),
        (_recurrent, "RNN GRU LSTM DynamicQuantizeLSTM"),
        (_attention, "Attention"),
        (_refuse, "PackedAttention MultiHeadAttention QAttention GroupQueryAttention"),
    )
    for operator in operators.split()
}
