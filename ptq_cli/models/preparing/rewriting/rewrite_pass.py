"""What a pass is, and how the passes run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.removed_graphs import remove_unused

MOST_ROUNDS = 10
"""One fold makes room for the next: Conv, Add, BatchNormalization, Mul. No real chain is longer."""


@dataclass(frozen=True)
class RewritePass:
    """A rewrite of one graph: the main graph, or one that is nested in it.

    Attributes:
        name: a word or two, for messages and tests.
        effect: what it does, for the table of ``ptq prepare``.
        apply: rewrites a graph and returns how often it did; names that are free come with it.
        opset: oldest opset that has the operators which it writes; 0 where it writes no new ones.
    """

    name: str
    effect: str
    apply: Callable[[ir.Graph, FreshNames], int]
    opset: int = 0


def run_passes(
    model: ir.Model, passes: Sequence[RewritePass], *, at_any_opset: bool = False
) -> dict[str, int]:
    """Run passes until none finds anything, and return how often each was applied, by name.

    Requires: constants are initializers of the main graph. Ensures: they still are, and nothing is left that
    no output needs.

    Args:
        model: is changed in place.
        passes: in order. Those whose operators the model's opset lacks are left out.
        at_any_opset: run them too, to see what a newer opset would be good for.
    """
    times = {item.name: 0 for item in passes}
    opset = model.opset_imports.get("", 0)
    usable = [item for item in passes if at_any_opset or opset >= item.opset]
    for _ in range(MOST_ROUNDS):
        names = FreshNames.of(model.graph)
        # A pass may take nested graphs away.
        found = {
            item.name: sum(item.apply(graph, names) for graph in list(model.graphs())) for item in usable
        }
        if not any(found.values()):
            break
        for name, count in found.items():
            times[name] += count
        remove_unused(model)
    # A pass gives a constant to the graph that it rewrites; here all of them are the main graph's.
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    return times
