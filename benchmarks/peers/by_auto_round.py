"""auto-round's weights of 4 bits in blocks: run by a Python that has auto-round, transformers and gguf.

PYTHON by_auto_round.py MODEL DATA OUTPUT --samples 16 --steps 200

MODEL is a folder of transformers or a GGUF file, and OUTPUT gets its weights for PyTorch, on the chosen grid.
They have zero points; the embedding and the last layer stay in float, as auto-round leaves them.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from auto_round import AutoRound
from transformers import AutoModelForCausalLM, AutoTokenizer

BLOCK, BATCH = 32, 8


def main() -> None:
    """Parse the arguments, quantize, and write the weights."""
    parser = argparse.ArgumentParser(description="Quantize with auto-round.")
    for name in ("model", "data", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of each block of the network")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    where = {"pretrained_model_name_or_path": arguments.model}
    if arguments.model.is_file():
        where = {"pretrained_model_name_or_path": arguments.model.parent, "gguf_file": arguments.model.name}
    network = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    with np.load(arguments.data) as arrays:
        tokens = torch.from_numpy(arrays["input_ids"][: arguments.samples])
    quantizer = AutoRound(
        network,
        tokenizer=AutoTokenizer.from_pretrained(**where),
        bits=4,
        group_size=BLOCK,
        sym=False,
        iters=arguments.steps,
        dataset=[tokens[start : start + BATCH] for start in range(0, len(tokens), BATCH)],
        nsamples=len(tokens),
        seqlen=tokens.shape[1],
        batch_size=BATCH,
        device_map="cpu",
        amp=False,
    )
    names = network.state_dict().keys()
    quantized, _ = quantizer.quantize()
    found = quantized.state_dict()
    torch.save({name: found[name] for name in names}, arguments.output)


if __name__ == "__main__":
    main()
