"""An exported program becomes ONNX, with the names that its signature has."""

from collections.abc import Sequence

import onnx_ir as ir
import torch

from ptq_cli.models.loading.pytorch.signature import restore_signature

EXPORT_OPSET = 20
"""Gelu came with 20; QuantizeLinear with an axis needs 13."""


def program_to_onnx(program: torch.export.ExportedProgram, inputs: Sequence[str]) -> ir.Model:
    """Return a program as ONNX, whose inputs have these names.

    Raises:
        RuntimeError: the exporter returned nothing.
        Exception: whatever else the exporter raises.
    """
    exported = torch.onnx.export(program, dynamo=True, opset_version=EXPORT_OPSET, verbose=False)
    if exported is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    restore_signature(exported.model, program, inputs)
    return exported.model
