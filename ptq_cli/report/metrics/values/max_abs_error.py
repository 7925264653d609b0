"""The largest difference between the two models' outputs."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import paired_rows
from ptq_cli.report.metrics.recorder import State


class MaxAbsError:
    """``max |float - quantized|`` over all elements of all samples.

    Shapes:
        update: any, both the same.

    Units:
        the output's own.

    Edge case:
        0 for identical outputs, and for outputs without elements.

    Source:
        Higham 2002, "Accuracy and stability of numerical algorithms", chapter 6 (the max norm).

    Example:
        >>> error = MaxAbsError()
        >>> error.update(np.array([[1.0, -3.0]]), np.array([[1.5, -1.0]]))
        >>> error.compute()
        2.0
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = False

    def __init__(self) -> None:
        self._largest = 0.0

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:  # noqa: ARG004 - one interface
        """Any output has a largest difference."""
        return True

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Look at one batch."""
        for exact, noisy in paired_rows(float_output, quantized_output):
            self._largest = max(self._largest, float(np.max(np.abs(exact - noisy), initial=0.0)))

    def compute(self) -> float:
        """The largest difference so far."""
        return self._largest

    def resampling(self) -> str:
        """None: no drawing of samples tells how much larger one of those not drawn is."""
        return "the largest error of these samples does not bound that of other samples"

    def state(self) -> State:
        """Return what a checkpoint holds."""
        return {"largest": np.array(self._largest)}

    def load_state(self, state: State) -> None:
        """Go on from what a checkpoint held."""
        self._largest = float(state["largest"])

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set, which changes no difference."""

    def join(self, states: Sequence[State]) -> None:
        """Go on from the largest difference of all parts of a set."""
        self._largest = max(float(state["largest"]) for state in states)
