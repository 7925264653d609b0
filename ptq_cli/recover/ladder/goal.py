"""SQNR of the worst output that is enough: of the recipe and its gate, and more of activations for tokens."""

import onnx_ir as ir

from ptq_cli.recipe.schema import Recipe

MOST_ASKED_DB = 40.0  # more than bytes have: a limit above it is for the gate
# What activations found at each run add to the noise of logits costs perplexity 1 % on text like the
# calibration's and 6 % on other text at 22.7 dB: benchmarks/RESULTS.md, language models.
MORE_FOR_TOKENS_DB = 6.0
_FEWEST_TOKENS = 256  # of a vocabulary


def goal_of(recipe: Recipe) -> float:
    """Return the SQNR that the worst output is to have, in dB: a limit of the gate may ask for more.

    Example:
        >>> goal_of(Recipe())
        20.0
    """
    goal, asked = recipe.accuracy.goal_db, recipe.gate.min.get("sqnr_db", 0.0)
    return max(goal, min(asked, MOST_ASKED_DB)) if isinstance(asked, float | int) else goal


def predicts_tokens(model: ir.Model) -> bool:
    """Tell whether an output has a number for each token of a vocabulary, at each position of integers."""
    lengths = {
        value.shape[1]
        for value in model.graph.inputs
        if value.dtype is not None and value.dtype.is_integer() and value.shape and len(value.shape) == 2
    }
    return any(
        len(shape) == 3 and shape[1] in lengths and isinstance(shape[2], int) and shape[2] >= _FEWEST_TOKENS
        for value in model.graph.outputs
        if (shape := value.shape) is not None
    )
