"""What a transformers model says of sequences: run by a Python that has transformers and gguf.

PYTHON judge_torch.py MODEL DATA OUTPUT --samples 24

MODEL is a folder or a GGUF file. It writes a row for each sequence: the sum of its tokens' negative
log-likelihoods, and their number.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    """Parse the arguments, run the model, and write the rows."""
    parser = argparse.ArgumentParser(description="Measure the likelihood of sequences.")
    for name in ("model", "data", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--samples", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder, names = arguments.model, {}
    if folder.is_file():
        folder, names = folder.parent, {"gguf_file": folder.name}
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **names).eval()
    with np.load(arguments.data) as arrays:
        sequences = torch.from_numpy(arrays["input_ids"][: arguments.samples])
    rows = []
    with torch.no_grad():
        for row in range(len(sequences)):
            tokens = sequences[row : row + 1]
            scores = network(input_ids=tokens, use_cache=False).logits[0, :-1].double()
            surprise = torch.nn.functional.cross_entropy(scores, tokens[0, 1:], reduction="sum")
            rows.append((float(surprise), tokens.shape[1] - 1))
    np.save(arguments.output, np.array(rows))


if __name__ == "__main__":
    main()
