"""Attention masks as PyTorch exports them: no target quantizes one, and the output is right."""

import numpy as np
import onnx_ir as ir
import torch

from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target, target_names
from tests.contracts.masked_attention import LENGTH, WIDTH, Together
from tests.quantized import quantize_model
from tests.unit.models.loading.sources import source_of
from tests.unit.plan.graphs import parameters, ranges, run, sqnr_db

LARGEST = 100.0
"""No tensor that is quantized reaches this; a mask is beyond 9,999."""
LEAST_DB = 25.0


def batch(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    keep = (np.arange(LENGTH) < random.integers(2, LENGTH + 1, (4, 1))).astype(np.int64)
    return {"x": random.standard_normal((4, LENGTH, WIDTH)).astype(np.float32), "keep": keep}


def exported() -> tuple[ir.Model, dict[str, np.ndarray]]:
    """The prepared graph, and what PyTorch computes of the first batch, by the mask's name."""
    module = Together().eval()
    first = batch(0)
    with torch.no_grad():
        wanted = module(**{key: torch.from_numpy(array) for key, array in first.items()})
    model = prepare(source_of(module).to_onnx(first), "model.pt")
    return model, {name: tensor.numpy() for name, tensor in wanted.items()}


def test_every_attention_is_quantized_and_no_mask():
    # One test, because one export takes seconds, and the workers of a parallel run share nothing.
    model, wanted = exported()
    assert [value.name for value in model.graph.outputs] == list(wanted)
    require_attention_is_quantized(model, list(wanted))
    for target in target_names():
        require_no_quantized_mask(model, wanted, target)


def require_attention_is_quantized(model: ir.Model, names: list[str]) -> None:
    layers = make_plan(model, load_target("ort-cpu")).layers
    integer = [layer.name for layer in layers if layer.op in ("Gemm", "MatMul") and layer.quantized]
    for name in names:
        own = [layer for layer in integer if layer.startswith((f"each.{name}.", f"each.{name}/"))]
        assert len(own) >= 3, name


def require_no_quantized_mask(model: ir.Model, wanted: dict[str, np.ndarray], target: str) -> None:
    batches = [batch(seed) for seed in range(8)]
    plan = make_plan(model, load_target(target))
    seen = ranges(model, plan, batches)
    assert {key: pair for key, pair in seen.items() if max(map(abs, pair)) > LARGEST} == {}, target
    result = quantize_model(model, plan, parameters(model, plan, batches))
    for optimize in (True, False):
        # A GPU saturates no sums, and this processor may.
        found = run(result, batches[0], optimize=optimize, exact_sums=target == "tensorrt")
        for name, output in zip(wanted, found, strict=True):
            assert sqnr_db(wanted[name], output) > LEAST_DB, (target, name)
