"""Labels: the correct answer for each sample, an array of the data named ``label`` or ``labels``.

A class is an integer, the target of a regression one or several numbers, that of a segmentation a mask of
integers.
"""

from collections.abc import Iterable

import numpy as np

from ptq_cli.calibdata.dataset.dataset import (
    Dataset,
)
from ptq_cli.core.errors import LabelError
from ptq_cli.core.tensors import Array, format_shape

LABEL_NAMES = ("label", "labels")  # reserved: never an input of the model


def find_label(names: Iterable[str], where: str) -> str | None:
    """Return the name of the array that holds the labels, or None."""
    found = [name for name in names if name in LABEL_NAMES]
    if len(found) > 1:
        raise LabelError(
            f"{where} has both 'label' and 'labels', expected one of them", hint="remove one of them"
        )
    return found[0] if found else None


def require_label_shape(dtype: np.dtype[np.generic], shape: tuple[int, ...], count: int, where: str) -> None:
    """Refuse an array that cannot be the labels of ``count`` samples: not of numbers, or of others."""
    if dtype.kind not in "iuf":
        raise LabelError(
            f"{where} has dtype {dtype}, expected numbers",
            hint="labels are class numbers from 0, or targets",
        )
    if not shape:
        raise LabelError(
            f"{where} has shape {format_shape(shape)}, expected one label per sample: [{count}]",
            hint="the first axis is the sample",
        )
    if shape[0] != count:
        raise LabelError(
            f"{where} has {shape[0]} labels for {count} samples", hint="save one label for each sample"
        )


def as_labels(array: Array, count: int, where: str) -> Array:
    """Return the labels of ``count`` samples: whole numbers as int64, others in their own dtype."""
    require_label_shape(array.dtype, array.shape, count, where)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise LabelError(f"{where} holds NaN or Inf", hint="remove samples without a label")
        return array
    labels = array.astype(np.int64)
    if array.dtype.kind == "u" and (labels < 0).any():
        raise LabelError(
            f"{where} has label {array.max()}, which does not fit into int64",
            hint="labels are indices of classes: 0, 1, …",
        )
    return labels


def is_class_index(labels: Array) -> bool:
    """Tell whether labels are one whole number per sample."""
    return labels.ndim == 1 and labels.dtype.kind in "iu"


def require_labels(dataset: Dataset, why: str) -> None:
    """Refuse data without labels; ``why``, such as ``"metric 'top1'"``, begins the message."""
    if not dataset.has_labels:
        raise LabelError(
            f"{why} needs labels, and '{dataset.source}' has none",
            hint="add an integer array 'label', or sort images into one folder for each class",
        )
