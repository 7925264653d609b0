"""What a transformers model says of sequences: run by a Python that has transformers and gguf.

PYTHON judge_torch.py MODEL DATA OUTPUT --samples 24 [--weights FILE]

MODEL is a folder of transformers or a GGUF file, and FILE has other weights for it. It writes a row for each
sequence: the sum of its tokens' negative log-likelihoods, and their number.
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
    parser.add_argument("--weights", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    where = {"pretrained_model_name_or_path": arguments.model}
    if arguments.model.is_file():
        where = {"pretrained_model_name_or_path": arguments.model.parent, "gguf_file": arguments.model.name}
    network = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    if arguments.weights:
        network.load_state_dict(torch.load(arguments.weights, weights_only=True))
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
