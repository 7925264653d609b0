"""auto-round's weights of 4 bits in blocks: run by a Python that has auto-round, transformers and gguf.

PYTHON by_auto_round.py MODEL DATA OUTPUT --samples 16 --steps 200

MODEL is a GGUF file, and OUTPUT a folder of transformers whose weights lie on the chosen grid. Weights have
zero points; the embedding and the last layer stay in float, as auto-round leaves them. Without steps it
rounds with scales that it searches for.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from auto_round import AutoRound
from transformers import AutoModelForCausalLM, AutoTokenizer

BLOCK, BATCH = 32, 8


def main() -> None:
    """Parse the arguments, quantize, and write the folder."""
    parser = argparse.ArgumentParser(description="Quantize with auto-round.")
    for name in ("model", "data", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of each block of the network")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
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
    quantized, _ = quantizer.quantize()
    quantized.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
