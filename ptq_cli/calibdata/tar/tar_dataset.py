"""WebDataset-style tar shards: samples are consecutive members with one key, read forward as they come."""

import contextlib
import copy
import gzip
import itertools
from collections.abc import Collection, Generator, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import IO, Self, cast

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, Selection
from ptq_cli.calibdata.dataset.data_files import digest_files, escaped_name, unreadable
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, Dataset
from ptq_cli.calibdata.images.image_settings import (
    check_image_settings,
    image_spec,
    normalize_images,
)
from ptq_cli.calibdata.tar.samples import (
    Entry,
    Sample,
    entries_of,
    is_sample,
    read_sample,
)
from ptq_cli.core.errors import (
    DataNameError,
    DataShapeError,
    DataTypeError,
    EmptyDataError,
    LabelError,
)
from ptq_cli.core.tensors import Array, TensorSpec, format_shape
from ptq_cli.recipe.sections import ImageSettings

GZIP_MAGIC = b"\x1f\x8b"
_MEMBERS = "ptq reads members with these names: KEY.jpg, KEY.npy, KEY.INPUT.npy, KEY.cls"
_EVERYTHING = 2**62


class TarDataset(Dataset):
    r"""The samples of tar shards, in the order of the files and of the members in each.

    Nothing is extracted, and no index is made: batches that are not selected are skipped by seeking from
    header to header, or by decompressing. Members with other extensions than those of ``member_names`` are
    skipped without reading them, and so are arrays that are not inputs of the model.
    """

    extras_allowed = True

    def __init__(
        self, source: str, files: Sequence[str], settings: ImageSettings, samples: int | None = None
    ) -> None:
        check_image_settings(settings)
        self.source = source
        self.count: int | None = None
        self.class_names: tuple[str, ...] = ()
        self._files = tuple(files)
        self._settings = settings
        self._limit = _EVERYTHING if samples is None else samples
        first = self._first()
        self._images = frozenset(first.images)
        self.has_labels = first.label is not None
        self.default_input = ANONYMOUS if ANONYMOUS in {*first.arrays, *first.images} else None
        self.specs = {
            name: image_spec(name, (image.shape[0], image.shape[1]), settings)
            for name, image in first.images.items()
        } | {
            name: TensorSpec(name, array.dtype, (None, *array.shape)) for name, array in first.arrays.items()
        }

    def only(self, names: Collection[str]) -> Self:
        """Return the same shards; other images and arrays are skipped without reading them."""
        narrowed = copy.copy(self)
        narrowed.specs = {name: spec for name, spec in self.specs.items() if name in names}
        return narrowed

    def digest(self) -> str:
        """SHA-256 of the files, as ``digest_files`` computes it."""
        return digest_files(self._files)

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        pending: list[Sample] = []
        with contextlib.closing(self._samples(batch_size, selection)) as samples:
            for sample in samples:
                pending.append(sample)
                if len(pending) == batch_size:
                    yield join_samples(pending, self._settings, self.source)
                    pending.clear()
        # A batch is selected as a whole or not at all, so that only the last batch can be smaller.
        if pending:
            yield join_samples(pending, self._settings, self.source)

    def _samples(self, batch_size: int, selection: Selection) -> Generator[Sample]:
        count = 0
        with contextlib.closing(_groups(self._files)) as groups:
            while count < self._limit and (entries := next(groups, None)) is not None:
                if count // batch_size not in selection:
                    count += is_sample(entries)
                    continue
                sample = read_sample(entries, self._settings, self.specs, with_json=self.has_labels)
                if sample is not None:
                    self._require_like_first(sample)
                    yield sample
                    count += 1

    def _first(self) -> Sample:
        with contextlib.closing(_groups(self._files)) as groups:
            for entries in groups:
                sample = read_sample(entries, self._settings, None, with_json=True)
                if sample is None:
                    continue
                if not sample.arrays and not sample.images:
                    raise DataNameError(f"sample '{sample.name}' has no image and no array", hint=_MEMBERS)
                return sample
        raise EmptyDataError(f"data '{self.source}' has no samples", hint=_MEMBERS)

    def _require_like_first(self, sample: Sample) -> None:
        for name in self.specs:
            kind, found = ("image", sample.images) if name in self._images else ("array", sample.arrays)
            if name not in found:
                shown = f"no {kind} '{name}'" if name else f"no {kind}"
                raise DataNameError(
                    f"sample '{sample.name}' of '{self.source}' has {shown}, unlike the first sample",
                    hint="every sample must have the same members, one directly after the other",
                )
        if (sample.label is not None) != self.has_labels:
            raise LabelError(
                f"sample '{sample.name}' of '{self.source}' has {'no' if self.has_labels else 'a'} label, "
                "unlike the first sample",
                hint="label every sample or none",
            )


def _groups(files: Sequence[str]) -> Generator[Iterator[Entry]]:
    for file in files:
        with _opened(file) as stream:
            for _, entries in itertools.groupby(entries_of(stream, file), attrgetter("key")):
                yield entries


@contextlib.contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    """Open a shard; if it is compressed with gzip, it is decompressed while it is read."""
    with contextlib.ExitStack() as stack:
        try:
            stream: IO[bytes] = stack.enter_context(Path(file).open("rb"))
            compressed = stream.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            stream.seek(0)
        except OSError as error:
            raise unreadable(f"data '{escaped_name(file)}'", error) from error
        if compressed:
            stream = stack.enter_context(cast("IO[bytes]", gzip.GzipFile(fileobj=stream)))
        yield stream


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
