"""Greedy continuations: ties, what is compared, and what models lack."""

import numpy as np
import pytest

from ptq_cli.calibdata.carries import Carry
from ptq_cli.core.errors import CarryError, MetricError
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.evaluation.generation import Continued, compared_tokens, continuation_of

IDS = TensorSpec("input_ids", np.dtype("i8"), (None, None))
CACHE = TensorSpec("past", np.dtype("f4"), (None, None, 4))


def test_tokens_are_compared_place_by_place_and_prompts_are_drawn() -> None:
    quantized = [(1, 2, 3, 4), (1, 9, 3, 9), (9, 2, 3, 4)]
    found = [Continued(f"p{index}", (1, 2, 3, 4), (item,)) for index, item in enumerate(quantized)]
    measured, told = compared_tokens(found, 0, lambda tokens: "".join(map(str, tokens)))
    assert measured.quantized_value == pytest.approx((1 + 0.5 + 0.75) / 3)
    assert measured.quantized_interval is not None and 0 < measured.quantized_interval.low < 0.5
    assert (told.first_differences, told.unchanged, told.median_equal) == ((None, 1, 0), 1, 1.0)
    assert [item.prompt for item in told.examples] == ["p1", "p2"]
    assert (told.examples[0].float_text, told.examples[0].quantized_text) == ("1234", "1939")


def test_of_equal_scores_the_first_token_is_chosen() -> None:
    how = continuation_of(4, [IDS], {"logits": 3}, ())
    assert how.chosen([np.array([[[0.0, 2.0, 2.0]]], np.float32)], -1) == 1
    for output, said in (
        (np.zeros((2, 1, 3), np.float32), "is \\[2, 1, 3\\]"),
        (np.full((1, 1, 3), np.nan), "NaN"),
    ):
        with pytest.raises(MetricError, match=said):
            how.chosen([output], -1)


def test_what_no_continuation_has_is_refused() -> None:
    carries = [Carry("present", CACHE)]
    more = TensorSpec("speaker", np.dtype("f4"), (None, 8))
    with pytest.raises(CarryError, match="cannot make 'speaker'"):
        continuation_of(4, [IDS, CACHE, more], {"logits": 3, "present": 3}, carries)
    wide = TensorSpec("input_ids", np.dtype("i8"), (None, 8))
    with pytest.raises(MetricError, match="takes 8 a step"):
        continuation_of(4, [wide, CACHE], {"logits": 3, "present": 3}, carries)
    with pytest.raises(MetricError, match="takes batches of 2"):
        continuation_of(4, [TensorSpec("input_ids", np.dtype("i8"), (2, 8))], {"logits": 3}, ())
