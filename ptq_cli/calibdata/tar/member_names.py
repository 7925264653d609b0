"""The role of a tar member in its sample, which its name tells, as in WebDataset.

A sample is consecutive members with one key: the path up to the first dot of the base name. The rest of the
name, its extension, says what the member is.
"""

from dataclasses import dataclass
from enum import Enum

from ptq_cli.calibdata.dataset.dataset import ANONYMOUS
from ptq_cli.calibdata.dataset.file_names import is_image
from ptq_cli.calibdata.dataset.labels import LABEL_NAMES


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
        kind: how it is read.
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
    """Return the role of a member with this extension, or None for one that is skipped without reading.

    Example:
        >>> role_of("JPG"), role_of("input_ids.npy")
        (Role(kind=<Kind.IMAGE: 'image'>, name=''), Role(kind=<Kind.ARRAY: 'array'>, name='input_ids'))
        >>> role_of("cls"), role_of("label.npy"), role_of("txt")
        (Role(kind=<Kind.CLASS: 'class'>, name=''), Role(kind=<Kind.LABEL: 'label'>, name=''), None)
    """
    name, _, suffix = extension.rpartition(".")
    suffix = suffix.lower()
    if is_image(f".{suffix}"):
        return Role(Kind.IMAGE, name)
    if suffix == "npy":
        return Role(Kind.LABEL) if name in LABEL_NAMES else Role(Kind.ARRAY, name)
    if suffix in ("cls", "json") and not name:
        return Role(Kind.CLASS if suffix == "cls" else Kind.JSON)
    return None
