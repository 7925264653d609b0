"""Whatever stands in a calibration file in place of its share is read as a share, or refused."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.collectors.share import Share, share_to_table, table_to_share

NUMBERS = st.one_of(st.integers(-2, 12), st.integers(), st.booleans(), st.floats(allow_nan=False), st.none())
JSON = st.recursive(
    st.one_of(NUMBERS, st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
PAIRS = st.lists(st.one_of(st.tuples(NUMBERS, NUMBERS).map(list), JSON), max_size=4)
TABLES = st.fixed_dictionaries(
    {
        "count": NUMBERS,
        "batch_size": NUMBERS,
        "batches": st.one_of(PAIRS, JSON),
        "finished": st.one_of(st.booleans(), JSON),
    }
)


@st.composite
def shares(draw: st.DrawFn) -> Share:
    count = draw(st.integers(1, 40))
    numbers = draw(st.sets(st.integers(1, count), min_size=1, max_size=6))
    batches = {number: draw(st.integers(0, 2**70)) for number in numbers}
    return Share(count, batches, draw(st.integers(1, 2**70)), draw(st.booleans()))


@given(share=shares())
def test_every_share_is_read_back(share: Share) -> None:
    found = table_to_share(json.loads(json.dumps(share_to_table(share))))
    assert found == share
    assert found is not None and found.is_whole is (share.finished and len(share.batches) == share.count)


@given(table=st.one_of(TABLES, JSON))
def test_anything_else_is_refused_or_means_what_it_says(table: object) -> None:
    try:
        share = table_to_share(table)
    except ValueError as error:
        assert len(str(error)) < 200
    else:
        assert share_to_table(share) == table
        if share is not None:
            assert all(1 <= number <= share.count for number in share.batches)
            assert share.describe() and share.describe_missing()
