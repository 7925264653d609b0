"""Moments of what layers read are exact, and have the same bytes for any split of the samples."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ptq_cli.collectors.calibration_file import Provenance
from ptq_cli.core.arithmetic import QuantParameters, quantize
from ptq_cli.core.formats import BY_NAME
from ptq_cli.recovery.input_moments import InputSums
from ptq_cli.recovery.layer_geometry import Window
from ptq_cli.recovery.moments_file import Moments, moments_bytes, parse_moments
from ptq_cli.recovery.tensor_moments import InputReading, MomentSite, TensorMomentCollector, TensorMoments

SEEDS = st.integers(0, 2**32 - 1)
CUTS = st.lists(st.integers(0, 12), max_size=4)
WINDOW = Window(kernel=(3, 3), strides=(1, 2), dilations=(1, 1), begins=(1, 0), ends=(1, 1), upper=True)
PROVENANCE = Provenance(model="m", source="s", data="d", settings={}, flags={}, method="moments", samples=12)


def site(format: str, *readings: InputReading) -> MomentSite:
    zero = 3 if format.startswith("U") else 0
    parameters = QuantParameters(
        np.float32(0.02).reshape(()), np.int64(zero).reshape(()), BY_NAME[format.lower()]
    )
    return MomentSite(tensor="x", parameters=parameters, readings=readings)


def collected(place: MomentSite, parts: list[np.ndarray]) -> TensorMoments:
    found = []
    for part in parts:
        collector = TensorMomentCollector(place)
        collector.update(part)
        found.append(collector.statistics())
    merged = found[-1]
    for one in found[:-1]:
        merged = merged.merge(one)
    return merged


@settings(max_examples=60)
@given(seed=SEEDS, cuts=CUTS, each=st.integers(1, 20), format=st.sampled_from(["UINT8", "INT8", "INT16"]))
def test_any_split_of_the_samples_gives_the_same_bytes(
    seed: int, cuts: list[int], each: int, format: str
) -> None:
    x = np.random.default_rng(seed).normal(1.0, 2.0, (12, 4, 5, 6)).astype(np.float32)
    place = site(
        format,
        InputReading(groups=1, size=36, window=WINDOW, each=each),
        InputReading(groups=2, size=18, window=WINDOW, each=each),
        InputReading(groups=4, size=9, window=WINDOW, each=10**6),
        InputReading(groups=1, size=6, window=None),
    )
    ends = [0, *sorted(cuts), 12]
    apart = collected(place, [x[a:b] for a, b in itertools.pairwise(ends)])
    whole = collected(place, [x])
    content = [moments_bytes(Moments(PROVENANCE, {"x": item})) for item in (whole, apart)]
    assert content[0] == content[1]
    assert moments_bytes(parse_moments(np.frombuffer(content[0], np.uint8), "it")) == content[0]
    rows = quantize(x, place.parameters).astype(np.int64).reshape(-1, 6) - int(place.parameters.zero_point)
    assert whole.readings["1 x 6"].gram(0).tolist() == (rows.T @ rows).tolist()


@settings(max_examples=40)
@given(
    seed=SEEDS,
    groups=st.integers(1, 3),
    size=st.sampled_from([1, 3, 9]),
    largest=st.sampled_from([1, 255, 65535]),
    cuts=CUTS,
)
def test_sums_are_those_of_python_s_integers(
    seed: int, groups: int, size: int, largest: int, cuts: list[int]
) -> None:
    random = np.random.default_rng(seed)
    rows = random.integers(0, largest + 1, (12, groups * size)).astype(
        np.uint8 if largest <= 255 else np.uint16
    )
    zero = int(random.integers(0, largest + 1))
    sums = InputSums(groups=groups, size=size, zero=zero)
    for a, b in itertools.pairwise([0, *sorted(cuts), 12]):
        sums.add(rows[a:b])
    found = sums.moments()
    values = (rows.astype(object) - zero).reshape(12, groups, size)
    assert (found.rows, found.sums.tolist()) == (12, values.sum(axis=0).tolist())
    for group in range(groups):
        own = values[:, group]
        exact = [[int(sum(own[:, i] * own[:, j])) for j in range(size)] for i in range(size)]
        assert found.gram(group).tolist() == exact
