import numpy as np

from ptq_cli.amax.percentile import max_amax
from ptq_cli.collectors.max_collector import MaxCollector
from tests.each_case import each_case


def statistics_of(values, collector=None):
    collector = collector or MaxCollector()
    assert collector.update(np.asarray(values, np.float32))
    return collector.statistics()


@each_case(
    "values, amax",
    [
        ([2.0, 3.0], 3.0),
        ([-2.0, -3.0], 3.0),
        ([-4.0, 3.0], 4.0),
        ([0.0, -0.0], 0.0),
        ([2.0**-149], 2.0**-149),
    ],
    ids=str,
)
def test_examples(values, amax):
    assert max_amax(statistics_of(values)) == amax
