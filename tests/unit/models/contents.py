"""Noise to run a model on, and what is in its graph."""

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def names(model: ir.Model) -> list[str]:
    return [node.name or "" for node in model.graph]


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]
