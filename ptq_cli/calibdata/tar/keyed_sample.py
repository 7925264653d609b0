"""Put the members of one sample of a tar shard together."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.dataset.file_names import escaped_name
from ptq_cli.calibdata.tar.archive_stream import TarMember, tar_members
from ptq_cli.calibdata.tar.member_names import Kind, Role, role_of, split_name
from ptq_cli.calibdata.tar.members import (
    read_array,
    read_class,
    read_image,
    read_json_label,
    read_label_array,
)
from ptq_cli.calibdata.tar.sample import Sample
from ptq_cli.core.errors import DataFormatError, LabelError
from ptq_cli.core.tensors import Array
from ptq_cli.recipe.sections.input_sections import ImageSettings

MOST_ARRAYS = 256
"""Most arrays of one sample; names with the number after a dot would make one sample of a whole shard."""

_NOUNS = {Kind.IMAGE: "image", Kind.ARRAY: "array"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A member that belongs to a sample.

    Attributes:
        key: the sample's key.
        sample: how messages call the sample.
        where: how messages call the member.
        role: its role in the sample.
        member: its content.
    """

    key: str
    sample: str
    where: str
    role: Role
    member: TarMember


def entries_of(stream: IO[bytes], file: str) -> Iterator[Entry]:
    """Yield the members of a shard that belong to a sample; the others are skipped.

    Args:
        stream: the archive, decompressed.
        file: its path, for messages.

    Raises:
        DataFormatError, InputFileError: as raised by ``tar_members``.
    """
    shard = escaped_name(Path(file).name)
    for member in tar_members(stream, f"data '{escaped_name(file)}'"):
        parts = split_name(member.name)
        role = role_of(parts[1]) if parts is not None else None
        if parts is None or role is None:
            continue
        where = f"{_NOUNS.get(role.kind, 'label')} '{escaped_name(member.name)}' of '{escaped_name(file)}'"
        yield Entry(
            key=parts[0], sample=f"{shard}:{escaped_name(parts[0])}", where=where, role=role, member=member
        )


def is_sample(entries: Iterable[Entry]) -> bool:
    """Tell whether members with the same key are a sample: not all of them are ``.json``."""
    return any(entry.role.kind is not Kind.JSON for entry in entries)


def read_sample(
    entries: Iterable[Entry], settings: ImageSettings, names: Collection[str] | None, *, with_json: bool
) -> Sample | None:
    """Read the members of one key.

    Args:
        entries: the members, in the order of the archive.
        settings: how images become arrays; already checked.
        names: the images and arrays to read; None for all.
        with_json: look for a label in a ``.json`` too.

    Returns:
        The sample, or None if ``is_sample`` is false.

    Raises:
        DataFormatError: two members have one name, there are too many, or one is damaged.
        LabelError: there are two labels, or one is not an integer.
        PtqError: an image or an array cannot be read.
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

    def add(self, entry: Entry) -> None:
        """Read a member."""
        kind, member, where = entry.role.kind, entry.member, entry.where
        self.name = entry.sample
        if kind is Kind.JSON:
            if self.with_json:
                self.json_label = read_json_label(member, where)
            return
        self.is_sample = True
        if kind in (Kind.CLASS, Kind.LABEL):
            if self.label is not None:
                raise LabelError(
                    f"sample '{entry.sample}' has two labels, the second is {where}",
                    hint="give each sample one label",
                )
            self.label = (read_class if kind is Kind.CLASS else read_label_array)(member, where)
        elif self.names is None or entry.role.name in self.names:
            self._add_array(entry)

    def _add_array(self, entry: Entry) -> None:
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
        if entry.role.kind is Kind.IMAGE:
            self.images[name] = read_image(entry.member, entry.where, self.settings)
        else:
            self.arrays[name] = read_array(entry.member, entry.where)
