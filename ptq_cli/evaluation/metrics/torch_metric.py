"""Any class of torchmetrics on ptq's arrays; checks of what a user's metric gets and returns."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_sum

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.bootstrap import Float64Array
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.metrics.base import Labels, Resampling, SampleSums, State, Targets, as_number, raised
from ptq_cli.models.quiet_export import one_thread

CHUNK = 8  # Samples that stay together: one update of the metric each
_MOST_BLOCKS = 256
_BLOCK_MEMORY = 64 << 20
_SEED = 0

# Numbers in a metric's state that are kept for each update, where the parts of a set are measured apart.
MOST_KEPT = 2**14

NO_SUMS = "its state in torchmetrics does not consist of sums over samples"
TOO_LARGE = "its state in torchmetrics is too large to keep for blocks of samples"


class TorchMetric:
    """A metric of torchmetrics.

    Where all its states are sums over samples, they are kept for up to 256 blocks of samples, drawn so that a
    block is not a stretch of the set; from these comes the interval. Other states, such as all scores, are
    kept whole.

    Args:
        higher_is_better: False for an error; None if torchmetrics says so.

    Shapes: update: as the metric takes them; of an output [N, 1] for labels [N] the axis of 1 is left out.

    Source: Detlefsen et al. 2022, "TorchMetrics - Measuring reproducibility in PyTorch".
    """

    unit: ClassVar[Unit] = "number"
    targets: ClassVar[Targets] = "any"

    def __init__(self, name: str, metric: Metric, higher_is_better: bool | None) -> None:
        self._name = name
        self._metric = metric
        self.higher_is_better = _better(name, metric, higher_is_better)
        self._seen = 0
        self._apart: list[tuple[int, Float64Array]] | None = None
        """What each update has added, by its chunk, where others have measured what lies before."""
        self._sums: Float64Array | None = None
        sizes = [value.numel() if isinstance(value, torch.Tensor) else 0 for value in self._states().values()]
        is_sum = [reduction is dim_zero_sum for reduction in metric._reductions.values()]
        self._blocks, self._why = 0, NO_SUMS
        if sizes and all(sizes) and all(is_sum):
            self._blocks = min(_MOST_BLOCKS, _BLOCK_MEMORY // (8 * sum(sizes)))
            self._sums, self._why = np.zeros((self._blocks, sum(sizes))), TOO_LARGE

    @property
    def is_resumable(self) -> bool:
        """Whether all that it knows is in its states; one around other metrics has none of its own."""
        return bool(self._states())

    @property
    def indivisible(self) -> str:
        """Why the parts of a set cannot be measured apart; an empty text if they can."""
        if not self.is_resumable:
            return "it has no state of its own in torchmetrics"
        if self._sums is not None:
            is_small = self._blocks and self._sums.shape[1] <= MOST_KEPT
            return "" if is_small else "its state in torchmetrics is too large to keep for each batch"
        if all(isinstance(value, list) for value in self._states().values()):
            return ""
        return "its state in torchmetrics does not consist of sums or lists over samples"

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        if output.ndim == labels.ndim + 1 and output.shape[-1] == 1:
            output = output[..., 0]
        with _quietly(self._name):
            predictions, targets = (torch.from_numpy(np.ascontiguousarray(a)) for a in (output, labels))
            if not self._blocks or self._sums is None:
                self._metric.update(predictions, targets)
                self._seen += len(output)
                return
            start = 0
            while start < len(output):
                end = min(len(output), start + CHUNK - self._seen % CHUNK)
                self._metric.reset()
                self._metric.update(predictions[start:end], targets[start:end])
                self._add(self._seen // CHUNK, self._flat())
                self._seen += end - start
                start = end

    def compute(self) -> float:
        """Return the value over all samples so far."""
        if not self._seen:
            raise MetricError(f"{self._name} has seen no sample", hint="evaluate on data that has samples")
        if self._blocks and self._sums is not None:
            return self._of_sums(self._sums.sum(axis=0))
        return self._value()

    def resampling(self) -> Resampling:
        """Each block's sums, of which the value is made; or why there are none."""
        if not self._blocks or self._sums is None:
            return self._why
        chunks = -(-self._seen // CHUNK)
        return SampleSums(self._sums[: min(chunks, self._blocks)], self._of_many_sums, blocks=True)

    def state(self) -> State:
        """Return what a checkpoint holds."""
        state = {"seen": np.array(self._seen)}
        if self._apart is not None and self._sums is not None:
            chunks, added = zip(*self._apart, strict=True) if self._apart else ((), ())
            rows = np.array(added).reshape(-1, self._sums.shape[1])
            return state | {"chunks": np.array(chunks, np.int64), "added": rows}
        if self._sums is not None:
            return state | {"sums": self._sums}
        for name, value in self._states().items():
            parts = value if isinstance(value, list) else [value]
            state |= {f"{name}.{index}": _as_array(part) for index, part in enumerate(parts)}
        return state

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set, and keep what each update adds."""
        self._seen, self._apart = sample, []

    def join(self, states: Sequence[State]) -> None:
        """Go on from what was kept of all parts of a set, in their order; sums are those of the only one."""
        self._seen = int(states[-1]["seen"])
        if self._sums is not None:
            for state in states:
                if "sums" in state:
                    self._sums = state["sums"].copy()
                    continue
                for chunk, added in zip(state["chunks"].tolist(), state["added"], strict=True):
                    self._add(chunk, added)
            return
        for name, value in self._states().items():
            places = [(state, f"{name}.{index}") for state in states for index in range(len(state))]
            parts = [torch.from_numpy(state[key].copy()) for state, key in places if key in state]
            # A state that is not a list cannot be of several parts, see ``indivisible``.
            setattr(self._metric, name, parts if isinstance(value, list) else parts[0])
        self._metric._update_count = 1  # or compute() would warn that nothing was counted

    def _add(self, chunk: int, added: Float64Array) -> None:
        if self._apart is not None:
            self._apart.append((chunk, added))
        elif self._sums is not None:
            self._sums[_block(chunk, self._blocks)] += added

    def _states(self) -> dict[str, Any]:
        return dict(self._metric.metric_state)

    def _flat(self) -> Float64Array:
        parts = [value.detach().double().reshape(-1) for value in self._states().values()]
        flat: Float64Array = torch.cat(parts).numpy()
        return flat

    def _of_many_sums(self, sums: Float64Array) -> Float64Array:
        flat = sums.reshape(-1, sums.shape[-1])
        values = np.array([self._of_sums(row) for row in flat])
        return values.reshape(sums.shape[:-1])

    def _of_sums(self, sums: Float64Array) -> float:
        """Return the metric's value of these states."""
        start = 0
        for name, value in self._states().items():
            part = torch.from_numpy(sums[start : start + value.numel()].copy())
            setattr(self._metric, name, part.reshape(value.shape).to(value.dtype))
            start += value.numel()
        self._metric._update_count, self._metric._computed = 1, None
        return self._value()

    def _value(self) -> float:
        with _quietly(self._name):
            found = self._metric.compute()
        return as_number(self._name, _as_array(found))


@contextmanager
def _quietly(name: str) -> Iterator[None]:
    """Run torchmetrics without its warnings, on one thread; what it raises becomes a coded error."""
    try:
        with warnings.catch_warnings(), one_thread(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        raise raised(name, error) from error


def _as_array(value: Any) -> Array:
    if isinstance(value, torch.Tensor):
        found: Array = value.detach().cpu().numpy()
        return found
    return np.asarray(value)


def _block(chunk: int, blocks: int) -> int:
    """Return the block of a chunk: each turn of ``blocks`` chunks has an order of its own."""
    turn, place = divmod(chunk, blocks)
    return int(_order(turn, blocks)[place]) if turn else place


@lru_cache(maxsize=4)  # float and quantized models go through the same turn
def _order(turn: int, blocks: int) -> Labels:
    return np.random.default_rng([_SEED, turn]).permutation(blocks)


def _better(name: str, metric: Metric, given: bool | None) -> bool:
    better = given if given is not None else metric.higher_is_better
    if better is None:
        raise MetricError(
            f"{name}: torchmetrics does not say whether higher is better",
            hint="set higher_is_better = true, or false for an error, under [[metric]] in ptq.toml",
        )
    return better
