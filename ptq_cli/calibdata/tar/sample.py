"""Join single samples to batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.images.normalizing import normalize_images
from ptq_cli.core.errors import DataShapeError, DataTypeError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.recipe.sections.input_sections import ImageSettings


@dataclass(frozen=True)
class Sample:
    """One sample.

    Attributes:
        name: what messages call it.
        arrays: by the name of the input, without an axis for the samples.
        images: decoded images by the name of the input, not normalized.
        label: its class, or None.
    """

    name: str
    arrays: Mapping[str, Array]
    images: Mapping[str, npt.NDArray[np.uint8]]
    label: int | None


def join_samples(samples: Sequence[Sample], settings: ImageSettings, source: str) -> Batch:
    """Return a batch of samples that have arrays and images with the same names.

    Args:
        samples: at least one.
        settings: how the images are normalized; already checked.
        source: the data that the user named, for messages.

    Raises:
        DataShapeError: two samples differ in an array's shape, or in an image's size.
        DataTypeError: they differ in an array's dtype.

    Example:
        >>> samples = [Sample(name, {"x": np.zeros(3)}, {}, None) for name in ("a", "b")]
        >>> join_samples(samples, ImageSettings(), "it").inputs["x"].shape
        (2, 3)
    """
    names = tuple(sample.name for sample in samples)
    inputs: dict[str, Array] = {}
    for name in samples[0].arrays:
        for sample in samples[1:]:
            _require_same(name, sample, samples[0], source)
        inputs[name] = np.stack([sample.arrays[name] for sample in samples])
    for name in samples[0].images:
        inputs[name] = normalize_images([sample.images[name] for sample in samples], names, settings, source)
    labels = None
    if samples[0].label is not None:
        labels = np.array([sample.label for sample in samples], np.int64)
    return Batch(inputs, labels, names)


def _require_same(name: str, sample: Sample, first: Sample, source: str) -> None:
    found, wanted = sample.arrays[name], first.arrays[name]
    shown = f"array '{name}'" if name else "the array"
    if found.shape != wanted.shape:
        raise DataShapeError(
            f"{shown} of sample '{sample.name}' of '{source}' has shape {format_shape(found.shape)}, "
            f"but that of '{first.name}' in the same batch has {format_shape(wanted.shape)}",
            hint="pad the samples to one shape, or set batch_size = 1",
        )
    if found.dtype != wanted.dtype:
        raise DataTypeError(
            f"{shown} of sample '{sample.name}' of '{source}' has dtype {found.dtype}, "
            f"but that of '{first.name}' has {wanted.dtype}",
            hint="save all samples with the same dtype",
        )
