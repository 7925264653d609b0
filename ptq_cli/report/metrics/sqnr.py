"""Signal to quantization noise ratio, over the whole set."""

import math
from array import array
from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.measurement import Unit
from ptq_cli.report.metrics.base import SampleSums, paired_samples


class Sqnr:
    """``10 log10(sum float² / sum (float - quantized)²)``, both sums over all samples in float64.

    Shapes:
        update: any, both the same.

    Units:
        decibels; 6 dB more is one bit more.

    Edge case:
        Identical outputs give inf, also where all are 0. A float output of zeros with noise gives -inf.

    Source:
        Bennett 1948, "Spectra of quantized signals"; Gray and Neuhoff 1998, "Quantization".

    Example:
        >>> sqnr = Sqnr()
        >>> sqnr.update(np.array([[10.0, 0.0]]), np.array([[9.0, 0.0]]))
        >>> sqnr.compute()
        20.0
    """

    unit: ClassVar[Unit] = "decibel"
    higher_is_better: ClassVar[bool] = True

    def __init__(self) -> None:
        self._signal = 0.0
        self._noise = 0.0
        self._addends = array("d")

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:  # noqa: ARG004 - one interface
        """Any output has a ratio."""
        return True

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Add one batch to both sums."""
        for float_sample, quantized_sample in paired_samples(float_output, quantized_output):
            signal = float(np.sum(float_sample**2))
            noise = float(np.sum((float_sample - quantized_sample) ** 2))
            self._signal += signal
            self._noise += noise
            self._addends.extend((signal, noise))

    def compute(self) -> float:
        """The ratio over all samples so far, in dB."""
        if self._noise == 0:
            return math.inf
        if self._signal == 0:
            return -math.inf
        return 10 * math.log10(self._signal / self._noise)

    def sample_sums(self) -> SampleSums:
        """Each sample's signal and noise, of whose sums the value is the ratio in dB."""
        rows = np.frombuffer(self._addends, np.float64).reshape(-1, 2)
        return SampleSums(rows, lambda sums: 10 * np.log10(sums[..., 0] / sums[..., 1]))
