"""WebDataset-style tar shards: samples are consecutive members with one key, read forward as they come."""

import contextlib
import copy
import gzip
import itertools
from collections.abc import Collection, Generator, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import IO, Self, cast

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, Dataset
from ptq_cli.calibdata.dataset.file_names import escaped_name
from ptq_cli.calibdata.dataset.selection import Selection
from ptq_cli.calibdata.dataset.shard_files import digest_files
from ptq_cli.calibdata.images.checked_settings import check_image_settings, image_spec
from ptq_cli.calibdata.tar.keyed_sample import Entry, entries_of, is_sample, read_sample
from ptq_cli.calibdata.tar.sample import Sample, join_samples
from ptq_cli.core.errors import DataNameError, EmptyDataError, InputFileError, LabelError
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.recipe.sections.input_sections import ImageSettings

GZIP_MAGIC = b"\x1f\x8b"

_MEMBERS = "ptq reads members with these names: KEY.jpg, KEY.npy, KEY.INPUT.npy, KEY.cls"
_EVERYTHING = 2**62


class TarDataset(Dataset):
    r"""The samples of tar shards, in the order of the files and of the members in each.

    Nothing is extracted, and no index is made: batches that are not selected are skipped by seeking from
    header to header, or by decompressing. Members with other extensions than those of ``member_names`` are
    skipped without reading them, and so are arrays that are not inputs of the model.

    Raises:
        DataFormatError: the first sample is damaged.
        DataNameError: the first sample has neither an image nor an array.
        EmptyDataError: there are no samples.
        RecipeValueError: an image setting cannot be used.

    Example:
        >>> import io, tarfile, tempfile
        >>> import numpy as np
        >>> path, content = tempfile.mkdtemp() + "/train.tar", io.BytesIO()
        >>> np.save(content, np.zeros(3, np.float32))
        >>> with tarfile.open(path, "w") as archive:
        ...     for name, member in (("1.x.npy", content.getvalue()), ("1.cls", b"7\n")):
        ...         info = tarfile.TarInfo(name)
        ...         info.size = len(member)
        ...         archive.addfile(info, io.BytesIO(member))
        >>> dataset = TarDataset(path, [path], ImageSettings())
        >>> [(batch.names, batch.labels.tolist()) for batch in dataset.batches(8)], str(dataset.specs["x"])
        ([(('train.tar:1',), [7])], 'x: float32[?, 3]')
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
            raise InputFileError(
                f"data '{escaped_name(file)}' cannot be read: {error.strerror}",
                hint="check the file and its permissions",
            ) from error
        if compressed:
            stream = stack.enter_context(cast("IO[bytes]", gzip.GzipFile(fileobj=stream)))
        yield stream
