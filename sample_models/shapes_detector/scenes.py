"""Draws scenes: coloured shapes before a background, with their boxes.

All is drawn from one seed, so that a scene is the same wherever numpy and Pillow draw alike.

Example:
    >>> images, boxes = draw_scenes(2, seed=0)
    >>> images.shape, images.dtype, boxes.shape
    ((2, 3, 96, 96), dtype('uint8'), (2, 6, 5))
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

SIZE = 96
"""Pixels of a scene's side."""
CLASSES = ("disc", "square", "triangle", "star", "cross", "ring")
MOST_SHAPES = 6
SMALLEST, LARGEST = 9.0, 46.0
MOST_OVERLAP = 0.25
NOTHING = -1.0
"""The class in the rows of a scene that has fewer shapes than the most."""
FINER = 3
"""Scenes are drawn this many times larger and reduced, which smooths the edges."""

Color = tuple[int, int, int]
Point = tuple[float, float]


def draw_scenes(count: int, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Returns RGB images and what they show.

    Images are uint8 [count, 3, 96, 96]; of shapes float32 [count, 6, 5] has class, left, top, right and
    bottom, in pixels.
    """
    random = np.random.default_rng(seed)
    images = np.empty((count, 3, SIZE, SIZE), np.uint8)
    boxes = np.full((count, MOST_SHAPES, 5), NOTHING, np.float32)
    for scene in range(count):
        picture, found = _draw_scene(random)
        images[scene] = np.asarray(picture).transpose(2, 0, 1)
        boxes[scene, : len(found)] = found
    return images, boxes


def _draw_scene(random: np.random.Generator) -> tuple[Image.Image, list[list[float]]]:
    picture = _background(random)
    drawing = ImageDraw.Draw(picture)
    for _ in range(random.integers(0, 5)):
        ends = [tuple(random.uniform(0, SIZE * FINER, 2)) for _ in range(2)]
        drawing.line(ends, _color(random), int(random.integers(1, 3 * FINER)))
    found: list[list[float]] = []
    for _ in range(random.integers(1, MOST_SHAPES + 1)):
        kind = int(random.integers(len(CLASSES)))
        outline = _outline(kind, random)
        (left, top), (right, bottom) = outline.min(axis=0), outline.max(axis=0)
        box = [left, top, right, bottom]
        if any(overlap(box, other[1:]) > MOST_OVERLAP for other in found):
            continue
        _fill(drawing, kind, outline, _color(random))
        found.append([kind, *box])
    return picture.resize((SIZE, SIZE), Image.Resampling.BOX), found


def _background(random: np.random.Generator) -> Image.Image:
    first, last = (np.array(_color(random), float) for _ in range(2))
    angle = random.uniform(0, 2 * math.pi)
    rows, columns = np.mgrid[:SIZE, :SIZE] / SIZE - 0.5
    share = (rows * math.sin(angle) + columns * math.cos(angle)) / math.sqrt(2) + 0.5
    values = first + share[..., None] * (last - first)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8)).resize((SIZE * FINER, SIZE * FINER))


def _outline(kind: int, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """The corners of a shape at a random place, [corners, 2] in pixels."""
    side = math.exp(random.uniform(math.log(SMALLEST), math.log(LARGEST)))
    turn = random.uniform(0, 2 * math.pi)
    corners = np.array(_unit_corners(CLASSES[kind])) @ [
        [math.cos(turn), math.sin(turn)],
        [-math.sin(turn), math.cos(turn)],
    ]
    corners *= side / np.ptp(corners, axis=0).max()
    corners -= corners.min(axis=0)
    return corners + random.uniform(0, SIZE - np.ptp(corners, axis=0))


def _unit_corners(kind: str) -> Sequence[Point]:
    if kind == "star":
        return _round(10, [1.0, 0.42])
    if kind == "cross":
        arm = 0.3
        quarter = [(1.0, -arm), (1.0, arm), (arm, arm)]
        turns = [lambda x, y: (x, y), lambda x, y: (-y, x), lambda x, y: (-x, -y), lambda x, y: (y, -x)]
        return [turn(x, y) for turn in turns for x, y in quarter]
    return _round({"square": 4, "triangle": 3}.get(kind, 48), [1.0])


def _round(corners: int, radii: Sequence[float]) -> list[Point]:
    angles = [2 * math.pi * corner / corners for corner in range(corners)]
    return [
        (radii[corner % len(radii)] * math.cos(angle), radii[corner % len(radii)] * math.sin(angle))
        for corner, angle in enumerate(angles)
    ]


def _fill(drawing: ImageDraw.ImageDraw, kind: int, outline: npt.NDArray[np.float64], color: Color) -> None:
    points = [tuple(point) for point in outline * FINER]
    if CLASSES[kind] == "ring":
        width = max(2, int(np.ptp(outline, axis=0).max() * FINER * 0.2))
        (left, top), (right, bottom) = outline.min(axis=0) * FINER, outline.max(axis=0) * FINER
        drawing.ellipse([left, top, right, bottom], outline=color, width=width)
    else:
        drawing.polygon(points, fill=color)


def _color(random: np.random.Generator) -> Color:
    red, green, blue = random.integers(0, 256, 3).tolist()
    return red, green, blue


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the area that two boxes share, divided by that of the smaller one."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return max(0.0, width) * max(0.0, height) / min(areas)
