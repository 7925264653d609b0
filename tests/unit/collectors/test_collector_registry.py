import pytest

from ptq_cli.collectors.collector_registry import COLLECTORS, make_collector
from ptq_cli.core.errors import UnknownNameError


@pytest.mark.parametrize("method", COLLECTORS)
def test_each_method_makes_a_new_collector(method):
    assert make_collector(method) is not make_collector(method)


def test_unknown_method_names_the_nearest_and_all():
    with pytest.raises(UnknownNameError) as caught:
        make_collector("histgram")
    assert caught.value.message == "unknown method 'histgram' (did you mean 'histogram'?)"
    assert caught.value.hint == "known: histogram, max"
