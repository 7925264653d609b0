"""One batch of samples: arrays by input name, labels, and what to call each sample in a message."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.core.tensors import Array


@dataclass(frozen=True)
class Batch:
    """Samples that are run together.

    Attributes:
        inputs: arrays by name; the first axis of each is the sample.
        labels: the class of each sample, or None.
        names: what to call each sample in a message, such as ``cat/0001.jpg`` or ``calib.npz[17]``.

    Shapes:
        inputs: ``(size, ...)`` each.
        labels: ``(size,)``.

    Example:
        >>> Batch({"x": np.zeros((2, 3), np.float32)}, None, ("x.npy[0]", "x.npy[1]")).size
        2
    """

    inputs: dict[str, Array]
    labels: npt.NDArray[np.int64] | None
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.names)
