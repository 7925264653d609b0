"""WebDataset-style tar shards: samples are consecutive members with one key, read forward as they come.

The rest of the name, its extension, says whether the member is an image, an array or a label.
"""

import contextlib
import copy
import gzip
import itertools
import json
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import IO, Self, cast

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.archive_stream import TarMember, tar_members
from ptq_cli.calibdata.array_files import read_rows
from ptq_cli.calibdata.dataset.batches import Batch, Selection
from ptq_cli.calibdata.dataset.data_files import digest_files, escaped_name, is_image, unreadable
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, Dataset
from ptq_cli.calibdata.dataset.labels import LABEL_NAMES
from ptq_cli.calibdata.image_decoding import (
    MAX_IMAGE_BYTES,
    check_image_settings,
    decode_bytes,
    image_spec,
    normalize_images,
)
from ptq_cli.calibdata.npy_header import read_header, require_size
from ptq_cli.core.errors import (
    DataFormatError,
    DataNameError,
    DataShapeError,
    DataTypeError,
    EmptyDataError,
    LabelError,
)
from ptq_cli.core.tensors import Array, TensorSpec, format_shape
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


class FieldKind(Enum):
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

    kind: FieldKind
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
        return Role(FieldKind.IMAGE, name)
    if suffix == "npy":
        return Role(FieldKind.LABEL) if name in LABEL_NAMES else Role(FieldKind.ARRAY, name)
    if suffix in ("cls", "json") and not name:
        return Role(FieldKind.CLASS if suffix == "cls" else FieldKind.JSON)
    return None


MAX_JSON_BYTES = 1 << 24
MAX_CLASS_BYTES = 1 << 10
_INT64 = np.iinfo(np.int64)


def read_image(member: TarMember, where: str, settings: ImageSettings) -> npt.NDArray[np.uint8]:
    """Return a decoded image."""
    return decode_bytes(_read(member, where, MAX_IMAGE_BYTES), where, settings)


def read_array(member: TarMember, where: str) -> Array:
    """Return the array of an ``.npy`` member, which is one sample."""
    header = read_header(member, where, one_sample=True)
    require_size(header, member.size, where)
    return read_rows(member, header, 1, where).reshape(header.shape[1:])


def read_class(member: TarMember, where: str) -> int:
    """Return the class that is written in a ``.cls`` member."""
    return as_label(_read(member, where, MAX_CLASS_BYTES).decode("utf-8-sig", "replace").strip(), where)


def read_label_array(member: TarMember, where: str) -> int:
    """Return the label of a ``label.npy`` member: one integer, with or without an axis."""
    array = read_array(member, where)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise LabelError(
            f"{where} has dtype {array.dtype} and {array.size} values, expected one integer",
            hint="labels are class numbers from 0",
        )
    return as_label(str(array.item()), where)


def read_json_label(member: TarMember, where: str) -> int | None:
    """Return the label of a ``.json`` member: an integer, or one under the key ``label``; or None."""
    try:
        value = json.loads(_read(member, where, MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise LabelError(f"{where} is not JSON: {type(error).__name__}", hint="write it again") from error
    if isinstance(value, dict):
        value = value.get("label")
    return as_label(str(value), where) if isinstance(value, int) and not isinstance(value, bool) else None


def as_label(text: str, where: str) -> int:
    """Return an integer that fits into int64."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise LabelError(f"{where} is {text[:20]!r}, expected an integer", hint="classes count from 0")
    if not _INT64.min <= int(text) <= _INT64.max:
        raise LabelError(
            f"{where} is {text}, which does not fit into int64", hint="labels are indices of classes: 0, 1, …"
        )
    return int(text)


def _read(member: TarMember, where: str, most: int) -> bytes:
    if member.size > most:
        raise DataFormatError(
            f"{where} has {member.size} bytes, the limit is {most}", hint="save smaller samples"
        )
    return member.read()


MOST_ARRAYS = 256  # of a sample; numbers after a dot would make one of a whole shard
_NOUNS = {FieldKind.IMAGE: "image", FieldKind.ARRAY: "array"}


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A member that belongs to a sample."""

    key: str
    sample: str
    where: str
    role: Role
    member: TarMember


def entries_of(stream: IO[bytes], file: str) -> Iterator[_Entry]:
    """Yield the members of a shard that belong to a sample; the others are skipped."""
    shard = escaped_name(Path(file).name)
    for member in tar_members(stream, f"data '{escaped_name(file)}'"):
        parts = split_name(member.name)
        role = role_of(parts[1]) if parts is not None else None
        if parts is None or role is None:
            continue
        where = f"{_NOUNS.get(role.kind, 'label')} '{escaped_name(member.name)}' of '{escaped_name(file)}'"
        yield _Entry(
            key=parts[0], sample=f"{shard}:{escaped_name(parts[0])}", where=where, role=role, member=member
        )


def is_sample(entries: Iterable[_Entry]) -> bool:
    """Tell whether members with the same key are a sample: not all of them are ``.json``."""
    return any(entry.role.kind is not FieldKind.JSON for entry in entries)


def read_sample(
    entries: Iterable[_Entry], settings: ImageSettings, names: Collection[str] | None, *, with_json: bool
) -> Sample | None:
    """Read the members of one key.

    The images and arrays in ``names`` are read, or all; with ``with_json`` a label in a ``.json`` too.

    Returns:
        The sample, or None if ``is_sample`` is false.
    """
    parts = _Parts(settings=settings, names=names, with_json=with_json)
    for entry in entries:
        parts.add(entry)
    if not parts.is_sample:
        return None
    label = parts.json_label if parts.label is None else parts.label
    return Sample(parts.name, parts.arrays, parts.images, label)


@dataclass(kw_only=True)
class _Parts:
    settings: ImageSettings
    names: Collection[str] | None
    with_json: bool
    name: str = ""
    is_sample: bool = False
    arrays: dict[str, Array] = field(default_factory=dict)
    images: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    label: int | None = None
    json_label: int | None = None

    def add(self, entry: _Entry) -> None:
        kind, member, where = entry.role.kind, entry.member, entry.where
        self.name = entry.sample
        if kind is FieldKind.JSON:
            if self.with_json:
                self.json_label = read_json_label(member, where)
            return
        self.is_sample = True
        if kind in (FieldKind.CLASS, FieldKind.LABEL):
            if self.label is not None:
                raise LabelError(
                    f"sample '{entry.sample}' has two labels, the second is {where}",
                    hint="give each sample one label",
                )
            self.label = (read_class if kind is FieldKind.CLASS else read_label_array)(member, where)
        elif self.names is None or entry.role.name in self.names:
            self._add_array(entry)

    def _add_array(self, entry: _Entry) -> None:
        name = entry.role.name
        if name in self.arrays or name in self.images:
            shown = f"named '{name}'" if name else "without a name"
            raise DataFormatError(
                f"sample '{entry.sample}' has two arrays {shown}, the second is {entry.where}",
                hint="name each as the model names its input: KEY.INPUT.npy, KEY.INPUT.jpg",
            )
        if len(self.arrays) + len(self.images) == MOST_ARRAYS:
            raise DataFormatError(
                f"sample '{entry.sample}' has more than {MOST_ARRAYS} arrays, such as {entry.where}",
                hint="a sample's key ends at the first dot; rename the files so that keys differ before it",
            )
        if entry.role.kind is FieldKind.IMAGE:
            self.images[name] = read_image(entry.member, entry.where, self.settings)
        else:
            self.arrays[name] = read_array(entry.member, entry.where)


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


def _groups(files: Sequence[str]) -> Generator[Iterator[_Entry]]:
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
