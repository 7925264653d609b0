"""Mean average precision: the metric of this sample, as a user writes one.

A class with `update` and `compute`; with `state_dict` and `load_state_dict` an evaluation that was
interrupted continues. `found` is a function, and so has an interval: it gives one number for each scene.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

LEAST_SCORE = 0.05
SAME = 0.5
"""Boxes of one class that share more of their union than this are the same shape."""
CERTAIN = 0.4
"""The score from which on `found` counts a detection."""

Array = npt.NDArray[np.float32]


class MeanAveragePrecision:
    """The area under precision against recall, mean over classes; a detection is right at IoU 0.5."""

    higher_is_better = True

    def __init__(self) -> None:
        """Starts with no scene."""
        self._hits: list[Array] = []
        self._truths = np.zeros(0, np.int64)

    def update(self, output: Array, labels: Array) -> None:
        """Adds scenes: output [scenes, 4 + classes, cells], labels [scenes, shapes, 5]."""
        if not len(self._truths):
            self._truths = np.zeros(output.shape[1] - 4, np.int64)
        for cells, rows in zip(output, labels, strict=True):
            truth = rows[rows[:, 0] >= 0]
            np.add.at(self._truths, truth[:, 0].astype(np.int64), 1)
            self._hits.append(judged(detect(cells), truth))

    def compute(self) -> float:
        """Returns the mean over all classes that have a shape; 0 to 1."""
        hits = np.concatenate(self._hits)
        classes = np.flatnonzero(self._truths)
        return float(np.mean([_area(hits[hits[:, 0] == kind], self._truths[kind]) for kind in classes]))

    def state_dict(self) -> dict[str, npt.NDArray[np.generic]]:
        """Returns all that was added."""
        return {"hits": np.concatenate([np.zeros((0, 3), np.float32), *self._hits]), "truths": self._truths}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Continues from a state."""
        self._hits = [np.asarray(state["hits"], np.float32)]
        self._truths = np.asarray(state["truths"], np.int64)


def found(output: Array, labels: Array) -> npt.NDArray[np.float64]:
    """Returns the F1 of each scene's detections: 1 where all shapes are found, and nothing else."""
    scores = []
    for cells, rows in zip(output, labels, strict=True):
        truth = rows[rows[:, 0] >= 0]
        hits = judged(detect(cells, CERTAIN), truth)[:, 2]
        scores.append(2 * hits.sum() / (len(hits) + len(truth)))
    return np.array(scores)


def detect(cells: Array, least: float = LEAST_SCORE) -> Array:
    """Returns what one scene holds, [detections, 6]: class, score and box, the surest first.

    Of detections of one class that are the same shape, the surest stays.
    """
    boxes, scores = cells[:4].T, cells[4:].T
    places, kinds = np.nonzero(scores > least)
    rows = np.column_stack([kinds, scores[places, kinds], boxes[places]]).astype(np.float32)
    rows = rows[np.argsort(-rows[:, 1], kind="stable")]
    kept: list[Array] = []
    for row in rows:
        same = [other for other in kept if other[0] == row[0]]
        if not same or shared(row[2:], np.array(same)[:, 2:]).max() <= SAME:
            kept.append(row)
    return np.array(kept, np.float32).reshape(-1, 6)


def judged(detections: Array, truth: Array) -> Array:
    """Returns class, score, and whether it is right of each detection, [detections, 3].

    Each shape is found once.
    """
    free = np.ones(len(truth), bool)
    right = np.zeros((len(detections), 3), np.float32)
    for row, (kind, score, *box) in zip(right, detections, strict=True):
        row[:2] = kind, score
        wanted = np.flatnonzero(free & (truth[:, 0] == kind))
        if not len(wanted):
            continue
        share = shared(np.array(box), truth[wanted, 1:])
        if share.max() >= SAME:
            row[2], free[wanted[share.argmax()]] = 1, False
    return right


def shared(box: Array, others: Array) -> npt.NDArray[np.float64]:
    """Returns the intersection over the union of a box [4] and others [n, 4]."""
    width = np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0])
    height = np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1])
    inner = np.maximum(width, 0) * np.maximum(height, 0)
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    union = (box[2] - box[0]) * (box[3] - box[1]) + areas - inner
    return np.asarray(inner / np.maximum(union, 1e-9), np.float64)


def _area(hits: Array, truths: int) -> float:
    """The area under precision against recall, where precision is the best at that recall or above."""
    right = hits[np.argsort(-hits[:, 1], kind="stable"), 2]
    count = np.cumsum(right)
    precision = np.maximum.accumulate((count / np.arange(1, len(right) + 1))[::-1])[::-1]
    return float((precision * right).sum() / truths)
