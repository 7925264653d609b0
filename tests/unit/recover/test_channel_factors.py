"""Ranges of channels, piece by piece."""

import numpy as np

from ptq_cli.recover.channel_factors import ChannelRange


def test_a_range_grows_with_each_piece_and_holds_zero() -> None:
    found = ChannelRange(axis=1, low=np.zeros(2), high=np.zeros(2))
    found.update(np.array([[[1.0, 3.0], [2.0, 5.0]]]))
    found.update(np.array([[[-4.0, 2.0], [7.0, 1.0]]]))
    found.update(np.zeros((0, 2, 2)))
    assert (found.low.tolist(), found.high.tolist()) == ([-4.0, 0.0], [3.0, 7.0])
