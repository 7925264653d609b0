"""What the tiny networks look at, drawn from a seed: squares in pictures, digits, tones in noise."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

SIDE, STRIDE, COLORS = 64, 8, 3
GLYPHS = (
    *("111101101101111", "010110010010111", "111001111100111", "111001111001111", "101101111001001"),
    *("111100111001111", "111100111101111", "111001010010010", "111101111101111", "111101111001111"),
)
STRIP, SLOT, LONGEST = (16, 96), 16, 5
FRAME = 128


def squares(random: np.random.Generator, count: int) -> tuple[Floats, Floats]:
    """Return pictures with colored squares, and the squares.

    Shapes:
        Pictures [count, 3, 64, 64], values 0 to 1; squares [count, 3, 5], rows of left, top, right, bottom in
        pixels and the color, and rows of -1 where there are fewer than three.
    """
    pictures = random.uniform(0.3, 0.6, (count, 3, SIDE, SIDE)).astype(np.float32)
    boxes = np.full((count, COLORS, 5), -1, np.float32)
    for index in range(count):
        for place in range(random.integers(1, COLORS + 1)):
            size = int(random.integers(9, 15))
            # Each square has a part of the picture of its own, so that none hides another one.
            left = int(random.integers(0, 20 - size // 2)) + 22 * place
            left, top = min(left, SIDE - size), int(random.integers(0, SIDE - size))
            color = int(random.integers(0, COLORS))
            area = pictures[index, :, top : top + size, left : left + size]
            area *= 0.3
            area[color] = random.uniform(0.85, 1.0)
            boxes[index, place] = left, top, left + size, top + size, color
    return pictures, boxes


def wanted_cells(boxes: Floats) -> tuple[Floats, Floats]:
    """Return what the head of the detector is fitted to.

    Shapes:
        boxes [count, 3, 5]; the first result [count, 7, 8, 8] has box and scores of each cell, the second
        [count, 8, 8] says which cells have the center of a square.
    """
    cells = SIDE // STRIDE
    targets = np.zeros((len(boxes), 4 + COLORS, cells, cells), np.float32)
    targets[:, 4:] = -4.0
    holds = np.zeros((len(boxes), cells, cells), np.float32)
    for index, box in ((index, box) for index, found in enumerate(boxes) for box in found if box[4] >= 0):
        center, size = (box[:2] + box[2:4]) / 2 / STRIDE, (box[2:4] - box[:2]) / STRIDE
        column, row = center.astype(int)
        targets[index, :4, row, column] = *(center - (column, row)), *size
        targets[index, 4 + int(box[4]), row, column] = 4.0
        holds[index, row, column] = 1.0
    return targets, holds


def strips(random: np.random.Generator, count: int) -> tuple[Floats, list[str]]:
    """Return gray pictures [count, 1, 16, 96] of one to five digits, and the digits."""
    pictures = random.normal(0.0, 0.08, (count, 1, *STRIP)).astype(np.float32)
    texts = []
    for index in range(count):
        text = "".join(str(digit) for digit in random.integers(0, 10, random.integers(1, LONGEST + 1)))
        for place, digit in enumerate(text):
            glyph = np.array(list(GLYPHS[int(digit)]), np.float32).reshape(5, 3).repeat(2, 0).repeat(3, 1)
            top, left = int(random.integers(3, 5)), SLOT * place + int(random.integers(3, 5))
            pictures[index, 0, top : top + 10, left : left + 9] += glyph * random.uniform(0.7, 1.0)
        texts.append(text)
    return pictures, texts


def characters_of_steps(texts: list[str], steps: int) -> Floats:
    """Return scores [steps, texts, 11] to fit: each digit in two steps of its slot, a blank (0) elsewhere."""
    targets = np.zeros((steps, len(texts), 11), np.float32)
    targets[:, :, 0] = 1.0
    for index, text in enumerate(texts):
        for place, digit in enumerate(text):
            first = place * steps * SLOT // STRIP[1] + 1
            targets[first : first + 2, index] = 0.0
            targets[first : first + 2, index, 1 + int(digit)] = 1.0
    return targets


def recordings(random: np.random.Generator, count: int, frames: int) -> tuple[Floats, Floats]:
    """Return recordings [count, frames, 128] of noise in which a tone sounds, and whether it does."""
    heard = random.normal(0.0, 0.3, (count, frames, FRAME)).astype(np.float32)
    sounds = np.zeros((count, frames), np.float32)
    time = np.arange(FRAME) / FRAME
    for index in range(count):
        start = int(random.integers(2, frames - 8))
        stop = start + int(random.integers(5, 8))
        tone = np.sin(2 * np.pi * random.uniform(8, 11) * time) * random.uniform(0.3, 0.8)
        heard[index, start:stop] += tone.astype(np.float32)
        sounds[index, start:stop] = 1.0
    return heard, sounds
