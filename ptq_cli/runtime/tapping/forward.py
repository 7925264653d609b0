"""What feeds the collectors: something that runs a batch and returns its tapped tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.core.tensors import Array

Tensor = Any
"""An array, or a tensor on the device that the model runs on; both have a ``shape``."""
Run = Callable[[Mapping[str, Array]], Sequence[Tensor]]


def whole(batch: Batch) -> Sequence[Batch]:
    """Return a batch as its only piece."""
    return (batch,)


def forget(arrays: Sequence[Tensor]) -> None:
    """Do nothing with arrays that are done with."""
    del arrays


def as_it_is(name: str, array: Array) -> Array:
    """Return an array as it is."""
    del name
    return array


@dataclass(frozen=True, kw_only=True)
class ForwardPass:
    """A run of the model that gives some of the tapped tensors.

    Attributes:
        taps: their names.
        run: returns them for a batch; from several threads at once where ``Forward.at_once`` is above 1.
        recycle: takes arrays that ``run`` returned, once they are counted; their memory is used again.
        in_model_order: a tapped tensor, as ``run`` returned it, on the host in the model's shape and order.
        by_channels: the same without a copy, for whom two axes of channels are as good as one.
    """

    taps: tuple[str, ...]
    run: Run
    recycle: Callable[[Sequence[Tensor]], None] = forget
    in_model_order: Callable[[str, Tensor], Array] = as_it_is
    by_channels: Callable[[str, Tensor], Array] = as_it_is


@dataclass(frozen=True)
class Forward:
    """How batches are run.

    Attributes:
        passes: each piece takes all of them, one after the other; together they give all tapped tensors.
        at_once: how many threads run pieces, each of which also counts what it ran.
        split: cuts a batch into the pieces that are run.
    """

    passes: tuple[ForwardPass, ...]
    at_once: int = 1
    split: Callable[[Batch], Sequence[Batch]] = whole
