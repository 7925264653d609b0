"""What a member of a tar shard is to its sample, told by its name as in WebDataset.

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
    """What a member is to its sample.

    Attributes:
        kind: how it is read.
        name: of the model's input; empty where the name has none, and for labels.
    """

    kind: Kind
    name: str = ANONYMOUS


def split_name(path: str) -> tuple[str, str] | None:
    """Return the key and the extension of a member's path, or None for a member of no sample.

    Hidden files, and those that archivers leave behind, belong to none.

    Example:
        >>> split_name("cat/0001.input_ids.npy"), split_name("a/._0001.jpg"), split_name("README")
        (('cat/0001', 'input_ids.npy'), None, None)
    """
    folder, slash, base = path.rpartition("/")
    stem, _, extension = base.partition(".")
    return (folder + slash + stem, extension) if stem and extension else None


def role_of(extension: str) -> Role | None:
    """Return what a member with this extension is, or None for one that is passed over unread.

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
