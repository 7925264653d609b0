"""Prints the float perplexity of a checkpoint on a text.

Example:
    python evaluate.py model.safetensors eval.txt --tokenizer tokenizer.json
"""

import argparse
import math
from pathlib import Path

import torch
from model import CONTEXT, build
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

BATCH_SIZE = 32


def windows_of(ids: list[int]) -> Tensor:
    """Splits tokens into windows [count, CONTEXT] that do not overlap; the rest at the end is left out."""
    count = len(ids) // CONTEXT
    return torch.tensor(ids[: count * CONTEXT]).view(count, CONTEXT)


def logits_of(model: nn.Module, windows: Tensor) -> Tensor:
    """Returns the logits [count, CONTEXT, VOCABULARY] of windows without padding."""
    positions = torch.arange(windows.shape[1]).expand_as(windows)
    logits: Tensor = model(windows, torch.ones_like(windows), positions)
    return logits


@torch.inference_mode()
def perplexity(model: nn.Module, windows: Tensor) -> float:
    """Returns exp of the mean cross-entropy of each window's tokens but the first; sets eval mode."""
    model.eval()
    total = 0.0
    for batch in windows.split(BATCH_SIZE):
        logits = logits_of(model, batch)[:, :-1].flatten(0, 1)
        total += functional.cross_entropy(logits, batch[:, 1:].flatten(), reduction="sum").item()
    return math.exp(total / (len(windows) * (windows.shape[1] - 1)))


def main() -> None:
    """Reads the command line, evaluates and prints."""
    parser = argparse.ArgumentParser(description="Evaluate a float checkpoint.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = build()
    model.load_state_dict(load_file(arguments.checkpoint))
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    windows = windows_of(tokenizer.encode(arguments.text.read_text("utf-8")).ids)
    print(f"{len(windows)} windows of {CONTEXT} tokens: perplexity {perplexity(model, windows):.3f}")


if __name__ == "__main__":
    main()
