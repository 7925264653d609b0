"""Hits as text are small, and say what they were made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.core.errors import ReportError
from ptq_cli.evaluation.bootstrap import count_flips
from ptq_cli.evaluation.document.measurement import flips_between, hits_to_text, require_hits
from tests.each_case import each_case


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_two_texts_give_the_flips_of_the_samples(pairs: list[tuple[bool, bool]]) -> None:
    before, after = (list(hits) for hits in zip(*pairs, strict=True))
    texts = hits_to_text(before), hits_to_text(after)
    assert flips_between(*texts, len(pairs)) == count_flips(np.array(before, float), np.array(after, float))
    for hits, text in ((before, texts[0]), (after, texts[1])):
        require_hits(text, len(hits), sum(hits) / len(hits), "metrics[0]")
        assert len(text) == (len(hits) + 3) // 4


@each_case(
    "text, samples, share",
    [("9", 5, 0.4), ("981", 5, 0.4), ("99", 5, 0.6), ("98", 5, 0.4)],
    ids=["short", "long", "a-hit-beyond-the-end", "another-share"],
)
def test_hits_of_other_samples_are_refused(text: str, samples: int, share: float) -> None:
    with pytest.raises(ReportError, match=r"'metrics\[2\].quantized_hits' does not fit"):
        require_hits(text, samples, share, "metrics[2].quantized_hits")
