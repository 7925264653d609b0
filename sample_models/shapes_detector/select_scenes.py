"""Writes the shipped scenes: `calib.npz` and `eval.npz`, drawn from seeds that the training does not use.

Example:
    python select_scenes.py --output .
"""

import argparse
from pathlib import Path

import numpy as np
from scenes import draw_scenes

CALIBRATION_SCENES, CALIBRATION_SEED = 64, 3
EVALUATION_SCENES, EVALUATION_SEED = 300, 4


def main() -> None:
    """Reads the command line, draws and writes both files."""
    parser = argparse.ArgumentParser(description="Write the calibration and evaluation scenes.")
    parser.add_argument("--output", type=Path, default=Path(), help="folder that receives the two files")
    arguments = parser.parse_args()
    images, _ = draw_scenes(CALIBRATION_SCENES, CALIBRATION_SEED)
    np.savez_compressed(arguments.output / "calib.npz", image=images)
    images, boxes = draw_scenes(EVALUATION_SCENES, EVALUATION_SEED)
    np.savez_compressed(arguments.output / "eval.npz", image=images, label=boxes)


if __name__ == "__main__":
    main()
