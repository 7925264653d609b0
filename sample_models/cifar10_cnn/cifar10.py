"""Reading CIFAR-10: one npz file of JPEGs, or a folder with one subfolder of JPEGs for every class."""

import io
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class JpegFile:
    """The content of an npz file: `jpegs[k]` is the file content of image k and `labels[k]` its class."""

    jpegs: list[bytes]
    labels: npt.NDArray[np.int64]
    class_names: list[str]


def read_npz(path: Path) -> JpegFile:
    """Reads an npz with `jpeg` (all files end to end), `offset` [images + 1], `label` and `class_names`."""
    with np.load(path, allow_pickle=False) as arrays:
        content = arrays["jpeg"].tobytes()
        offset = arrays["offset"]
        jpegs = [content[start:end] for start, end in itertools.pairwise(offset)]
        class_names = [str(name) for name in arrays["class_names"]]
        return JpegFile(jpegs, arrays["label"].astype(np.int64), class_names)


def decode(jpegs: Iterable[bytes]) -> Tensor:
    """Decodes JPEGs of one size to uint8 RGB [images, height, width, 3]."""
    pixels = [np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")) for jpeg in jpegs]
    return torch.from_numpy(np.stack(pixels))


def read_folder(folder: Path) -> tuple[Tensor, Tensor]:
    """Reads `<class name>/<file>.jpg`, sorted.

    Returns:
        uint8 images [images, height, width, 3] and labels [images].
    """
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(file, label) for label, path in enumerate(classes) for file in sorted(path.glob("*.jpg"))]
    images = decode(file.read_bytes() for file, _ in files)
    return images, torch.tensor([label for _, label in files])


def normalise(images: Tensor) -> Tensor:
    """Maps uint8 [images, height, width, 3] to normalised float32 [images, 3, height, width]."""
    scaled = images.float().div(255)
    return ((scaled - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)
