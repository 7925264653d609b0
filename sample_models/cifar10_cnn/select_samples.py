"""Writes the shipped images: `calib/` from the training images and `eval/` from the held-out images.

Each class is drawn at random without replacement with a fixed seed. The JPEG bytes are written as they are,
and a file's name is the image's index in its npz. `calib.npz` holds some of the calibration images once more,
preprocessed, for the examples that calibrate on arrays.

Example:
    python select_samples.py cifar10_train.npz cifar10_test.npz --output .
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from cifar10 import JpegFile, decode, normalise, read_npz

CALIBRATION_IMAGES = 512
EVALUATION_IMAGES = 2000
ARRAY_IMAGES = 128
SEED = 20240


def draw(labels: npt.NDArray[np.int64], count: int, seed: int) -> npt.NDArray[np.int64]:
    """Draws `count` indices with equal classes; where they don't divide, the first classes give one more."""
    generator = np.random.default_rng(seed)
    classes = int(labels.max()) + 1
    drawn = []
    for label in range(classes):
        wanted = count // classes + (label < count % classes)
        drawn.append(generator.permutation(np.flatnonzero(labels == label))[:wanted])
    return np.sort(np.concatenate(drawn))


def write_folder(source: JpegFile, indices: npt.NDArray[np.int64], folder: Path) -> None:
    """Writes the images as `<class name>/<index>.jpg`."""
    for index in indices:
        path = folder / source.class_names[source.labels[index]] / f"{index:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.jpegs[index])


def write_arrays(source: JpegFile, indices: npt.NDArray[np.int64], path: Path) -> None:
    """Writes the images as the model takes them, float32 [images, 3, height, width], with their labels."""
    images = normalise(decode(source.jpegs[index] for index in indices))
    np.savez_compressed(path, image=images.contiguous().numpy(), label=source.labels[indices])


def main() -> None:
    """Reads the command line, draws, and writes both folders and the arrays."""
    parser = argparse.ArgumentParser(description="Write the calibration and evaluation images.")
    parser.add_argument("train", type=Path, help="npz of the training images")
    parser.add_argument("test", type=Path, help="npz of the held-out images")
    parser.add_argument(
        "--output", type=Path, default=Path(), help="folder that receives calib/, calib.npz and eval/"
    )
    arguments = parser.parse_args()
    for path, count, name in (
        (arguments.train, CALIBRATION_IMAGES, "calib"),
        (arguments.test, EVALUATION_IMAGES, "eval"),
    ):
        source = read_npz(path)
        indices = draw(source.labels, count, SEED)
        write_folder(source, indices, arguments.output / name)
        if name == "calib":
            write_arrays(source, indices[:ARRAY_IMAGES], arguments.output / "calib.npz")


if __name__ == "__main__":
    main()
