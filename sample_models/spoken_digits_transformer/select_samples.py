"""Writes the shipped arrays: `calib.npz` from training speakers and `eval.npz` with the held-out speakers.

Calibration recordings are drawn at random without replacement, equally from each speaker and digit, with a
fixed seed. Evaluation takes all recordings of the held-out speakers in the order of the source.

Example:
    python select_samples.py spoken_digits.npz --output .
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from features import Recordings, model_inputs, read_npz
from train import HELD_OUT_SPEAKERS

RECORDINGS_PER_SPEAKER_AND_DIGIT = 8
SEED = 20240


def draw(source: Recordings, seed: int) -> npt.NDArray[np.int64]:
    """Draws the indices of the calibration recordings."""
    generator = np.random.default_rng(seed)
    drawn = []
    for speaker in sorted(set(source.speakers.tolist()) - set(HELD_OUT_SPEAKERS)):
        for digit in range(10):
            candidates = np.flatnonzero((source.speakers == speaker) & (source.labels == digit))
            drawn.append(generator.permutation(candidates)[:RECORDINGS_PER_SPEAKER_AND_DIGIT])
    return generator.permutation(np.concatenate(drawn))


def write_arrays(source: Recordings, indices: npt.NDArray[np.int64], path: Path) -> None:
    """Writes the recordings as the model's inputs, named as its arguments are, and `label`."""
    features, mask = model_inputs([source.waveforms[index] for index in indices])
    np.savez_compressed(path, features=features, mask=mask, label=source.labels[indices])


def main() -> None:
    """Reads the command line, draws and writes both files."""
    parser = argparse.ArgumentParser(description="Write the calibration and evaluation arrays.")
    parser.add_argument("recordings", type=Path, help="npz of the recordings")
    parser.add_argument("--output", type=Path, default=Path(), help="folder that receives the two files")
    arguments = parser.parse_args()
    source = read_npz(arguments.recordings)
    write_arrays(source, draw(source, SEED), arguments.output / "calib.npz")
    held_out = np.flatnonzero(np.isin(source.speakers, HELD_OUT_SPEAKERS))
    write_arrays(source, held_out, arguments.output / "eval.npz")


if __name__ == "__main__":
    main()
