"""Small models of which everything is decided, in memory."""

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import UINT8
from ptq_cli.plan.sites import ActivationSite
from ptq_cli.qdq.write.site_parameters import decide_all
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recover.quantized_layer import DecidedModel, with_opset
from tests.placements import placed

STEP, ZERO = 0.05, 100


def decided(model: ir.Model, recipe: Recipe) -> DecidedModel:
    """Every activation is on the grid of 8 bits with this step and zero point."""
    grid = QuantParameters(np.asarray(STEP, np.float32), np.asarray(ZERO, np.int64), UINT8)

    def decide(site: ActivationSite) -> QuantParameters:
        del site
        return grid

    found = placed(model, recipe)
    model = with_opset(model, found.opset, "the model")
    parameters = decide_all(model, found.plan, decide, found.quantizers.__getitem__)
    return DecidedModel(model=model, placement=found, plan=found.plan, parameters=parameters, unsearched={})
