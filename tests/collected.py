"""Statistics as a collector keeps them, and as a file holds them."""

from typing import Any

import numpy as np

from ptq_cli.collectors.calibration_file import Calibration, Provenance, calibration_bytes
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.tensor_statistics import TensorStatistics


def statistics_of(values: Any, collector: Any = None) -> TensorStatistics:
    """What a collector, of histograms where none is given, keeps of values that are all finite."""
    collector = collector or HistogramCollector()
    assert collector.update(np.asarray(values, np.float32))
    found: TensorStatistics = collector.statistics()
    return found


def saved(statistics: TensorStatistics) -> bytes:
    """The file of a calibration of one tensor."""
    provenance = Provenance(
        model="m", source="s", data="d", settings={}, flags={}, method="histogram", samples=1
    )
    return calibration_bytes(Calibration(provenance, {"x": statistics}))
