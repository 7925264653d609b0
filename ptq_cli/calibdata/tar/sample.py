"""Join single samples to batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.checked_settings import normalize_images
from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.calibdata.dataset.data_files import is_image
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS
from ptq_cli.calibdata.dataset.labels import LABEL_NAMES
from ptq_cli.core.errors import DataShapeError, DataTypeError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.recipe.sections import ImageSettings


@dataclass(frozen=True)
class Sample:
    """One sample.

    Attributes:
        images: decoded images by the name of the input, not normalized.
    """

    name: str
    arrays: Mapping[str, Array]
    images: Mapping[str, npt.NDArray[np.uint8]]
    label: int | None


def join_samples(samples: Sequence[Sample], settings: ImageSettings, source: str) -> Batch:
    """Return a batch of samples that have arrays and images with the same names."""
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


# The role of a tar member in its sample, which its name tells, as in WebDataset.
#
# A sample is consecutive members with one key: the path up to the first dot of the base name. The rest of
# the name, its extension, says what the member is.


class Kind(Enum):
    """How a member is read."""

    IMAGE = "image"
    ARRAY = "array"
    CLASS = "class"
    LABEL = "label"
    JSON = "json"


@dataclass(frozen=True)
class Role:
    """The role of a member in its sample.

    Attributes:
        name: name of the model's input; empty for labels, and where the member's name has none.
    """

    kind: Kind
    name: str = ANONYMOUS


def split_name(path: str) -> tuple[str, str] | None:
    """Return the key and the extension of a member's path, or None if it does not belong to a sample.

    Hidden files, and files that archivers leave behind, do not belong to a sample.

    Example:
        >>> split_name("cat/0001.input_ids.npy"), split_name("a/._0001.jpg"), split_name("README")
        (('cat/0001', 'input_ids.npy'), None, None)
    """
    folder, slash, base = path.rpartition("/")
    stem, _, extension = base.partition(".")
    return (folder + slash + stem, extension) if stem and extension else None


def role_of(extension: str) -> Role | None:
    """Return the role of a member with this extension, or None for one that is skipped without reading."""
    name, _, suffix = extension.rpartition(".")
    suffix = suffix.lower()
    if is_image(f".{suffix}"):
        return Role(Kind.IMAGE, name)
    if suffix == "npy":
        return Role(Kind.LABEL) if name in LABEL_NAMES else Role(Kind.ARRAY, name)
    if suffix in ("cls", "json") and not name:
        return Role(Kind.CLASS if suffix == "cls" else Kind.JSON)
    return None
