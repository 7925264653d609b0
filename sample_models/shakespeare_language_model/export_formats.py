"""Writes the trained model as ONNX: `model.onnx`, and `decoder_with_past_model.onnx` with a cache.

Both files hold the graph only and read their weights from `model.safetensors`, which lies beside them. A
cache may be empty: with a past of 0 tokens the second form computes what the first one does. Source lines are
left out, because they would hold the paths of the machine that wrote them.

Example:
    python export_formats.py model.safetensors
"""

import argparse
import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from model import BLOCKS, HEAD_WIDTH, KEY_HEADS, VOCABULARY, build
from safetensors.torch import load_file
from torch import Tensor, nn

OPSET = 20
SEED = 0
INPUTS = ("input_ids", "attention_mask", "position_ids")
PAST, PRESENT = (
    tuple(f"{name}.{block}.{part}" for block in range(BLOCKS) for part in ("key", "value"))
    for name in ("past_key_values", "present")
)
BATCH, NEW, BEFORE = "batch_size", "sequence_length", "past_sequence_length"
LENGTH_OF_HEADER = 8
"""A safetensors file starts with the length of its header, an integer of 8 bytes."""


class WithPast(nn.Module):
    """The model, with keys and values of each block as inputs and outputs."""

    def __init__(self, model: nn.Module) -> None:
        """Wraps the model."""
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Returns the logits, then keys and values of one block after the other."""
        pairs = list(zip(past[::2], past[1::2], strict=True))
        logits, presents = self.model.continue_from(input_ids, attention_mask, position_ids, pairs)
        return (logits, *(part for cache in presents for part in cache))


def example_inputs(past: int) -> tuple[Tensor, ...]:
    """Two made-up sequences of 5 tokens; if `past` is not 0, behind that many tokens, with their cache."""
    ids = torch.randint(VOCABULARY, (2, 5))
    positions = torch.arange(past, past + 5).expand(2, -1).contiguous()
    caches = [torch.randn(2, KEY_HEADS, past, HEAD_WIDTH) for _ in PAST] if past else []
    return (ids, torch.ones(2, past + 5, dtype=torch.int64), positions, *caches)


def to_graph(model: nn.Module, past: int) -> ir.Model:
    """Returns the graph of the model, with names for its open dimensions."""
    open_axis = torch.export.Dim.DYNAMIC
    sequences = [{0: open_axis, 1: open_axis} for _ in INPUTS]
    caches = [{0: open_axis, 2: open_axis} for _ in PAST]
    program: Any = torch.onnx.export(
        model.eval(),
        example_inputs(past),
        input_names=[*INPUTS, *PAST] if past else INPUTS,
        output_names=["logits", *PRESENT] if past else ["logits"],
        dynamic_shapes=(*sequences, tuple(caches)) if past else tuple(sequences),
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    graph = program.model.graph
    everything = f"{BEFORE} + {NEW}" if past else NEW
    for value in [*graph.inputs, *graph.outputs]:
        axes = {0: BATCH, 1: everything if value.name == "attention_mask" else NEW}
        if value.name in (*PAST, *PRESENT):
            axes = {0: BATCH, 2: BEFORE if value.name in PAST else everything}
        value.shape = ir.Shape([axes.get(axis, size) for axis, size in enumerate(value.shape)])
    return without_traces(program.model)


def without_traces(model: ir.Model) -> ir.Model:
    """Drops the exporter's notes: source lines, and shapes of inner values under names of its own."""
    named = {*model.graph.inputs, *model.graph.outputs}
    model.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        for value in (*node.inputs, *node.outputs):
            if value is not None:
                value.metadata_props.clear()
                if value not in named and not value.is_initializer():
                    value.shape = value.type = None
    return model


def read_from(weights: Path, model: ir.Model) -> ir.Model:
    """Lets the graph read each weight from the safetensors file, under the weight's name in that file."""
    content = weights.read_bytes()
    start = LENGTH_OF_HEADER + int.from_bytes(content[:LENGTH_OF_HEADER], "little")
    entries = json.loads(content[LENGTH_OF_HEADER:start])
    for value in list(model.graph.initializers.values()):
        value.name = value.name.removeprefix("model.")  # WithPast wraps the model.
        if value.name in entries:
            first, last = entries[value.name]["data_offsets"]
            value.const_value = ir.ExternalTensor(
                weights.name,
                start + first,
                last - first,
                value.dtype,
                shape=value.shape,
                name=value.name,
                base_dir=weights.parent,
            )
    return model


def main() -> None:
    """Reads the command line and exports."""
    parser = argparse.ArgumentParser(description="Export the model to ONNX, without and with a cache.")
    parser.add_argument("checkpoint", type=Path, help="the two files are written beside it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = build()
    model.load_state_dict(load_file(arguments.checkpoint))
    forms = {"model.onnx": (model, 0), "decoder_with_past_model.onnx": (WithPast(model), 3)}
    for name, (module, past) in forms.items():
        with torch.no_grad():
            graph = read_from(arguments.checkpoint, to_graph(module, past))
        ir.save(graph, arguments.checkpoint.parent / name)


if __name__ == "__main__":
    main()
