"""How a layer's weight meets its inputs, as a matrix, and what it reads and makes there, as rows."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.compiled import compiled
from ptq_cli.core.tensors import Array
from ptq_cli.plan.sites import WeightSite
from ptq_cli.recover.second_moments import Float64s, Int64s

_OUTSIDE = -1  # stands for a position in the padding
LOOKED_UP = "rows of a table are looked up, not added up, so the nearest integers are the best"


@dataclass(frozen=True, kw_only=True)
class Window:
    """What of its input an output position of a convolution reads.

    Attributes:
        kernel, strides, dilations: along each spatial axis.
        begins: padding at the beginning of each; None where ``auto_pad`` decides.
        upper: an odd padding of ``auto_pad`` has the larger part at the end.
        transposed: of a ConvTranspose, whose strides are those of the output.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...] | None
    upper: bool
    transposed: bool = False

    def positions(self, taken: Sequence[int], given: Sequence[int]) -> Int64s:
        """Input positions that each output position reads, as indices into the flat spatial axes.

        ``taken`` and ``given`` are the spatial shapes of the input and of the output.

        Shapes: the result (output positions, kernel size), in the order of the axes.

        Example:
            >>> line = Window(kernel=(3,), strides=(2,), dilations=(1,), begins=(1,), upper=True)
            >>> line.positions([4], [2]).tolist()
            [[-1, 0, 1], [1, 2, 3]]
        """
        flat = np.zeros((1, 1), np.int64)
        inside = np.ones((1, 1), bool)
        for axis, size in enumerate(taken):
            found, fits = self._along(axis, size, given[axis])
            shape = (len(flat) * given[axis], flat.shape[1] * self.kernel[axis])
            flat = (flat[:, None, :, None] * size + found[None, :, None, :]).reshape(shape)
            inside = (inside[:, None, :, None] & fits[None, :, None, :]).reshape(shape)
        return np.where(inside, flat, _OUTSIDE)

    def _along(self, axis: int, taken: int, given: int) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return the index along an axis that each output index reads at each of the kernel's, and whether.

        Shapes: both (given, kernel).
        """
        begin, stride = self._begin(axis, taken, given), self.strides[axis]
        outputs, kernel = np.arange(given)[:, None], np.arange(self.kernel[axis]) * self.dilations[axis]
        if self.transposed:
            # A ConvTranspose reads an input only where the stride meets its grid.
            found, rest = np.divmod(outputs + begin - kernel, stride)
            return found, (rest == 0) & (found >= 0) & (found < taken)
        found = outputs * stride + kernel - begin
        return found, (found >= 0) & (found < taken)

    def _begin(self, axis: int, taken: int, given: int) -> int:
        if self.begins is not None:
            return self.begins[axis]
        reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
        short, long = (taken, given) if self.transposed else (given, taken)
        total = max((short - 1) * self.strides[axis] + reach - long, 0)
        # SAME_UPPER puts the odd element at the end, SAME_LOWER at the beginning.
        return total // 2 if self.upper else total - total // 2


@dataclass(frozen=True, kw_only=True)
class LayerGeometry:
    """The matrix form of a layer.

    Attributes:
        groups: how many parts of the channels are apart from each other; 1 for all but some convolutions.
        window: of a convolution; None for a product of matrices.
        transposed: the weight has its output channels along axis 1.
        blocks: how many blocks of inputs have scales of their own.
        block: the block of each input.

    Shapes: block: (K,).
    """

    groups: int
    window: Window | None
    transposed: bool
    blocks: int
    block: Int64s

    def rows(self, weight: Array) -> Float64s:
        """A weight, or its integers, with a row for each output channel: (M, K)."""
        if not self.transposed:
            matrix = weight.reshape(len(weight), -1)
        else:  # (groups, inputs of one, outputs of one, …) becomes (groups, outputs, inputs, …)
            apart = weight.reshape(self.groups, len(weight) // self.groups, *weight.shape[1:])
            matrix = np.swapaxes(apart, 1, 2).reshape(self.groups * weight.shape[1], -1)
        return np.ascontiguousarray(matrix, np.float64)

    def channels(self, shape: Sequence[int]) -> int:
        """Number of output channels of a weight of some shape."""
        return self.groups * shape[1] if self.transposed else shape[0]

    def in_place(self, rows: Float64s, shape: Sequence[int]) -> Array:
        """Rows, (M, K), or (M, B) of the scales of blocks, as the layer has its weight: ``shape``."""
        if self.transposed and len(shape) > 1:
            apart = rows.reshape(self.groups, -1, shape[0] // self.groups, *shape[2:])
            rows = np.swapaxes(apart, 1, 2)
        return np.ascontiguousarray(rows).reshape(shape)


def layer_geometry(node: ir.Node, site: WeightSite, shape: Sequence[int]) -> LayerGeometry | str:
    """Return the matrix form of a layer, or why there is none here."""
    if site.input_index != 1 or node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return LOOKED_UP if node.op_type == "Gather" else f"this weight of {node.op_type} is not supported"
    # It changes the padding of ConvTranspose by a rule that differs between runtimes.
    if node.attributes.get_ints("output_shape", []):
        return "a ConvTranspose with output_shape is not supported"
    if node.op_type in ("Conv", "ConvTranspose"):
        return _blocked(_convolution(node, shape), site, shape, 0 if node.op_type == "ConvTranspose" else 1)
    if len(shape) != 2:
        return f"its weight is not a matrix: its shape is {list(shape)}"
    if node.op_type == "Gemm" and not _is_plain(node):
        return "a Gemm with factors or a transposed input is not supported"
    transposed = node.op_type == "MatMul" or not node.attributes.get_int("transB", 0)
    plain = LayerGeometry(groups=1, window=None, transposed=transposed, blocks=1, block=np.zeros(0, np.int64))
    return _blocked(plain, site, shape, 0 if transposed else 1)


def _is_plain(node: ir.Node) -> bool:
    factors = (node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0))
    return factors == (1.0, 1.0) and not node.attributes.get_int("transA", 0)


def _convolution(node: ir.Node, shape: Sequence[int]) -> LayerGeometry:
    spatial = len(shape) - 2
    pads = tuple(node.attributes.get_ints("pads", [0] * 2 * spatial))
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    given = {"NOTSET": pads, "": pads, "VALID": (0,) * 2 * spatial}.get(auto)
    window = Window(
        kernel=tuple(shape[2:]),
        strides=tuple(node.attributes.get_ints("strides", [1] * spatial)),
        dilations=tuple(node.attributes.get_ints("dilations", [1] * spatial)),
        begins=given[:spatial] if given is not None else None,
        upper=auto == "SAME_UPPER",
        transposed=node.op_type == "ConvTranspose",
    )
    groups = node.attributes.get_int("group", 1)
    none = np.zeros(0, np.int64)
    return LayerGeometry(groups=groups, window=window, transposed=window.transposed, blocks=1, block=none)


def _blocked(
    plain: LayerGeometry, site: WeightSite, shape: Sequence[int], inputs: int
) -> LayerGeometry | str:
    """Return the geometry with the block of each input; ``inputs`` is the axis of the input channels."""
    kernel = math.prod(shape[2:])
    # All the groups of a ConvTranspose share the first axis; axis 1 of a Conv has the channels of one.
    length = shape[inputs] // (plain.groups if plain.window is not None and plain.transposed else 1)
    if site.block_size is None:
        block, blocks = np.zeros(length * kernel, np.int64), 1
    elif site.axis != inputs:
        return "blocks along the output channels are not supported"
    elif shape[inputs] % site.block_size:
        return f"blocks of {site.block_size} do not divide its {shape[inputs]} inputs"
    elif plain.groups > 1:
        return "blocks in a convolution with groups are not supported"
    else:
        channel, position = np.divmod(np.arange(length * kernel), kernel)
        block, blocks = channel // site.block_size * kernel + position, length // site.block_size * kernel
    return replace(plain, blocks=blocks, block=block)


def spread(total: int, wanted: int, sample: int) -> Int64s:
    """Return ``wanted`` evenly spread positions, other ones for each sample; all if there are no more.

    Example:
        >>> spread(4, 9, 0).tolist(), spread(9, 3, 0).tolist(), spread(9, 3, 1).tolist()
        ([0, 1, 2, 3], [0, 3, 6], [1, 4, 7])
    """
    if wanted >= total:
        return np.arange(total)
    # The golden ratio spreads the offsets of consecutive samples evenly, and depends on no random state.
    first = (sample * 0.6180339887498949) % 1.0
    return ((np.arange(wanted) + first) * total / wanted).astype(np.int64)


_AT_ONCE = 4096  # rows that are multiplied at once: enough for a product of matrices to be fast
CHECKED = 4  # every fourth sample that is learned from says how far the optimum of the others holds
NO_ROWS = "no data reached this part of the model"
NOT_FINITE = "what a layer reads or makes may not be NaN or Inf"
RowsPart = tuple[Array, npt.NDArray[np.float32]]


class LayerRows:
    """Collects the rows of one layer, piece by piece."""

    def __init__(self, geometry: LayerGeometry, *, wanted: int, samples: int, outside: int = 0) -> None:
        """Take about ``wanted`` rows, evenly from all samples; the padding reads ``outside``."""
        self._geometry = geometry
        self._each = -(-wanted // max(samples, 1))
        self._outside = outside
        self._tables: dict[tuple[tuple[int, ...], tuple[int, ...]], Int64s] = {}
        self._pieces: dict[int, list[tuple[int, RowsPart]]] = {}

    def add(self, piece: int, read: Array, made: Array, *, first: int) -> None:
        """Take the rows of a piece, which its number orders; threads may add pieces at the same time.

        ``first`` is the number of its first sample.

        Shapes:
            read: (samples, C, …) of a convolution, otherwise (samples, …, K); made: alike, with M for C or K.
        """
        rows = self._matrix_rows if self._geometry.window is None else self._window_rows
        if read.ndim == 1:  # A MatMul may read a vector, which is one row.
            read, made = read[None], made[None]
        self._pieces[piece] = [
            (first + sample, rows(np.ascontiguousarray(read[sample]), made[sample], first + sample))
            for sample in range(len(read))
        ]

    def parts(self, chosen: Callable[[int], bool] = lambda _sample: True) -> Iterator[RowsPart]:
        """Yield what was read and made of some samples, some thousand rows at a time, in the order of pieces.

        Shapes: (rows, groups * K), (rows, M).
        """
        waiting: list[RowsPart] = []
        for piece in sorted(self._pieces):
            waiting += [part for sample, part in self._pieces[piece] if chosen(sample)]
            if sum(len(read) for read, _ in waiting) >= _AT_ONCE:
                yield _joined(waiting)
                waiting = []
        if any(len(read) for read, _ in waiting):
            yield _joined(waiting)

    def release(self) -> None:
        """Release what was taken."""
        self._pieces = {}

    def _matrix_rows(self, read: Array, made: Array, sample: int) -> RowsPart:
        read, made = read.reshape(-1, read.shape[-1]), made.reshape(-1, made.shape[-1])
        chosen = spread(len(read), self._each, sample)
        return read[chosen], made[chosen].astype(np.float32)

    def _window_rows(self, read: Array, made: Array, sample: int) -> RowsPart:
        window = self._geometry.window
        assert window is not None  # noqa: S101 - the caller has asked
        chosen = spread(int(np.prod(made.shape[1:])), self._each, sample)
        positions = self._positions(window, read.shape[1:], made.shape[1:])[chosen]
        rows = np.empty((len(chosen), len(read) * positions.shape[1]), read.dtype)
        gather(read.reshape(len(read), -1), positions, read.dtype.type(self._outside), rows)
        return rows, made.reshape(len(made), -1)[:, chosen].T.astype(np.float32)

    def _positions(self, window: Window, taken: Sequence[int], given: Sequence[int]) -> Int64s:
        key = (tuple(taken), tuple(given))
        if key not in self._tables:
            self._tables[key] = window.positions(*key)
        return self._tables[key]


def _joined(parts: Sequence[RowsPart]) -> RowsPart:
    return np.concatenate([read for read, _ in parts]), np.concatenate([made for _, made in parts])


@compiled
def gather(
    source: Array, positions: Int64s, outside: float, rows: Array
) -> None:  # pragma: no cover - compiled
    """Write what each output position reads into a row: (C, S) at (R, P) becomes (R, C * P)."""
    count, size = positions.shape
    for row in range(count):
        for channel in range(source.shape[0]):
            for k in range(size):
                position = positions[row, k]
                if position == _OUTSIDE:
                    rows[row, channel * size + k] = outside
                else:
                    rows[row, channel * size + k] = source[channel, position]


@dataclass(frozen=True, kw_only=True)
class LayerData:
    """What a layer reads in the quantized model and makes in the float model.

    Attributes:
        learn: of the samples to learn from.
        decide: of those that are set aside.
    """

    learn: LayerRows
    decide: LayerRows

    def read(self) -> tuple[list[RowsPart], list[RowsPart], list[RowsPart]] | str:
        """Take out the rows to learn from, to check by and to decide by; or why they are of no use."""
        learn = list(self.learn.parts(lambda sample: sample % CHECKED != CHECKED - 1))
        check = list(self.learn.parts(lambda sample: sample % CHECKED == CHECKED - 1))
        decide = list(self.decide.parts())
        for rows in (self.learn, self.decide):  # The parts are copies.
            rows.release()
        if not learn:
            learn, check = check, []
        if not learn:
            return NO_ROWS
        if not all(np.isfinite(array).all() for part in (*learn, *check, *decide) for array in part):
            return NOT_FINITE
        return learn, check, decide
