"""The recorded calibrations: which were selected, and where ours is held to its own promise."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ptq_cli.amax.entropy import entropy_amax
from ptq_cli.amax.linear_histogram import histogram_of_values, linear_view
from ptq_cli.core.formats import IntegerFormat
from tests.golden.calibrators import cases
from tests.golden.calibrators.cases import replay
from tests.golden.verdicts import DiffersError, OnPurposeError

FOLDER = Path(__file__).parent
CASES = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["cases"]


def recorded(method, values, bins, amax, bits=8):
    """A case as if it were recorded: of one batch, whose histogram ends with so many bins."""
    counts, edges = np.histogram(np.abs(values), bins, (0.0, float(np.abs(values).max())))
    case = {
        "function": "HistogramCalibrator",
        "params": {"method": method, "num_bits": bits, "unsigned": False},
        "inputs": {"batches": ["x"]},
        "outputs": {"amax": "amax", "hist": "hist"},
        "values": {"hist_trace": [[bins, bins + 1, float(edges[-1])]]},
        "tags": [],
    }
    return case, {"x": values, "hist": counts.astype(np.float32), "amax": np.float32(amax)}


def four_bins_lower(statistics, bins):
    view = linear_view(statistics, bins)
    return replace(view, positive=np.roll(view.positive, -4))


@pytest.mark.parametrize("bins", [4400, 2048])
def test_a_value_is_as_near_to_its_place_as_the_statistics_tell(bins, monkeypatch):
    # All lie at the end of a bin of the statistics, which has them spread over its width.
    values = np.append(np.full(1000, 1 + 1.99 * 2.0**-11), 1 + 2.0**-8).astype(np.float32)
    amax = entropy_amax(histogram_of_values(values, bins), 128).amax
    case, arrays = recorded("entropy", values, bins, amax)
    replay(case, arrays)
    with pytest.raises(DiffersError, match="amax is"):
        replay(case, {**arrays, "amax": arrays["amax"] * np.float32(1.1)})
    monkeypatch.setattr(cases, "linear_view", four_bins_lower)
    with pytest.raises(DiffersError, match="has a value more than"):
        replay(case, arrays)


def their_mse(values, bins, bits):
    """Every bin's values at its center, every center a candidate from bin 128 on, the first best one."""
    counts, edges = np.histogram(np.abs(values), bins, (0.0, float(np.abs(values).max())))
    centers, most = (edges[:-1] + edges[1:]) / 2, 2 ** (bits - 1) - 1
    amax = centers[128:, None]
    rounded = np.clip(np.rint(centers * most / amax), -most, most) * amax / most
    return float(centers[128 + np.argmin((counts * (rounded - centers) ** 2).sum(1))])


@pytest.mark.parametrize(("bits", "bins"), [(10, 2048), (8, 512)])
def test_mse_with_few_bins_a_level_differs_on_purpose(bits, bins):
    values = np.random.default_rng(3).standard_normal(50_000).astype(np.float32)
    case, arrays = recorded("mse", values, bins, their_mse(values, bins, bits), bits)
    assert bins < 8 * IntegerFormat(bits, signed=True, narrow_range=True).qmax
    with pytest.raises(OnPurposeError, match="few bins a level"):
        replay(case, arrays)


def test_mse_with_enough_bins_agrees_or_fails():
    values = np.random.default_rng(3).standard_normal(50_000).astype(np.float32)
    case, arrays = recorded("mse", values, 2048, their_mse(values, 2048, 4), 4)
    replay(case, arrays)
    with pytest.raises(DiffersError, match="amax is"):
        replay(case, {**arrays, "amax": arrays["amax"] * np.float32(0.9)})
