"""What ``openvino`` promises besides: what OpenVINO makes integer of the graph, and what it computes."""

import importlib.util
from collections.abc import Callable

from ptq_cli.runtime.engine import OPEN_VINO
from ptq_cli.runtime.session import is_signed_exact
from tests.contracts.small_graphs.every_target import LEAST_DB, its_rules_say_what_its_plan_does
from tests.contracts.small_graphs.exported import COMPARED, Exported, finite
from tests.unit.plan.graphs import sample, serialized, sqnr_db

REFUSED = {
    "matmul_of_doubles": "does not support f64",
    "concat_constant": "[MatMulTransformation]",
    "loop_reads_a_weight": "OpenVINO failed on a batch",
}
"""Graphs that OpenVINO 2026.4 does not load or run, and what it says."""
WRONG = ("global_average_pool_1d", "mask_by_where", "mask_by_where_and_add")
"""Graphs whose quantized form OpenVINO 2026.4 computes wrongly with VNNI, which ``ptq evaluate`` shows."""
FLOAT = {"concat": ["y"]}
"""A Conv behind a Concat and a Relu: OpenVINO 2026.4 leaves it in float."""


def what_computes_in_the_plan_is_an_integer_primitive(made: Exported) -> None:
    if made.name in REFUSED:
        return
    kernels = OPEN_VINO.find_kernels(made.result)
    computing = {name for name, rule in made.target.op.items() if rule.kind == "compute"}
    planned = [layer for layer in made.plan.layers if layer.quantized and layer.op in computing]
    found = [layer.name for layer in planned if kernels[layer.name].placement == "float"]
    assert found == FLOAT.get(made.name, [])


def openvino_runs_it_near_the_float_model(made: Exported) -> None:
    inputs = sample(made.model, seed=COMPARED)
    if made.name in REFUSED:
        return
    written = OPEN_VINO.open(serialized(made.model), threads=1).run(inputs)
    is_right = all(
        sqnr_db(finite(reference), finite(other)) > LEAST_DB
        for reference, other in zip(made.wanted, written, strict=True)
    )
    found = OPEN_VINO.open(made.content, threads=1).run(inputs)
    near = all(
        sqnr_db(finite(reference), finite(other)) > LEAST_DB
        for reference, other in zip(made.wanted, found, strict=True)
    )
    wrong = made.name in WRONG or not is_right
    if is_signed_exact():
        assert near is not wrong
    else:  # With AVX2 alone it has other kernels, of which some are right.
        assert near or wrong


ALWAYS: tuple[Callable[[Exported], None], ...] = (its_rules_say_what_its_plan_does,)
RUN = (what_computes_in_the_plan_is_an_integer_primitive, openvino_runs_it_near_the_float_model)
OPENVINO = ALWAYS + (RUN if importlib.util.find_spec("openvino") else ())
