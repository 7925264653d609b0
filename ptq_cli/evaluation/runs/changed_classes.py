"""Which samples change their class: collected while both models run, a few numbers a sample."""

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ptq_cli.calibdata.dataset.labels import is_class_index
from ptq_cli.core.documents import decode, encode
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.document.details import ChangedSample, Changes
from ptq_cli.evaluation.metrics.base import State
from ptq_cli.evaluation.runs.model_outputs import Place

MOST_SAMPLES = 1000
MOST_PICTURES = 60

Paint = Callable[[Array], bytes | None]
"""One sample of the first input to a small JPEG; None if it is not a picture."""


class ChangeCollector:
    """Notes samples that two models put into different classes; ``paint`` draws the first sixty."""

    def __init__(self, paint: Paint | None = None) -> None:
        self._paint = paint
        self._pictures = 0
        self._total = 0
        self._samples: list[ChangedSample] = []
        self._applies = True

    @property
    def identity(self) -> str:
        """Whether it makes pictures: one that does not cannot go on for one that does."""
        return "with pictures" if self._paint is not None else "without pictures"

    def update(self, float_output: Array, quantized_output: Array, place: Place) -> None:
        """Compare a batch's first outputs.

        Shapes: float_output, quantized_output: [N, classes]; of other outputs nothing is noted, ever.
        """
        self._applies &= float_output.ndim == 2 and float_output.shape[0] == place.batch.size
        self._applies &= float_output.shape[-1:] > (1,) and float_output.shape == quantized_output.shape
        if not self._applies:
            return
        before, after = np.argmax(float_output, axis=1), np.argmax(quantized_output, axis=1)
        for row in np.flatnonzero(before != after):
            self._total += 1
            if len(self._samples) < MOST_SAMPLES:
                self._samples.append(self._sample(int(row), int(before[row]), int(after[row]), place))

    def state(self) -> State:
        """Arrays for a checkpoint."""
        text = json.dumps([self._applies, encode(Changes(self._total, (), tuple(self._samples)))])
        return {"noted": np.frombuffer(text.encode(), np.uint8)}

    def join(self, states: Sequence[State]) -> None:
        """Go on from what was noted of all parts of a set, whichever samples a part had.

        Raises:
            ValueError: a state is not JSON.
            ReportError: a state does not hold changes.
        """
        noted = [json.loads(state["noted"].tobytes()) for state in states]
        parts: list[Changes] = [decode(Changes, changes, "changes") for _, changes in noted]
        self._applies = all(applies for applies, _ in noted)
        self._total = sum(part.total for part in parts)
        ordered = sorted((sample for part in parts for sample in part.samples), key=lambda item: item.index)
        self._samples, self._pictures = [], 0
        for sample in ordered[:MOST_SAMPLES]:
            shown = bool(sample.picture) and self._pictures < MOST_PICTURES
            self._pictures += shown
            self._samples.append(sample if shown else replace(sample, picture=""))

    def changes(self, class_names: Sequence[str]) -> Changes | None:
        """Changed samples; None if the output is not one of classes."""
        return Changes(self._total, tuple(class_names), tuple(self._samples)) if self._applies else None

    def _sample(self, row: int, before: int, after: int, place: Place) -> ChangedSample:
        labels = place.batch.labels
        # What is not a class, such as a target or a mask, is not a label here.
        is_class = labels is not None and is_class_index(labels) and labels[row] >= 0
        label = int(labels[row]) if labels is not None and is_class else None
        return ChangedSample(
            index=place.first + row,
            name=place.batch.names[row],
            label=label,
            float_class=before,
            quantized_class=after,
            picture=self._picture(row, place),
        )

    def _picture(self, row: int, place: Place) -> str:
        if self._paint is None or self._pictures >= MOST_PICTURES:
            return ""
        first = next(iter(place.batch.inputs.values()))
        content = self._paint(first[row])
        if content is None:
            return ""
        self._pictures += 1
        return b64encode(content).decode()
