"""Each pass, as text: the graph before and after.

Run with ``PTQ_WRITE_GRAPHS=1`` to write the texts again, and look at what changed.
"""

import os
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from ptq_cli.core.arithmetic import parameters_from_range
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.write.constant_pairs import store_constants
from ptq_cli.qdq.write.quantize_graph import insert_activation_pairs
from ptq_cli.qdq.write.site_parameters import Parameters, decide_all
from tests.each_case import each_case
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build
from tests.unit.qdq.printer import graph_text

GRAPHS = Path(__file__).parents[4] / "golden" / "graphs"
ENDS = [
    "conv_relu",
    "residual_block",
    "gemm_relu_gemm",
    "shared_weight",
    "matmul_bias_2d",
    "reshape_transpose",
]
ENDS += ["output_that_is_read", "residual_after_norm", "two_convs_of_one_input", "if_reads_values_around_it"]


def constants(model: ir.Model, plan: Plan, parameters: Parameters) -> None:
    store_constants(model, plan, parameters)


def activations(model: ir.Model, plan: Plan, parameters: Parameters) -> None:
    insert_activation_pairs(model, plan, parameters.activations)


@each_case("name", ENDS)
@each_case("edit", [constants, activations], ids=lambda edit: edit.__name__)
def test_graph_before_and_after(name: str, edit: Callable[[ir.Model, Plan, Parameters], None]):
    model = build(CASES[name].graph)
    plan = make_plan(model, load_target("ort-cpu"))
    # Round scales, so that the texts read easily and no machine's last bit shows.
    parameters = decide_all(model, plan, lambda site: parameters_from_range(-1.0, 1.55, site.format))
    before = graph_text(model)
    edit(model, plan, parameters)
    text = f"before\n\n{before}\nafter {edit.__name__}\n\n{graph_text(model)}"
    path = GRAPHS / f"{name}.{edit.__name__}.txt"
    if os.environ.get("PTQ_WRITE_GRAPHS"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
