"""Small modules, and the way from a module to the prepared ONNX model."""

from pathlib import Path

import onnx_ir as ir
import torch

from ptq_cli.core.tensors import Array
from ptq_cli.models.loading.source import ModelKind, SourceFile
from ptq_cli.models.loading.torch_sources import ModuleSource
from ptq_cli.models.preparing.prepare_graph import prepare


class SmallNet(torch.nn.Module):
    """Conv, BatchNorm, ReLU, pooling, Linear."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, channels, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(channels)
        self.head = torch.nn.Linear(channels, 5)
        with torch.no_grad():
            self.norm.running_mean.uniform_(-1, 1)
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.norm(self.conv(image)))
        return self.head(features.mean((2, 3)))


def source_of(module: torch.nn.Module) -> ModuleSource:
    return ModuleSource(SourceFile(Path("model.pt"), ModelKind.CHECKPOINT, ""), module.eval())


def prepared(module: torch.nn.Module, **example: Array) -> ir.Model:
    return prepare(source_of(module).to_onnx(example), "model.pt", is_traced=True)
