"""Attention masks as PyTorch exports them: no target quantizes one, and the output is right."""

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target, target_names
from tests.day import fewer
from tests.quantized import quantize_model
from tests.unit.models.loading.sources import source_of
from tests.unit.plan.graphs import parameters, ranges, run, sqnr_db

LARGEST = 100.0  # No tensor that is quantized reaches this; a mask is beyond 9,999
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
    for target in fewer(target_names(), 3):
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
        found = run(result, batches[0], optimize=optimize, target=load_target(target))
        for name, output in zip(wanted, found, strict=True):
            assert sqnr_db(wanted[name], output) > LEAST_DB, (target, name)


WIDTH, LENGTH = 16, 6
SMALLEST = torch.finfo(torch.float32).min
# Scores (N, T, T) and a padding mask of ones and zeros (N, T) in, masked scores out.
Mask = Callable[[Tensor, Tensor], Tensor]


def minus_infinity(scores: Tensor, keep: Tensor) -> Tensor:
    return scores.masked_fill(keep[:, None] == 0, float("-inf"))


def smallest_of_the_type(scores: Tensor, keep: Tensor) -> Tensor:
    return scores + (1.0 - keep[:, None].float()) * SMALLEST


def ten_thousand(scores: Tensor, keep: Tensor) -> Tensor:
    return scores + (1.0 - keep[:, None].float()) * -1e4


def half_precision(scores: Tensor, keep: Tensor) -> Tensor:
    return scores - 65504.0 * (1.0 - keep[:, None].float())


def filled_by_hand(scores: Tensor, keep: Tensor) -> Tensor:
    added = torch.zeros(keep.shape).masked_fill(keep == 0, -1e9)
    return scores + added[:, None]


def logarithm(scores: Tensor, keep: Tensor) -> Tensor:
    return scores + torch.log((keep[:, None] > 0).float())


def chosen_by_where(scores: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep[:, None] > 0, scores, torch.tensor(SMALLEST))


def multiplied_and_shifted(scores: Tensor, keep: Tensor) -> Tensor:
    kept = keep[:, None].float()
    return scores * kept - 1e4 * (1.0 - kept)


def causal_from_the_length(scores: Tensor, keep: Tensor) -> Tensor:
    steps = torch.arange(scores.shape[-1])
    return scores.masked_fill(steps[None, :] > steps[:, None], float("-inf"))


def causal_triangle(scores: Tensor, keep: Tensor) -> Tensor:
    return scores + torch.full((LENGTH, LENGTH), SMALLEST).triu(1)


def causal_and_padding(scores: Tensor, keep: Tensor) -> Tensor:
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return scores + torch.where(causal & (keep[:, None] > 0), 0.0, SMALLEST)


def distances_and_padding(scores: Tensor, keep: Tensor) -> Tensor:
    steps = torch.arange(LENGTH)
    distances = -(steps[:, None] - steps[None, :]).abs().float() / 4
    return scores + (distances + (1.0 - keep[:, None].float()) * -1e9)


MASKS: dict[str, Mask] = {
    item.__name__: item
    for item in (
        minus_infinity,
        smallest_of_the_type,
        ten_thousand,
        half_precision,
        filled_by_hand,
        logarithm,
        chosen_by_where,
        multiplied_and_shifted,
        causal_from_the_length,
        causal_triangle,
        causal_and_padding,
        distances_and_padding,
    )
}


class Masked(nn.Module):
    """Projections, scores, the mask, a softmax and what it mixes."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(WIDTH)
        weights = torch.softmax(self.mask(scores, keep), dim=-1)
        return self.out(weights @ self.value(x))


class MaskedByPyTorch(nn.Module):
    """The same by PyTorch's own function, which takes a mask of truth or makes a causal one."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        heads = [layer(x)[:, None] for layer in (self.query, self.key, self.value)]
        mask = None if self.causal else keep[:, None, None] > 0
        mixed = nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=self.causal)
        return mixed[:, 0]


class Together(nn.Module):
    """Every attention on the same inputs, an output for each: one export serves them all."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleDict(modules())

    def forward(self, x: Tensor, keep: Tensor) -> dict[str, Tensor]:
        return {name: module(x, keep) for name, module in self.each.items()}


def modules() -> dict[str, nn.Module]:
    """Each with weights of its own, so that nothing is shared where all are in one graph."""
    made: dict[str, nn.Module] = {}
    makers = {
        **{name: (lambda mask=mask: Masked(mask)) for name, mask in MASKS.items()},
        "pytorch_padding": lambda: MaskedByPyTorch(causal=False),
        "pytorch_causal": lambda: MaskedByPyTorch(causal=True),
    }
    for seed, (name, make) in fewer(enumerate(makers.items()), 3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made[name] = make().eval()
    return made
