"""Prints the float accuracy of a checkpoint.

Example:
    python evaluate.py model.pt eval
    python evaluate.py model.pt cifar10_test.npz
"""

import argparse
from pathlib import Path

import torch
from cifar10 import decode, normalise, read_folder, read_npz
from model import build
from torch import Tensor, nn

BATCH_SIZE = 250


@torch.inference_mode()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Returns the top-1 and top-5 accuracy on uint8 images [images, height, width, 3]; sets eval mode."""
    model.eval()
    logits = torch.cat([model(normalise(batch)) for batch in images.split(BATCH_SIZE)])
    hits = logits.topk(5).indices == labels[:, None]
    return hits[:, 0].float().mean().item(), hits.any(dim=1).float().mean().item()


def main() -> None:
    """Reads the command line, evaluates and prints."""
    parser = argparse.ArgumentParser(description="Evaluate a float checkpoint.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path, help="a folder with one subfolder for every class, or an npz file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = build()
    model.load_state_dict(torch.load(arguments.checkpoint, weights_only=True))
    if arguments.data.is_dir():
        images, labels = read_folder(arguments.data)
    else:
        source = read_npz(arguments.data)
        images, labels = decode(source.jpegs), torch.from_numpy(source.labels)
    top1, top5 = accuracy(model, images, labels)
    print(f"{len(labels)} images: top-1 {top1:.4f}, top-5 {top5:.4f}")


if __name__ == "__main__":
    main()
