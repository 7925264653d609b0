"""Questions about single nodes."""

import onnx_ir as ir
import pytest

from ptq_cli.plan.graph_questions import ends_signal, may_end_signal


@pytest.mark.parametrize(("rank", "may", "does"), [(3, True, True), (4, False, False), (None, True, False)])
def test_behind_a_loop_a_mean_may_end_a_signal(rank, may, does):
    x = ir.val("x", ir.DataType.FLOAT, None if rank is None else [2] * rank)
    node = ir.node("ReduceMean", [x], {"axes": [-1]})
    assert (may_end_signal(node), ends_signal(node)) == (may, does)
