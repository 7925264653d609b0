"""Trains the transformer on one thread, reproducibly for one build of PyTorch and one kind of processor.

The held-out speakers only give the accuracy that is printed: nothing is chosen by it.

Example:
    python train.py spoken_digits.npz --output model.pt --epochs 160
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from augment import augmented_inputs
from evaluate import accuracy
from features import FloatArray, Recordings, model_inputs, read_npz
from model import build
from torch import Tensor, nn

HELD_OUT_SPEAKERS = ("theo", "yweweler")
BATCH_SIZE = 64
PEAK_LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.05
LABEL_SMOOTHING = 0.1
GRADIENT_NORM = 1.0
REPORT_EVERY = 10


def augment_all(waveforms: list[FloatArray], generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """One random version of each recording: features [count, frames, mels] and mask [count, frames]."""
    pairs = [augmented_inputs(waveform, generator) for waveform in waveforms]
    features = np.stack([features for features, _ in pairs])
    return torch.from_numpy(features), torch.from_numpy(np.stack([mask for _, mask in pairs]))


def train(source: Recordings, epochs: int, seed: int, output: Path) -> None:
    """Trains on all but the held-out speakers with a one-cycle schedule; saves the state dict as it goes."""
    held_out = np.isin(source.speakers, HELD_OUT_SPEAKERS)
    waveforms = [source.waveforms[index] for index in np.flatnonzero(~held_out)]
    labels = torch.from_numpy(source.labels[~held_out])
    test = model_inputs([source.waveforms[index] for index in np.flatnonzero(held_out)])
    test_inputs = (torch.from_numpy(test[0]), torch.from_numpy(test[1]))
    test_labels = torch.from_numpy(source.labels[held_out])

    generator = np.random.default_rng(seed)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), PEAK_LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = len(labels) // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=epochs * steps, pct_start=0.1, cycle_momentum=False
    )
    started = time.monotonic()
    for epoch in range(1, epochs + 1):
        model.train()
        features, mask = augment_all(waveforms, generator)
        for indices in torch.randperm(len(labels))[: steps * BATCH_SIZE].split(BATCH_SIZE):
            logits = model(features[indices], mask[indices])
            loss = nn.functional.cross_entropy(logits, labels[indices], label_smoothing=LABEL_SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
            optimizer.step()
            schedule.step()
        if epoch % REPORT_EVERY == 0 or epoch == epochs:
            torch.save(model.state_dict(), output)
            top1 = accuracy(model, test_inputs, test_labels)[0]
            seconds = time.monotonic() - started
            print(f"epoch {epoch}: loss {loss:.4f}, held-out top-1 {top1:.4f}, {seconds:.0f} s", flush=True)


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description="Train the spoken-digit transformer.")
    parser.add_argument("recordings", type=Path, help="npz of the recordings")
    parser.add_argument("--output", type=Path, default=Path("model.pt"), help="the state dict to write")
    parser.add_argument("--epochs", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    train(read_npz(arguments.recordings), arguments.epochs, arguments.seed, arguments.output)


if __name__ == "__main__":
    main()
