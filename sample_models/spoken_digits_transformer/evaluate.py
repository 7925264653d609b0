"""Prints the float accuracy of a checkpoint.

Example:
    python evaluate.py model.pt eval.npz
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from model import build
from torch import Tensor, nn

BATCH_SIZE = 250


@torch.inference_mode()
def accuracy(model: nn.Module, inputs: tuple[Tensor, Tensor], labels: Tensor) -> tuple[float, float]:
    """Returns the top-1 and top-5 accuracy; `inputs` are features and mask; sets eval mode."""
    model.eval()
    batches = zip(*(tensor.split(BATCH_SIZE) for tensor in inputs), strict=True)
    logits = torch.cat([model(features, mask) for features, mask in batches])
    hits = logits.topk(5).indices == labels[:, None]
    return hits[:, 0].float().mean().item(), hits.any(dim=1).float().mean().item()


def main() -> None:
    """Reads the command line, evaluates and prints."""
    parser = argparse.ArgumentParser(description="Evaluate a float checkpoint.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path, help="npz with features, mask and label")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = build()
    model.load_state_dict(torch.load(arguments.checkpoint, weights_only=True))
    with np.load(arguments.data, allow_pickle=False) as arrays:
        features, mask, labels = (torch.from_numpy(arrays[name]) for name in ("features", "mask", "label"))
    top1, top5 = accuracy(model, (features, mask), labels)
    print(f"{len(labels)} recordings: top-1 {top1:.4f}, top-5 {top5:.4f}")


if __name__ == "__main__":
    main()
