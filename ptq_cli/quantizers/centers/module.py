"""A module that quantizes to centers and learns them by gradient."""

from typing import Any, Self

import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.quantizers.centers.assign import quantize_to_centers, soft_assign
from ptq_cli.quantizers.centers.layout import require_centers, require_temperature
from ptq_cli.quantizers.centers.learning import learn_centers

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

    Raises:
        QuantizerValueError: as ``soft_assign``.
        QuantizerShapeError, QuantizerTypeError: the centers are not a float tensor of rank 1 or 2.

    Source:
        Agustsson et al. 2017, "Soft-to-hard vector quantization for end-to-end learning compressible
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
        """Return a quantizer whose centers start where k-means++ finds them; see ``learn_centers``.

        Raises:
            QuantizerValueError, AxisError, QuantizerShapeError, QuantizerTypeError: as ``learn_centers``.

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
        """Return the nearest centers, with the gradient of the soft ones; see ``quantize_to_centers``."""
        return quantize_to_centers(x, self.centers, self.temperature, axis=self.axis)

    def soft(self, x: torch.Tensor) -> torch.Tensor:
        """Return the softmax-weighted centers; see ``soft_assign``."""
        return soft_assign(x, self.centers, self.temperature, axis=self.axis)

    def get_extra_state(self) -> dict[str, float]:
        """Return what the state dict holds besides the centers."""
        return {TEMPERATURE: self.temperature}

    def set_extra_state(self, state: Any) -> None:
        """Take the temperature of a state dict.

        Raises:
            QuantizerValueError: there is none, or it is not positive.
        """
        if not isinstance(state, dict) or not isinstance(state.get(TEMPERATURE), (int, float)):
            raise QuantizerValueError(
                "the state dict has no temperature",
                hint="it was not saved from a CenterQuantizer; save it again",
            )
        self.temperature = state[TEMPERATURE]

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        shape = "x".join(str(size) for size in self.centers.shape)
        return f"centers={shape}, temperature={self.temperature:g}, axis={self.axis}"
