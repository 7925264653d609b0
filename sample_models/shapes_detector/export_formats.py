"""Writes the network of a checkpoint as ONNX: `model.onnx`, beside the checkpoint.

Example:
    python export_formats.py model.pt
"""

import argparse
from pathlib import Path

import torch
from model import build
from scenes import SIZE


def main() -> None:
    """Reads the command line and exports."""
    parser = argparse.ArgumentParser(description="Export a checkpoint to ONNX.")
    parser.add_argument("checkpoint", type=Path)
    arguments = parser.parse_args()
    model = build()
    model.load_state_dict(torch.load(arguments.checkpoint, weights_only=True))
    model.eval()
    example = torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8)
    program = torch.onnx.export(
        model,
        (example,),
        input_names=["image"],
        output_names=["detections"],
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        opset_version=20,
    )
    for node in program.model.graph:
        node.metadata_props.clear()  # The paths of the machine that exported it.
    program.save(arguments.checkpoint.with_name("model.onnx"))


if __name__ == "__main__":
    main()
