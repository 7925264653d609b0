"""Time to decide ranges: every method on many tensors, from the statistics of one saved calibration.

python -m benchmarks.amax            print the table
python -m benchmarks.amax --write    also write it to benchmarks/RESULTS.md
"""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.results_page import is_to_write, print_part, processor
from benchmarks.timing import seconds, take_turns
from ptq_cli.amax.decide import decide
from ptq_cli.amax.method_registry import METHODS
from ptq_cli.amax.weight_ranges import choose_weight_ranges
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.formats import INT8, INT8_NARROW, UINT8, IntegerFormat, PerAxis
from ptq_cli.recipe.sections import AmaxSettings
from ptq_cli.runtime.machine import usable_cores

TENSORS = 300
VALUES = 200_000
ROUNDS = 3
CHANNELS, CHANNEL_SIZE = 64, 576

Shape = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
SHAPES: dict[str, Shape] = {
    "two-sided": lambda x: x,
    "ReLU": lambda x: np.maximum(x, 0),
    "heavy tails": lambda x: x**3,
    "GELU-like": lambda x: np.where(x > 0, x, x / 20),
}


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Measure how long deciding ranges takes.")
    lines = [
        f"`python -m benchmarks.amax --write`, {processor()}, one of {usable_cores()} cores; medians "
        f"of {ROUNDS} rounds in which the methods take turns. {TENSORS} tensors of {VALUES:,} values, a "
        f"quarter each {', '.join(SHAPES)}.",
        "",
        "| measurement | required | seconds |",
        "|---|---|---|",
        *(f"| {what} | {asked} | {found} |" for what, asked, found in rows()),
    ]
    print_part("amax", lines, write=write)


def rows() -> Iterator[tuple[str, str, str]]:
    """Measure, and yield the measurement, the requirement and the result."""
    tensors = list(make_tensors())
    compiling = sum(seconds(partial(decide_all, tensors[:4], name, UINT8, False)) for name in METHODS)
    targets = {"uint8 with a zero point": (UINT8, False), "int8, symmetric": (INT8, True)}
    for target, (format, symmetric) in targets.items():
        works = [partial(decide_all, tensors, name, format, symmetric) for name in METHODS]
        times = [median(column) for column in take_turns(works, ROUNDS)]
        yield f"all four methods, {target}", "at most 5", f"{sum(times):.2f}"
        for name, time in zip(METHODS, times, strict=True):
            yield f"`{name}`, {target}", "", f"{time:.3f}"
    weight = np.random.default_rng(1).standard_normal((CHANNELS, CHANNEL_SIZE)).astype(np.float32)
    works = [partial(decide_weight, weight, name) for name in METHODS]
    for name, column in zip(METHODS, take_turns(works, ROUNDS), strict=True):
        per_channel = 1e3 * median(column) / CHANNELS
        yield f"`{name}`, one weight channel of {CHANNEL_SIZE} values", "", f"{per_channel:.2f} ms"
    yield "compiling the searches, or loading them from the cache", "", f"{compiling:.2f}"


def make_tensors() -> Iterator[TensorStatistics]:
    """Yield the statistics of seeded tensors."""
    random = np.random.default_rng(0)
    for index in range(TENSORS):
        shape = list(SHAPES.values())[index % len(SHAPES)]
        collector = HistogramCollector()
        collector.update(shape(random.standard_normal(VALUES)).astype(np.float32))
        yield collector.statistics()


def decide_all(tensors: list[TensorStatistics], method: str, format: IntegerFormat, symmetric: bool) -> None:
    """Decide the parameters of every tensor with one method."""
    for statistics in tensors:
        decide(statistics, AmaxSettings(method=method), format, symmetric=symmetric)


def decide_weight(weight: npt.NDArray[np.float32], method: str) -> None:
    """Decide the ranges of a weight's channels."""
    choose_weight_ranges(weight, PerAxis(0), AmaxSettings(weight_method=method), INT8_NARROW)


if __name__ == "__main__":
    main()
