"""What an ONNX file holds of a tensor of centers, indices and codebook; a module that learns centers.

In the graph the indices become numbers with Cast, because Gather takes int32 and int64 alone, and values with
``Gather(codebook, indices)``. With one codebook for each index along an axis, ``offsets`` are added to the
indices before, and the codebooks are gathered from as one list.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.core.formats import PerAxis
from ptq_cli.quantizers.assign import hard_assign, quantize_to_centers, soft_assign
from ptq_cli.quantizers.learning import learn_centers
from ptq_cli.quantizers.sorted_centers import require_centers, require_temperature

_SMALL = 16  # Codebooks up to this size are indexed by 4 bits.


@dataclass(frozen=True, eq=False)
class CenterIndices:
    """A tensor as indices into a codebook.

    Attributes:
        indices: uint8; below 16 where ``bits`` is 4.
        codebook: the centers, in the order that they were given.
        axis: the axis with one codebook for each index, not negative; or None for one codebook.

    Shapes: indices: the tensor's. codebook: ``(n,)``, or ``(indices.shape[axis], n)``; float32.

    Example:
        >>> found = encode_centers(torch.tensor([0.4, 0.6, 9.0]), torch.tensor([0.0, 1.0]))
        >>> found.indices.tolist(), found.bits, found.values().tolist()
        ([0, 1, 1], 4, [0.0, 1.0, 1.0])
    """

    indices: torch.Tensor
    codebook: torch.Tensor
    axis: int | None

    @property
    def bits(self) -> int:
        """How many bits an index takes: 4 for up to 16 centers, otherwise 8."""
        return 4 if self.codebook.shape[-1] <= _SMALL else 8

    def offsets(self) -> torch.Tensor:
        """Offsets of the indices to gather from all codebooks as one list.

        Shapes: The result broadcasts to the indices, as int32; ``()`` for one codebook.
        """
        if self.axis is None:
            return torch.zeros((), dtype=torch.int32, device=self.indices.device)
        rows, count = self.codebook.shape
        starts = torch.arange(0, rows * count, count, dtype=torch.int32, device=self.indices.device)
        return starts.reshape(PerAxis(self.axis).broadcast_shape(tuple(self.indices.shape)))

    def values(self) -> torch.Tensor:
        """The tensor that Gather makes of the indices, in float32."""
        return self.codebook.reshape(-1)[self.indices.to(torch.int32) + self.offsets()]

    def packed(self) -> torch.Tensor:
        """The indices as the bytes of an ONNX tensor: two a byte for uint4, otherwise one.

        Shapes: The result has rank 1, as uint8. An odd number of 4-bit indices is filled up with 0.
        """
        flat = self.indices.reshape(-1)
        return pack_uint4(flat) if self.bits == 4 else flat


def encode_centers(x: torch.Tensor, centers: torch.Tensor, *, axis: int | None = None) -> CenterIndices:
    """A tensor as indices of its nearest centers.

    ``values()`` is what ``quantize_to_centers`` gives in float32, bit for bit.

    Shapes: x: any; the indices have the same. centers: ``(n,)``, or ``(x.shape[axis], n)``, with n from 1 to
        256.
    Edge case: Half way between two centers the one of lower index wins. ±inf gets the outermost center.

    Raises: QuantizerValueError: x holds NaN; or as ``soft_assign``. AxisError, QuantizerShapeError,
        QuantizerTypeError: as ``soft_assign``.

    Source: ONNX Gather, opset 13; Cast of uint4, opset 21. Han et al. 2016, "Deep compression", section 3.

    Example:
        >>> weight = torch.tensor([[0.9, -2.0], [3.0, 5.5]])
        >>> found = encode_centers(weight, torch.tensor([[1.0, -1.0], [2.0, 5.0]]), axis=0)
        >>> found.indices.tolist(), found.values().tolist()
        ([[0, 1], [0, 1]], [[1.0, -1.0], [2.0, 5.0]])
    """
    indices = hard_assign(x, centers, axis=axis).to(torch.uint8)
    codebook = centers.detach().to(torch.float32)
    return CenterIndices(indices, codebook, None if axis is None else axis % x.ndim)


def pack_uint4(indices: torch.Tensor) -> torch.Tensor:
    """4-bit numbers, two a byte, the first in the low half.

    Shapes: indices: (n,), uint8; the result is ((n + 1) // 2,), uint8.
    Edge case: The last high half is 0 where n is odd.

    Raises: QuantizerValueError: a number needs more than 4 bits.

    Source: ONNX TensorProto, ``int32_data`` and ``raw_data`` of UINT4.

    Example:
        >>> pack_uint4(torch.tensor([1, 2, 15], dtype=torch.uint8)).tolist()
        [33, 15]
    """
    if indices.numel() and int(indices.max()) >= _SMALL:
        raise QuantizerValueError(f"{int(indices.max())} does not fit into 4 bits")
    even = torch.nn.functional.pad(indices, (0, indices.numel() % 2))
    return even[0::2] | (even[1::2] << 4)


TEMPERATURE = "temperature"


class CenterQuantizer(torch.nn.Module):
    """Quantize to centers that are a parameter, and so learn along with the model.

    While training, the gradient reaches the input and the centers through the softmax-weighted mean; the
    value is the nearest center's in training and evaluation alike. To train with the soft value, as one does
    before the temperature is low, call ``soft``. The state dict holds the centers and the temperature.

    Attributes:
        centers: the parameter, ``(n,)`` or ``(x.shape[axis], n)``.
        temperature: how far the gradient reaches; may be set, to anneal it.
        axis: one list of centers for each index along it, or None.

    Raises: QuantizerValueError: as ``soft_assign``. QuantizerShapeError, QuantizerTypeError: the centers are
        not a float tensor of rank 1 or 2.

    Source: Agustsson et al. 2017, "Soft-to-hard vector quantization for end-to-end learning compressible
        representations".

    Example:
        >>> quantizer = CenterQuantizer(torch.tensor([-1.0, 0.0, 1.0]), temperature=0.5)
        >>> y = quantizer(torch.tensor([0.7, -0.2]))
        >>> y.tolist()
        [1.0, 0.0]
        >>> y.sum().backward()
        >>> [round(slope, 4) for slope in quantizer.centers.grad.tolist()]
        [-0.2516, 0.4628, 0.0455]
    """

    def __init__(self, centers: torch.Tensor, temperature: float = 1.0, axis: int | None = None) -> None:
        super().__init__()
        require_centers(centers)
        self.centers = torch.nn.Parameter(centers.detach().clone())
        self.temperature = temperature
        self.axis = axis

    @classmethod
    def from_tensor(
        cls,
        x: torch.Tensor,
        count: int,
        generator: torch.Generator,
        *,
        temperature: float = 1.0,
        axis: int | None = None,
    ) -> Self:
        """A quantizer whose centers start where k-means++ finds them; see ``learn_centers``.

        Example:
            >>> x = torch.tensor([0.0, 0.25, 5.0])
            >>> quantizer = CenterQuantizer.from_tensor(x, 2, torch.Generator().manual_seed(0))
            >>> quantizer(x).tolist()
            [0.125, 0.125, 5.0]
        """
        return cls(learn_centers(x, count, generator, axis=axis), temperature, axis)

    @property
    def temperature(self) -> float:
        """How far the gradient reaches, in units of the input."""
        return self._temperature

    @temperature.setter
    def temperature(self, temperature: float) -> None:
        require_temperature(temperature)
        self._temperature = float(temperature)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The nearest centers, with the gradient of the soft ones; see ``quantize_to_centers``."""
        return quantize_to_centers(x, self.centers, self.temperature, axis=self.axis)

    def soft(self, x: torch.Tensor) -> torch.Tensor:
        """The softmax-weighted centers; see ``soft_assign``."""
        return soft_assign(x, self.centers, self.temperature, axis=self.axis)

    def get_extra_state(self) -> dict[str, float]:
        """State besides the centers."""
        return {TEMPERATURE: self.temperature}

    def set_extra_state(self, state: Any) -> None:
        """Take the temperature of a state dict.

        Raises: QuantizerValueError: there is none, or it is not positive.
        """
        if not isinstance(state, dict) or not isinstance(state.get(TEMPERATURE), (int, float)):
            raise QuantizerValueError(
                "the state dict has no temperature",
                hint="it was not saved from a CenterQuantizer; save it again",
            )
        self.temperature = state[TEMPERATURE]

    def extra_repr(self) -> str:
        """Arguments that ``repr`` shows."""
        shape = "x".join(str(size) for size in self.centers.shape)
        return f"centers={shape}, temperature={self.temperature:g}, axis={self.axis}"
