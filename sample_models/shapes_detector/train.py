"""Trains the detector on one thread, reproducibly for one build of PyTorch and one kind of processor.

Example:
    python train.py --output model.pt

The evaluation scenes only give the precision that is printed: nothing is chosen by it.
"""

import argparse
import time
from pathlib import Path

import torch
from detections import MeanAveragePrecision
from model import BINS, STRIDES, Detector, build, cells
from scenes import draw_scenes
from torch import Tensor, nn

BATCH_SIZE = 32
PEAK_LEARNING_RATE = 2e-3
WEIGHT_DECAY = 1e-2
TRAINING_SEED, HELD_OUT_SEED = 1, 2
LARGE = 28.0
"""Shapes of this many pixels and more are found at the coarse resolution."""
NEAR = 1.5
"""Cells whose center is this many strides or less from a shape's center find it."""


def assign(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns which cells find which shape.

    Args:
        boxes: [batch, shapes, 5], class and box.

    Returns:
        [batch, cells]: whether a cell finds a shape, and the number of the shape, the smallest if several.
    """
    centers, strides = cells()
    corners = boxes[..., 1:]
    size = (corners[..., 2:] - corners[..., :2]).amax(-1)
    middle = (corners[..., :2] + corners[..., 2:]) / 2
    away = (centers[0].T[None, None] - middle[:, :, None]).abs().amax(-1)
    coarse = (strides[0, 0] == STRIDES[1])[None, None]
    finds = (away <= NEAR * strides[0, 0]) & (coarse == (size >= LARGE)[..., None])
    finds &= (boxes[..., 0] >= 0)[..., None]
    sizes = torch.where(finds, size[..., None], torch.inf)
    return finds.any(1), sizes.argmin(1)


def loss(model: Detector, images: Tensor, boxes: Tensor) -> Tensor:
    """Returns the loss of a batch: of scores, of boxes, and of their sides' distributions."""
    sides, scores = model.raw(images)
    finds, shape = assign(boxes)
    wanted = boxes.gather(1, shape[..., None].expand(-1, -1, 5))
    made = model.boxes(sides).transpose(1, 2)
    overlap = _generous_overlap(made, wanted[..., 1:])
    targets = torch.zeros_like(scores).transpose(1, 2)
    kinds = wanted[..., 0].clamp(min=0).long()
    quality = (overlap.detach().clamp(0, 1) * finds)[..., None]
    targets.scatter_(2, kinds[..., None], quality)
    logits = scores.transpose(1, 2)
    weight = (logits.sigmoid().detach() - targets).abs() ** 2  # quality focal loss
    of_scores = (
        nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none") * weight
    ).sum()
    count = finds.sum().clamp(min=1)
    of_boxes = ((1 - overlap) * finds).sum()
    return (of_scores + 2 * of_boxes + 0.5 * _of_sides(model, sides, wanted, finds)) / count


def _of_sides(model: Detector, sides: Tensor, wanted: Tensor, finds: Tensor) -> Tensor:
    """The cross entropy of each side's distribution with the two values around what it should be."""
    centers, strides = model.centers.transpose(1, 2), model.strides.transpose(1, 2)
    corners = wanted[..., 1:]
    distance = torch.cat([centers - corners[..., :2], corners[..., 2:] - centers], -1) / strides
    distance = distance.clamp(0, BINS - 1.01).transpose(1, 2)
    lower = distance.floor().long()
    share = distance - lower
    logarithms = sides.log_softmax(2)
    below = logarithms.gather(2, lower[:, :, None])[:, :, 0]
    above = logarithms.gather(2, lower[:, :, None] + 1)[:, :, 0]
    return -(((1 - share) * below + share * above).mean(1) * finds).sum()


def _generous_overlap(made: Tensor, wanted: Tensor) -> Tensor:
    """The generalized intersection over union (Rezatofighi and others, 2019) of boxes [..., 4]."""
    inner = _extent(
        torch.maximum(made[..., :2], wanted[..., :2]), torch.minimum(made[..., 2:], wanted[..., 2:])
    )
    outer = _extent(
        torch.minimum(made[..., :2], wanted[..., :2]), torch.maximum(made[..., 2:], wanted[..., 2:])
    )
    union = _extent(made[..., :2], made[..., 2:]) + _extent(wanted[..., :2], wanted[..., 2:]) - inner
    return inner / (union + 1e-7) - (outer - union) / (outer + 1e-7)


def _extent(first: Tensor, last: Tensor) -> Tensor:
    return (last - first).clamp(min=0).prod(-1)


def precision(model: nn.Module, images: Tensor, boxes: Tensor) -> float:
    """Returns the mean average precision of all scenes."""
    metric = MeanAveragePrecision()
    model.eval()
    with torch.no_grad():
        for some, truth in zip(images.split(100), boxes.split(100), strict=True):
            metric.update(model(some).numpy(), truth.numpy())
    return metric.compute()


def _flipped(images: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Both mirrored left to right, the channels of colour in another order."""
    turned = boxes.clone()
    turned[..., [1, 3]] = images.shape[3] - boxes[..., [3, 1]]
    return images.flip(3)[:, torch.randperm(3)], turned


def train(scenes: int, epochs: int, output: Path) -> None:
    """Trains with a one-cycle schedule and saves the state dict after every epoch."""
    images, boxes = (torch.from_numpy(array) for array in draw_scenes(scenes, TRAINING_SEED))
    held_out = [torch.from_numpy(array) for array in draw_scenes(500, HELD_OUT_SEED)]
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), PEAK_LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = scenes // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=epochs * steps)
    started = time.monotonic()
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for number, indices in enumerate(torch.randperm(scenes)[: steps * BATCH_SIZE].split(BATCH_SIZE)):
            batch = images[indices], boxes[indices]
            value = loss(model, *(_flipped(*batch) if number % 2 else batch))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
            total += value.item()
        torch.save(model.state_dict(), output)
        seconds = time.monotonic() - started
        said = f"epoch {epoch + 1}: loss {total / steps:.4f}, held-out mAP {precision(model, *held_out):.4f}"
        print(f"{said}, {seconds:.0f} s", flush=True)


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description="Train the detector.")
    parser.add_argument("--output", type=Path, default=Path("model.pt"), help="the state dict to write")
    parser.add_argument("--scenes", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    train(arguments.scenes, arguments.epochs, arguments.output)


if __name__ == "__main__":
    main()
