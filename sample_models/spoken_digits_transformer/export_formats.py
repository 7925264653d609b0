"""Writes the trained model in the other forms that `ptq` reads, each with a dynamic batch dimension.

`model.torchscript.pt` (traced TorchScript), `model.pt2` (a `torch.export` archive) and `model.onnx`. Source
lines are left out of all three, because they would hold the paths of the machine that wrote them.

Example:
    python export_formats.py model.pt --output .
"""

import argparse
import zipfile
from pathlib import Path

import torch
from model import FRAMES, MELS, build
from torch import Tensor, nn

OPSET = 20
SEED = 0


def example_inputs() -> tuple[Tensor, Tensor]:
    """Two made-up recordings, the second one shorter than the model's length."""
    mask = torch.ones(2, FRAMES)
    mask[1, FRAMES // 2 :] = 0
    return torch.randn(2, FRAMES, MELS) * mask[:, :, None], mask


def drop_debug_records(archive: Path) -> None:
    """Rewrites a TorchScript archive without its records of source lines, which hold the builder's paths."""
    with zipfile.ZipFile(archive) as source:
        kept = [name for name in source.namelist() if not name.endswith(".debug_pkl")]
        records = {name: source.read(name) for name in kept}
    with zipfile.ZipFile(archive, "w") as target:
        for name, content in records.items():
            target.writestr(zipfile.ZipInfo(name), content)


def export_all(model: nn.Module, folder: Path) -> None:
    """Writes the three files into the folder."""
    inputs = example_inputs()
    scripted = folder / "model.torchscript.pt"
    torch.jit.save(torch.jit.trace(model, inputs), scripted)
    drop_debug_records(scripted)

    batch = torch.export.Dim("batch", min=1, max=4096)
    shapes = {"features": {0: batch}, "mask": {0: batch}}
    exported = torch.export.export(model, inputs, dynamic_shapes=shapes)
    for node in exported.graph.nodes:
        node.meta.pop("stack_trace", None)
    torch.export.save(exported, folder / "model.pt2")
    torch.onnx.export(
        exported,
        (),
        folder / "model.onnx",
        output_names=["logits"],
        dynamic_shapes=shapes,
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
    )


def main() -> None:
    """Reads the command line and exports."""
    parser = argparse.ArgumentParser(description="Export the trained model to TorchScript, pt2 and ONNX.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--output", type=Path, default=Path(), help="folder that receives the three files")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = build().eval()
    model.load_state_dict(torch.load(arguments.checkpoint, weights_only=True))
    with torch.no_grad():
        export_all(model, arguments.output)


if __name__ == "__main__":
    main()
