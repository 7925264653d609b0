"""How much work a rung of recovery has with each layer, and how long that takes on this machine."""

import math
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.progress import ProgressCallback, RungProgress
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.write.site_parameters import Parameters
from ptq_cli.recover.code_search import LARGEST_CODE, CodeGrid, Codes, products_each, search_codes
from ptq_cli.recover.layer_state import SolvedLayer
from ptq_cli.recover.least_squares import CenteredMoments, fit_least_squares
from ptq_cli.recover.quantized_layer import QuantizedLayer

MEASURED = (32, 288)  # channels and inputs of the layer that measures how fast this machine is: 10 to 50 ms
LONG_SEARCH = 8e10  # products of a search that took about five minutes of one core
SLOWEST_PRODUCT = 4e-10  # seconds, at most: for work that is short at this rate nothing is measured


@dataclass(frozen=True, kw_only=True)
class _CostModel:
    """What the parts of a rung take, in products of the search.

    Attributes:
        factors: cubes of the inputs that the factorization takes.
        sums, run: one product of so many of the sums over rows, and of the runs of a model.
        blocks: times as long takes a search with scales of blocks.
        choice: of each integer, where many channels are searched at once, beside a product with each input.
        float_sums: times as long as those of bytes take sums in float32.
        layer, group: what each layer takes, however small it is, and each group of a convolution.
    """

    factors: float
    sums: float
    run: float
    blocks: float
    choice: float
    float_sums: float
    layer: float
    group: float


COST = _CostModel(
    factors=1 / 3, sums=20, run=12, blocks=2, choice=2000, float_sums=2.0, layer=2e8, group=1e7
)  # measured: benchmarks/RESULTS.md, "Recovery"


def search_work(layer: QuantizedLayer, parameters: Parameters, rows: int = 0, run: float = 0.0) -> float:
    """Return the products of a layer's search, of the sums over rows that it is fitted to, and of its runs.

    Units: products of numbers in the search: what is faster counts as less.
    """
    size, inputs = math.prod(parameters.decided[layer.site].stored.shape), len(layer.geometry.block)
    groups, channels = layer.geometry.groups, size / inputs
    each = products_each(int(layer.site.format.qmax), inputs, int(channels) // groups)
    search = size * inputs * each * (COST.blocks if layer.geometry.blocks > 1 else 1)
    # A table has no targets but what its own weights make.
    sums = rows * inputs * (groups * inputs + (0 if layer.is_table else channels)) / COST.sums
    if layer.is_by_blocks:
        search, sums = size * (COST.choice + inputs), COST.float_sums * sums
    return groups * COST.group + search + groups * COST.factors * inputs**3 + sums + passing_work(run)


def passing_work(run: float = 0.0) -> float:
    """Return the work of a layer of which nothing is chosen, in the same units."""
    return COST.layer + run / COST.run


def takes_long(model: ir.Model, plan: Plan) -> bool:
    """Whether choosing a plan's weights again takes minutes, if they have 8 bits.

    The products of a layer's search are its outputs times the square of its inputs, but for a constant.
    """
    total = 0.0
    for site in plan.weights:
        value = model.graph.initializers.get(site.tensor)
        if value is None or value.shape is None:
            continue
        shape = value.shape.numpy()
        outputs = shape[site.axis] if site.axis is not None else 1
        total += outputs * (float(np.prod(shape)) / outputs) ** 2
    return total >= LONG_SEARCH


def seconds_of(work: float, threads: int, longer_than: float) -> float:
    """Return about how long work takes here; 0 if it is not expected to take longer than some seconds.

    Processor time is measured: a moment that others use says nothing of the minutes that follow.
    """
    if work * SLOWEST_PRODUCT / threads < longer_than:
        return 0.0
    channels, inputs = MEASURED
    random = np.random.default_rng(0)
    weight, read = random.standard_normal((channels, inputs)), random.standard_normal((inputs, 2 * inputs))
    moments = CenteredMoments(rows=2 * inputs, gram=read @ read.T, cross=np.zeros(weight.shape))
    quadratic = fit_least_squares(moments, weight, share=0.0)
    scales = np.abs(weight).max(axis=1, keepdims=True) / LARGEST_CODE
    block = np.zeros(inputs, np.int64)
    grid = CodeGrid(lowest=-LARGEST_CODE, highest=LARGEST_CODE, block=block, least=np.zeros(channels))
    nearest = Codes(integers=np.rint(weight / scales), scales=scales)
    taken = []
    for _ in range(2):  # The first one may have to load what is compiled.
        start = time.process_time()
        search_codes(quadratic, grid, nearest)
        taken.append(time.process_time() - start)
    products = channels * inputs**2 * products_each(LARGEST_CODE, inputs, channels)
    found = work * min(taken) / products / threads
    return found if found > longer_than else 0.0


def in_minutes(seconds: float) -> str:
    """Write a long time as it is spoken of.

    Example:
        >>> in_minutes(95), in_minutes(1500), in_minutes(9000)
        ('2 min', '25 min', '2.5 h')
    """
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{seconds / 3600:.1f} h"


class RungWork:
    """Tells how far a rung is, in work and not in layers, and what the layers gained so far."""

    def __init__(self, rung: str, work: Mapping[str, float], progress: ProgressCallback) -> None:
        self._stage, self._work, self._progress = f"recover ({rung})", work, progress
        self._done, self._number = 0.0, 0
        progress(RungProgress(self._stage, 0, None))

    def layer_done(self, layer: str, solved: Iterable[SolvedLayer]) -> None:
        """Say that a layer is done, after which these are solved."""
        self._done, self._number = self._done + self._work[layer], self._number + 1
        gains = [10.0 * math.log10(item.before / item.after) for item in solved if item.before and item.after]
        self._progress(
            RungProgress(
                self._stage,
                round(self._done),
                round(sum(self._work.values())),
                layer=layer,
                number=self._number,
                layers=len(self._work),
                gain_db=statistics.median(gains) if gains else 0.0,
            )
        )
