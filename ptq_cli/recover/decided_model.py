"""A model of which everything is decided and nothing is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.files.mapped_constants import ConstantsFile
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.opset import opset_of, raise_opset
from ptq_cli.placement.fastest_placement import LatencyPreference
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.write.constant_pairs import NamesBySite
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import Parameters
from ptq_cli.recover.recovery_effects import FloatLayers, RangesByEffect


@dataclass(frozen=True, kw_only=True)
class DecidedModel:
    """A model of which everything is decided, and nothing is written.

    Attributes:
        model: the float model, in an opset that has the integers.
        plan: of the placement, with clamps exposed.
        unsearched: tensors whose method had only one candidate, with the method.
        begun: the file that holds integers of a large model already; None of another.
    """

    model: ir.Model
    placement: Placement
    plan: Plan
    parameters: Parameters
    unsearched: Mapping[str, str]
    latency: LatencyPreference | None = None
    ranges: RangesByEffect | None = None
    float_layers: FloatLayers | None = None
    work: Mapping[str, int | None] = field(default_factory=dict)
    begun: ConstantsFile | None = None

    def write(self, model: ir.Model) -> NamesBySite:
        """Make a graph the quantized one, in place; return where it holds what was decided."""
        return quantize_in_place(model, self.plan, self.parameters)


def with_opset(model: ir.Model, opset: int, what: str) -> ir.Model:
    """Return the model in an opset that its placement needs; may change it."""
    if opset_of(model) >= opset:
        return model
    names = [node.name for node in every_node(model.graph)]
    hint = "use 5 to 8 bits without blocks, or export the model again with that opset"
    needs = "(which the target, 4-bit or 16-bit integers, or blocks need)"
    try:
        raised = raise_opset(model, opset, what)
    except InvalidOnnxError as error:
        raise InvalidOnnxError(f"{error.message} {needs}", hint=hint) from error
    if [node.name for node in every_node(raised.graph)] != names:
        raise InvalidOnnxError(
            f"converting '{what}' to opset {opset} {needs} changed its operators", hint=hint
        )
    return raised
