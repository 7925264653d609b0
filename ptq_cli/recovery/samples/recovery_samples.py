"""The samples of the calibration data that a pass learns from, and those that it is judged by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptq_cli.core.tensors import Array


@dataclass(frozen=True, kw_only=True)
class RecoverySamples:
    """What a pass learns from, and what it is judged by: no sample is in both.

    Attributes:
        fit, decide: the model's inputs, in pieces of some samples each.
    """

    fit: Sequence[Mapping[str, Array]]
    decide: Sequence[Mapping[str, Array]]
