"""Trains the network on one thread, reproducibly for one build of PyTorch and one kind of processor.

Example:
    python train.py cifar10_train.npz cifar10_test.npz --output model.pt --epochs 16

The held-out images only give the accuracy that is printed: nothing is chosen by it.
"""

import argparse
import time
from pathlib import Path

import torch
from cifar10 import decode, normalise, read_npz
from evaluate import accuracy
from model import build
from torch import Tensor, nn

BATCH_SIZE = 128
PEAK_LEARNING_RATE = 0.2
WEIGHT_DECAY = 3e-4
LABEL_SMOOTHING = 0.1
CROP_MARGIN = 4
CUTOUT_SIZE = 8


def pad(images: Tensor, margin: int) -> Tensor:
    """Pads uint8 [images, height, width, 3] by reflection on all four sides."""
    planes = images.permute(0, 3, 1, 2).float()
    return nn.functional.pad(planes, (margin,) * 4, mode="reflect").to(torch.uint8).permute(0, 2, 3, 1)


def augment(padded: Tensor, size: int) -> Tensor:
    """Random crop and horizontal flip of uint8 images, normalisation, then one gray square in each image."""
    count = padded.shape[0]
    steps = torch.arange(size)
    rows = torch.randint(0, padded.shape[1] - size + 1, (count, 1)) + steps
    columns = torch.randint(0, padded.shape[2] - size + 1, (count, 1)) + steps
    columns = torch.where(torch.rand(count, 1) < 0.5, columns, columns.flip(1))
    batch = padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    centre = torch.randint(0, size, (2, count, 1))
    covered = (steps - centre).abs() < CUTOUT_SIZE // 2
    square = covered[0][:, None, :, None] & covered[1][:, None, None, :]
    return normalise(batch).masked_fill(square, 0.0)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum; biases and normalization parameters are not decayed."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, PEAK_LEARNING_RATE, momentum=0.9, nesterov=True)


def train(images: Tensor, labels: Tensor, test: tuple[Tensor, Tensor], epochs: int, output: Path) -> None:
    """Trains with a one-cycle schedule and saves the state dict after every epoch."""
    model = build().to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model)
    steps = len(labels) // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=epochs * steps, pct_start=0.2, cycle_momentum=False
    )
    padded = pad(images, CROP_MARGIN)
    started = time.monotonic()
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for indices in torch.randperm(len(labels))[: steps * BATCH_SIZE].split(BATCH_SIZE):
            logits = model(augment(padded[indices], images.shape[1]))
            loss = nn.functional.cross_entropy(logits, labels[indices], label_smoothing=LABEL_SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        torch.save({name: value.contiguous() for name, value in model.state_dict().items()}, output)
        top1 = accuracy(model, *test)[0]
        seconds = time.monotonic() - started
        progress = f"epoch {epoch + 1}: loss {total / steps:.4f}, held-out top-1 {top1:.4f}, {seconds:.0f} s"
        print(progress, flush=True)


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description="Train the CIFAR-10 network.")
    parser.add_argument("train", type=Path, help="npz of the training images")
    parser.add_argument("test", type=Path, help="npz of the held-out images")
    parser.add_argument("--output", type=Path, default=Path("model.pt"), help="the state dict to write")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    train_file, test_file = read_npz(arguments.train), read_npz(arguments.test)
    test = (decode(test_file.jpegs), torch.from_numpy(test_file.labels))
    labels = torch.from_numpy(train_file.labels)
    train(decode(train_file.jpegs), labels, test, arguments.epochs, arguments.output)


if __name__ == "__main__":
    main()
