"""What a report holds of greedy continuations: how many tokens are equal, and where the first one differs."""

from dataclasses import dataclass
from typing import Annotated

from ptq_cli.core.documents import AtLeast

GENERATED = "generated_equal"
"""The metric: the share of equal tokens. It is measured where prompts are continued."""
Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, kw_only=True)
class Example:
    """One prompt as both models continue it."""

    prompt: Annotated[str, "Its name in the data."]
    of_float: Annotated[tuple[int, ...], "Tokens of the float model."]
    quantized: Annotated[tuple[int, ...], "Tokens of the quantized model."]
    float_text: Annotated[str | None, "What the tokenizer makes of them; None without one."] = None
    quantized_text: Annotated[str | None, "The same of the quantized model's."] = None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How far a quantized model writes what the float model writes, each after its own tokens."""

    prompts: Annotated[Count, "How many were continued."]
    tokens: Annotated[Annotated[int, AtLeast(1)], "By how many tokens each."]
    unchanged: Annotated[Count, "Prompts whose tokens are all equal."]
    median_equal: Annotated[
        float, "Tokens before the first difference, median of the prompts; all tokens where there is none."
    ]
    first_differences: Annotated[
        tuple[int | None, ...],
        "The first token that differs, counted from 0, of the first thousand prompts; None if all are equal.",
    ]
    examples: Annotated[tuple[Example, ...], "The first three prompts with a difference, if there is one."]
