"""Signal to quantization noise ratio, over the whole set."""

import math
from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import SampleSums, paired_rows
from ptq_cli.report.metrics.recorder import Recorded


class Sqnr(Recorded):
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

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:  # noqa: ARG004 - one interface
        """Any output has a ratio."""
        return True

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Add one batch to both sums."""
        for exact, noisy in paired_rows(float_output, quantized_output):
            noise = exact - noisy
            self._recorder.add(np.stack([np.sum(exact * exact, 1), np.sum(noise * noise, 1)], axis=1))

    def compute(self) -> float:
        """The ratio over all samples so far, in dB."""
        signal, noise = self._recorder.rows.sum(axis=0) if len(self._recorder) else (0.0, 0.0)
        if noise == 0:
            return math.inf
        if signal == 0:
            return -math.inf
        return 10 * math.log10(float(signal) / float(noise))

    def resampling(self) -> SampleSums:
        """Each sample's signal and noise, of whose sums the value is the ratio in dB."""
        return SampleSums(self._recorder.rows, lambda sums: 10 * np.log10(sums[..., 0] / sums[..., 1]))
