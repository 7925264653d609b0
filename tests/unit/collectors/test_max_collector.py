import numpy as np
import pytest

from ptq_cli.collectors.max_collector import MaxCollector, as_float32

RNG = np.random.default_rng(5)
IMAGES = RNG.normal(size=(4, 3, 5, 6)).astype(np.float32)


@pytest.mark.parametrize("order", [[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]])
def test_minus_zero_leaves_no_trace(order):
    collector = MaxCollector()
    for value in order:
        collector.update(np.array([value], np.float32))
    found = collector.statistics()
    assert not np.signbit(found.minimum) and not np.signbit(found.maximum)


def test_float32_is_not_copied():
    assert as_float32(IMAGES) is IMAGES
