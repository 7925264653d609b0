"""amax by max: the whole range."""

from ptq_cli.collectors.statistics.tensor_statistics import TensorStatistics


def max_amax(statistics: TensorStatistics) -> float:
    """Return the largest magnitude.

    Units:
        As the tensor's values.

    Edge case:
        No value, or only zeros: 0.

    Source:
        NVIDIA pytorch-quantization, MaxCalibrator.

    Example:
        >>> from ptq_cli.collectors.max_collector import MaxCollector
        >>> import numpy as np
        >>> collector = MaxCollector()
        >>> collector.update(np.array([-3.0, 2.0], np.float32))
        True
        >>> max_amax(collector.statistics())
        3.0
    """
    return max(abs(statistics.low), abs(statistics.high))
