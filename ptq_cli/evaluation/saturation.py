"""Layers of a quantized file that can saturate, on any processor and on this one."""

import onnx_ir as ir

from ptq_cli.evaluation.document.report_document import NOTHING, Saturation
from ptq_cli.models.graph_reading import every_node
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.proof.operators import prove_operators
from ptq_cli.qdq.proof.portable_sums import portable_sums
from ptq_cli.qdq.read.quantized_file import is_quantized, named
from ptq_cli.runtime.probes import is_signed_exact


def saturation_of(model: ir.Model, target: Target) -> Saturation:
    """Return which layers of a file can saturate, of those that a target's rules compute in integers."""
    if not is_quantized(model):
        return NOTHING
    graph = named(model.clone())
    nothing = MultiplyAccumulates({node.name or "": 0 for node in every_node(graph.graph)}, {}, {})
    return Saturation.of(portable_sums(graph, target, prove_operators(graph, target, nothing, None)))


def saturation_here(model: ir.Model, target: Target) -> Saturation:
    """Return which layers of a file can saturate as ptq runs it on this processor."""
    return saturation_of(model, target) if _adds_in_16_bits(target) else NOTHING


def saturates_here(saturation: Saturation, target: Target) -> bool:
    """Tell whether layers can saturate as ptq runs a file on this processor."""
    return bool(saturation.saturating) and _adds_in_16_bits(target)


def _adds_in_16_bits(target: Target) -> bool:
    """Tell whether the kernels that a target's files are run with saturate; OpenVINO's do as ONNX Runtime's.

    Files of other runtimes are run with exact sums if their activations are signed (``AS_WRITTEN``).
    """
    is_exact = not target.runtime and target.activation.integers.signed
    return not is_exact and not is_signed_exact()
