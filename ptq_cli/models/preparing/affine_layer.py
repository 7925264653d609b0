"""A layer that computes ``weight * x + bias``, and what an affine map behind it makes of the two."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import input_at
from ptq_cli.models.names import FreshNames
from ptq_cli.models.preparing.rewriting import Floats, floats_of, set_constant

LAYERS = ("Conv", "ConvTranspose", "Gemm")


@dataclass(frozen=True, kw_only=True)
class AffineLayer:
    """A Conv, ConvTranspose or Gemm with a constant weight.

    Attributes:
        bias: what it adds, one number a channel, with Gemm's ``beta`` applied; zeros where it has none.
        channels: how many output channels it has.
        rank: how many axes its output has; the channels' is axis 1.
        name: of its weight.
    """

    node: ir.Node
    weight: Floats
    bias: Floats
    channels: int
    rank: int
    name: str = ""

    def scaled(self, factor: Floats) -> Floats:
        """Return the weight with each output channel multiplied.

        Shapes:
            factor: (channels,). Of a grouped ConvTranspose, whose axis 1 counts one group's channels, the
            factors of a group go to the input channels of that group.
        """
        if self.node.op_type == "ConvTranspose":
            group = self.node.attributes.get_int("group", 1)
            inputs, outputs, *kernel = self.weight.shape
            grouped = self.weight.reshape(group, inputs // group, outputs, *kernel)
            ones = (1,) * len(kernel)
            return (grouped * factor.reshape(group, 1, outputs, *ones)).reshape(self.weight.shape)
        if self.node.op_type == "Gemm":
            return self.weight * (factor if _is_output_last(self.node) else factor[:, None])
        return self.weight * factor.reshape(-1, *(1,) * (self.weight.ndim - 1))

    def write(self, weight: Floats | None, bias: Floats, names: FreshNames) -> None:
        """Give the operator another bias, and another weight unless that is None."""
        dtype = self.weight.dtype
        if weight is not None:
            set_constant(self.node, 1, weight.astype(dtype), self.name, names)
        set_constant(self.node, 2, bias.astype(dtype), f"{self.name}_bias", names)
        self.node.attributes.pop("beta", None)


def affine_layer(node: ir.Node | None) -> AffineLayer | None:
    """Return the layer that a node is, or None where it is none or its parameters are not constant."""
    if node is None or node.op_type not in LAYERS or node.domain != "":
        return None
    second, third = input_at(node, 1), input_at(node, 2)
    weight, bias = floats_of(second), floats_of(third)
    if second is None or weight is None or weight.ndim < 2 or (third is not None and bias is None):
        return None
    if node.op_type == "ConvTranspose" and weight.shape[0] % node.attributes.get_int("group", 1):
        return None
    channels = _channels(node, weight)
    if bias is None:
        bias = np.zeros(channels, weight.dtype)
    # Gemm's bias may be a matrix, not one number per channel; one number for all channels is one for each.
    if bias.size != 1 and not bias.size == bias.shape[-1] == channels:
        return None
    if node.op_type == "Gemm":
        bias = (bias * np.float32(node.attributes.get_float("beta", 1.0))).astype(weight.dtype)
    bias = np.broadcast_to(bias.reshape(-1), (channels,))
    rank = 2 if node.op_type == "Gemm" else weight.ndim
    return AffineLayer(
        node=node, weight=weight, bias=bias, channels=channels, rank=rank, name=second.name or node.op_type
    )


def per_channel(array: Floats, layer: AffineLayer) -> Floats | None:
    """Return an operand of a layer's output as one number a channel, or None where it is something else.

    Shapes:
        array: what broadcasts to the layer's output, (N, channels, …), without changing its shape.
    """
    if array.ndim > layer.rank:
        return None
    shape = (1,) * (layer.rank - array.ndim) + array.shape
    if shape[1] not in (1, layer.channels) or any(size != 1 for size in (shape[0], *shape[2:])):
        return None
    return np.broadcast_to(array.reshape(-1), (layer.channels,))


def _channels(node: ir.Node, weight: Floats) -> int:
    if node.op_type == "ConvTranspose":
        return int(weight.shape[1] * node.attributes.get_int("group", 1))
    return int(weight.shape[1] if node.op_type == "Gemm" and _is_output_last(node) else weight.shape[0])


def _is_output_last(gemm: ir.Node) -> bool:
    return not gemm.attributes.get_int("transB", 0)
