"""What the networks of a zoo are for, as numbers: lines read, classes found, boxes and maps alike.

A task keeps what it needs of the first output of each sample. From that, from what the float network gave and
from the labels it tells the result in words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.core.tensors import Array

Labels = Mapping[str, Any]
Boxes = npt.NDArray[Any]
# Boxes below the first are dropped; two of one network that overlap by more than the second are the same
# object; a box of the float network is found if one overlaps it by more than the third.
LEAST_SCORE, SAME_OBJECT, SAME_BOX = 0.2, 0.45, 0.5
MARKED = 0.3  # Pixels of a map above this belong to a line of text


@dataclass(frozen=True)
class Task:
    """What is kept of a sample's first output, and the words for all samples.

    Attributes:
        keep: from an output of one sample.
        tell: from what was kept of a network, of the float network, and from the labels.
    """

    keep: Callable[[Array], Any]
    tell: Callable[[Sequence[Any], Sequence[Any], Labels], str]


def task_of(network: str, labels: Labels) -> Task | None:
    """Return the task of a network, by what its labels are, or by its name where it has none.

    Example:
        >>> task_of("upright", {"label": [0, 1]}) is CLASSES, task_of("embedding", {}) is None
        (True, True)
    """
    named = next((task for key, task in TASKS.items() if key in labels), None)
    return named or (BOXES if network in DETECTORS else None)


def likeliest(output: Array) -> Array:
    """Return the likeliest class of each step; of one step for a classifier.

    Shapes:
        output: [..., classes] of one sample; the result is [steps].

    Example:
        >>> likeliest(np.array([[[0.1, 0.9], [0.8, 0.2]]])).tolist()
        [1, 0]
    """
    return np.asarray(output.reshape(-1, output.shape[-1]).argmax(1))


def read_text(steps: Array, characters: Sequence[str]) -> str:
    """Return the text of the likeliest characters: repeats are merged, blanks (0) and spaces dropped.

    Source:
        Graves et al. 2006, "Connectionist temporal classification", section 3.2, best path decoding.

    Example:
        >>> read_text(np.array([1, 1, 0, 1, 2]), ["", "a", "b"])
        'aab'
    """
    before = np.concatenate([[0], steps[:-1]])
    return "".join(characters[step] for step in steps[(steps != 0) & (steps != before)]).replace(" ", "")


def _tell_text(kept: Sequence[Array], _: Sequence[Array], labels: Labels) -> str:
    truth = ["".join(text.split()) for text in labels["text"][: len(kept)]]
    texts = [read_text(steps, labels["characters"]) for steps in kept]
    pairs = list(zip(texts, truth, strict=True))
    blocks = [SequenceMatcher(None, *pair, False).get_matching_blocks() for pair in pairs]
    right = sum(block.size for found in blocks for block in found) / sum(map(len, truth))
    return f"lines {np.mean([read == wanted for read, wanted in pairs]):.3f}, characters {right:.3f}"


def _tell_classes(kept: Sequence[Array], _: Sequence[Array], labels: Labels) -> str:
    return f"top-1 {np.mean(np.ravel(kept) == np.array(labels['label'][: len(kept)])):.3f}"


def overlaps(box: Boxes, others: Boxes) -> Boxes:
    """Return intersection over union of a box with others.

    Shapes:
        box: [4 or more], others: [n, 4 or more], left, top, right and bottom first; the result is [n].

    Edge case:
        Two boxes without an area overlap by 0.

    Example:
        >>> overlaps(np.array([0.0, 0, 2, 2]), np.array([[0.0, 0, 2, 1], [5, 5, 6, 6]])).tolist()
        [0.5, 0.0]
    """
    sides = np.minimum(box[2:4], others[:, 2:4]) - np.maximum(box[:2], others[:, :2])
    shared = sides.clip(0).prod(1)
    areas = (box[2:4] - box[:2]).prod() + (others[:, 2:4] - others[:, :2]).prod(1) - shared
    return np.asarray(shared / np.maximum(areas, 1e-9))


def boxes(output: Boxes) -> Boxes:
    """Return the boxes of a YOLOv8 head, the best first, without those that overlap a better one.

    Shapes:
        output: [1, 4 + classes, n], centers and sizes first; the result is [m, 6], rows of left, top, right,
            bottom, score and class.

    Example:
        >>> one = np.array([2.0, 2, 2, 2, 0.9, 0])
        >>> boxes(np.stack([one, [2, 2, 2, 2, 0.8, 0], [9, 9, 2, 2, 0.1, 0]], axis=1)[None]).tolist()
        [[1.0, 1.0, 3.0, 3.0, 0.9, 0.0]]
    """
    rows = output[0].T
    rows = rows[rows[:, 4:].max(1) > LEAST_SCORE]
    half = rows[:, 2:4] / 2
    scores = rows[:, 4:]
    left = np.column_stack([rows[:, :2] - half, rows[:, :2] + half, scores.max(1), scores.argmax(1)])
    left = left[left[:, 4].argsort()[::-1]]
    kept = []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        left = left[(overlaps(best, left) < SAME_OBJECT) | (left[:, 5] != best[5])]
    return np.reshape(kept, (-1, 6))


def found_boxes(ours: Boxes, wanted: Boxes) -> int:
    """Return how many boxes match one of those wanted, of the same class, each at most once.

    Example:
        >>> box = np.array([[0.0, 0, 2, 2, 0.9, 1]])
        >>> found_boxes(np.concatenate([box, box]), box)
        1
    """
    free = np.ones(len(wanted))
    for box in ours:
        match = overlaps(box, wanted) * (wanted[:, 5] == box[5]) * free
        if match.size and match.max() > SAME_BOX:
            free[match.argmax()] = 0
    return int(len(wanted) - free.sum())


def _tell_boxes(kept: Sequence[Boxes], of_float: Sequence[Boxes], _: Labels) -> str:
    found = sum(found_boxes(*pair) for pair in zip(kept, of_float, strict=True))
    total = sum(map(len, kept))
    f1 = 2 * found / max(1, total + sum(map(len, of_float)))
    return f"{total} boxes, F1 against float {f1:.3f}"


def _keep_map(output: Array) -> Array:
    return np.asarray(output[0, 0] > MARKED)


def _tell_maps(kept: Sequence[Array], of_float: Sequence[Array], labels: Labels) -> str:
    found = [
        line_is_marked(marked, line)
        for marked, lines in zip(kept, labels["boxes"], strict=False)
        for line in lines
    ]
    shared, either = (int(how(kept, of_float).sum()) for how in (np.logical_and, np.logical_or))
    return f"lines found {np.mean(found):.3f}, IoU against float {shared / max(1, either):.3f}"


def line_is_marked(marked: Array, line: Sequence[int]) -> bool:
    """Return whether most of the middle third of a line of text is marked.

    Example:
        >>> line_is_marked(np.ones((12, 40), bool), (0, 0, 40, 12))
        True
    """
    left, top, right, bottom = line
    third = (bottom - top) // 3
    return bool(marked[top + third : bottom - third, left + 4 : right - 4].mean() > 0.5)


TEXT, CLASSES, MAPS, BOXES = (
    Task(likeliest, _tell_text),
    Task(likeliest, _tell_classes),
    Task(_keep_map, _tell_maps),
    Task(boxes, _tell_boxes),
)
TASKS = {"text": TEXT, "label": CLASSES, "boxes": MAPS}  # By a key of ``labels.json``
DETECTORS = frozenset({"nudenet"})  # Networks with the head of YOLOv8, and no labels
