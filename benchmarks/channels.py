"""Time and memory for counting each channel, compared with counting the whole tensor.

python -m benchmarks.channels            print the table
python -m benchmarks.channels --write    also write it to benchmarks/RESULTS.md
"""

import time
from collections.abc import Iterator
from functools import partial
from statistics import median

import numpy as np

from benchmarks.results_page import is_to_write, print_part, processor
from benchmarks.timing import median_ratio, take_turns
from ptq_cli.collectors.channel_collector import ChannelCollector
from ptq_cli.collectors.channel_kernels import CHANNEL_SLOTS
from ptq_cli.collectors.channel_statistics import ChannelStatistics
from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import Collector, MaxCollector
from ptq_cli.runtime.machine import usable_cores

ROUNDS = 9
CASES: tuple[tuple[str, tuple[int, ...], int], ...] = (
    ("convolution, early", (8, 64, 112, 112), 1),
    ("convolution, middle", (16, 512, 28, 28), 1),
    ("convolution, last of a ResNet-50", (32, 2048, 7, 7), 1),
    ("transformer, hidden", (32, 64, 768), -1),
    ("transformer, feed-forward", (32, 64, 3072), -1),
    ("transformer, heads", (32, 12, 64, 64), 1),
)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Measure the cost of counting each channel.")
    lines = [
        f"`python -m benchmarks.channels --write`, {processor()}, one of {usable_cores()} cores; "
        f"processor time, medians of {ROUNDS} rounds in which the collectors take turns, on normal values "
        "after a ReLU. The ratio compares calibration with `calibration.activation_axis`, which also counts "
        "the whole tensor, with calibration without it.",
        "",
        "| tensor | shape, axis | whole tensor, per value | each channel too, per value "
        "| ratio, histogram | ratio, max | table | in the file |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows()),
    ]
    print_part("channels", lines, write=write)


def rows() -> Iterator[tuple[str, ...]]:
    """Measure, and yield one row per case."""
    random = np.random.default_rng(0)
    for name, shape, axis in CASES:
        values = np.maximum(random.standard_normal(shape), 0).astype(np.float32)
        each = ChannelCollector(axis)
        collectors: list[Collector] = [
            HistogramCollector(),
            make_collector("histogram", axis=axis),
            MaxCollector(),
            make_collector("max", axis=axis),
        ]
        works = [partial(collector.update, values) for collector in collectors]
        whole, both, least, most = take_turns(works, ROUNDS, time.thread_time)
        each.update(values)
        channels = each.statistics()
        yield (
            name,
            f"{'·'.join(map(str, shape))}, {axis}",
            f"{1e9 * median(whole) / values.size:.2f} ns",
            f"{1e9 * median(both) / values.size:.2f} ns",
            f"{median_ratio(both, whole):.1f}",
            f"{median_ratio(most, least):.1f}",
            f"{channels.size * CHANNEL_SLOTS * 4 / 1e6:.1f} MB",
            f"{file_bytes(channels) / 1e6:.1f} MB",
        )


def file_bytes(channels: ChannelStatistics) -> int:
    """Return the size of the channels' histograms in a calibration file, in bytes."""
    histograms = channels.histograms
    return (
        0
        if histograms is None
        else sum(array.nbytes for array in (histograms.sizes, histograms.keys, histograms.counts))
    )


if __name__ == "__main__":
    main()
