"""One batch of samples: arrays by input name, labels, and the name of each sample for messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ptq_cli.core.tensors import Array


@dataclass(frozen=True)
class Batch:
    """Samples that are run together.

    Attributes:
        inputs: arrays by name; the first axis of each is the sample, if ``axes`` names no other one.
        labels: the correct answer for each sample, such as its class, or None.
        names: what messages call each sample, such as ``cat/0001.jpg`` or ``calib.npz[17]``.
        axes: the axis of the samples of the arrays that have it elsewhere; None for an array that belongs to
            all samples together.

    Shapes:
        inputs: ``(size, ...)`` each, or with ``size`` on the axis that ``axes`` names.
        labels: ``(size, ...)``; for classes one whole number per sample.

    Example:
        >>> import numpy as np
        >>> Batch({"x": np.zeros((2, 3), np.float32)}, None, ("x.npy[0]", "x.npy[1]")).size
        2
    """

    inputs: dict[str, Array]
    labels: Array | None
    names: tuple[str, ...]
    axes: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.names)
