"""Which weights get more bits, by the noise that each alone makes and the bytes that more bits add."""

import math

from ptq_cli.recover.ladder.more_bits import chosen_bits

WEIGHTS = {
    name: ({name: 8}, added, added) for name, added in {"a": 4.0, "b": 4.0, "c": 8.0, "d": 24.0}.items()
}


def test_the_most_noise_for_the_bytes_comes_first_within_a_quarter_of_them():
    noise = {"a": 0.1, "b": 0.2, "c": 0.5, "d": 0.9}
    assert chosen_bits(WEIGHTS, noise, 1.0) == {"c": 8}  # 10 of 40 bytes: neither a nor b has room beside it.
    assert chosen_bits(WEIGHTS, {**noise, "c": 0.1}, 1.0) == {"b": 8, "a": 8}


def test_no_more_than_the_share_of_noise_that_has_to_go():
    noise = {"a": 0.5, "b": 0.25, "c": 0.25}
    assert chosen_bits(WEIGHTS, noise, 0.5) == {"a": 8}
    assert chosen_bits(WEIGHTS, noise, 0.6) == {"a": 8, "b": 8}
    assert chosen_bits(WEIGHTS, noise, -1.0) == chosen_bits(WEIGHTS, {}, 1.0) == {}


def test_equal_noise_goes_by_name_and_a_silent_weight_or_one_of_nan_gets_nothing():
    assert chosen_bits(WEIGHTS, {"b": 0.5, "a": 0.5}, 0.1) == {"a": 8}
    assert chosen_bits(WEIGHTS, {"a": 0.0, "b": 0.5}, 1.0) == {"b": 8}
    assert chosen_bits(WEIGHTS, {"a": math.inf, "b": 0.5}, 1.0) == {"a": 8}
