"""Attention masks as PyTorch exports them: no target quantizes one, and the output is right."""

import numpy as np
import pytest
import torch

from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target, target_names
from tests.contracts.masked_attention import LENGTH, WIDTH, modules
from tests.quantized import quantize_model
from tests.unit.models.loading.sources import source_of
from tests.unit.plan.graphs import parameters, ranges, run, sqnr_db

MODULES = modules()
LARGEST = 100.0
"""No tensor that is quantized reaches this; a mask is beyond 9,999."""
LEAST_DB = 25.0


def batch(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    keep = (np.arange(LENGTH) < random.integers(2, LENGTH + 1, (4, 1))).astype(np.int64)
    return {"x": random.standard_normal((4, LENGTH, WIDTH)).astype(np.float32), "keep": keep}


@pytest.mark.parametrize("name", MODULES)
def test_no_target_quantizes_the_mask(name: str):
    batches = [batch(seed) for seed in range(8)]
    model = prepare(source_of(MODULES[name]).to_onnx(batches[0]), "model.pt")
    with torch.no_grad():
        wanted = MODULES[name](**{key: torch.from_numpy(array) for key, array in batches[0].items()}).numpy()
    for target in target_names():
        plan = make_plan(model, load_target(target))
        found = ranges(model, plan, batches)
        assert {key: pair for key, pair in found.items() if max(map(abs, pair)) > LARGEST} == {}, target
        result = quantize_model(model, plan, parameters(model, plan, batches))
        for optimize in (True, False):
            assert sqnr_db(wanted, run(result, batches[0], optimize=optimize)[0]) > LEAST_DB, target
