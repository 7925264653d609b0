import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from ptq_cli.core.errors import (
    MissingStatisticError,
    QuantizerShapeError,
    QuantizerValueError,
    UnknownNameError,
    UnsupportedFormatError,
)
from ptq_cli.quantizers.scaled.descriptor import QuantDescriptor
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize, quantize
from ptq_cli.quantizers.scaled.tensor_quantizer import TensorQuantizer
from ptq_cli.recipe.sections import AmaxSettings
from tests.each_case import each_case
from tests.unit.quantizers.seeded import seeded


def quantizer(**fields) -> TensorQuantizer:
    return TensorQuantizer(QuantDescriptor(**fields))


class TestQuantizing:
    def test_without_amax_each_tensor_has_its_own(self):
        x = seeded(3, 8)
        found = quantizer(narrow_range=True)
        assert torch.equal(found(x), fake_quantize(x, x.abs().max()))
        assert torch.equal(found(9 * x), fake_quantize(9 * x, (9 * x).abs().max()))

    @each_case("axis", [0, 1, -1, (1,)])
    def test_along_an_axis(self, axis):
        x = seeded(3, 5)
        index = axis[0] if isinstance(axis, tuple) else axis
        amax = x.abs().amax(dim=1 - index % 2)
        expected = fake_quantize(x, amax, axis=index, narrow_range=False)
        assert torch.equal(quantizer(axis=axis)(x), expected)
        assert torch.equal(quantizer(axis=axis, amax=amax.tolist())(x), expected)

    def test_integers_and_their_scale(self):
        x = seeded(4, 4)
        integers, scale = quantizer(amax=1.0, fake_quant=False, num_bits=4)(x)
        expected, expected_scale = quantize(x, 1.0, bits=4, narrow_range=False)
        assert torch.equal(integers, expected)
        assert torch.equal(scale, expected_scale)

    def test_disabled_it_lets_pass(self):
        found, x = quantizer(amax=1.0), seeded(3)
        found.state = "disabled"
        assert found(x) is x

    @each_case(
        "fields, shape",
        [
            ({"axis": 0, "amax": [1.0, 2.0]}, (3, 2)),
            ({"axis": 0, "amax": [[1.0], [2.0]]}, (2,)),
            ({"amax": [1.0, 2.0]}, (2,)),
            ({"axis": 2, "amax": [1.0, 2.0]}, (2, 2)),
        ],
        ids=str,
    )
    def test_amax_that_does_not_fit(self, fields, shape):
        with pytest.raises(QuantizerShapeError, match="does not fit a tensor of shape"):
            quantizer(**fields)(torch.ones(shape))

    @pytest.mark.parametrize("bits", [0, 1, 17])
    def test_bits_out_of_range(self, bits):
        with pytest.raises(QuantizerValueError, match=f"{bits} bits is outside 2 to 16"):
            quantizer(num_bits=bits)

    def test_negative_amax(self):
        with pytest.raises(QuantizerValueError, match="amax must be finite and not negative"):
            quantizer(amax=-1.0)

    @pytest.mark.parametrize("fields", [{"fake_quant": False}, {"learn_amax": True}], ids=str)
    def test_what_e4m3_has_not(self, fields):
        with pytest.raises(UnsupportedFormatError, match="neither integers nor an amax that learns"):
            quantizer(num_bits=(4, 3), **fields)

    def test_state_that_is_none(self):
        with pytest.raises(UnknownNameError, match="unknown state 'calibrate'"):
            quantizer().state = "calibrate"

    def test_it_says_what_it_is(self):
        text = repr(quantizer(num_bits=4, axis=0, amax=[1.0, 2.5]))
        assert "4bit fake axis=0" in text
        assert "amax=1…2.5, quantizing" in text
        assert "amax=dynamic" in repr(quantizer())


class TestCalibrating:
    @each_case("method", ["max", "percentile", "entropy", "mse"])
    def test_one_calibration_serves_every_method(self, method):
        found = quantizer(calib_method="histogram")
        found.state = "calibrating"
        x = seeded(2, 5000)
        assert found(x[0]) is not None
        found(x[1])
        found.decide_amax(AmaxSettings(method=method, percentile=99.0))
        assert found.state == "quantizing"
        assert 0.5 < float(found.amax) <= float(x.abs().max())
        assert (float(found.amax) == float(x.abs().max())) == (method == "max")

    @each_case("axis", [0, 1, -1, (0, 2), (2, 0)])
    @each_case("collector", ["max", "histogram"])
    def test_along_axes(self, axis, collector):
        found = quantizer(axis=axis, calib_method=collector)
        found.state = "calibrating"
        x = seeded(6, 2, 3, 4)
        for batch in x:
            found(batch)
        found.decide_amax(AmaxSettings(method="max"))
        kept = {item % 3 for item in (axis if isinstance(axis, tuple) else (axis,))}
        reduced = [0, *(index + 1 for index in range(3) if index not in kept)]
        expected = x.abs().amax(dim=reduced, keepdim=True)[0]
        assert torch.equal(found.amax, expected)
        assert found(x[0]).shape == x[0].shape

    def test_unsigned_levels_decide_an_unsigned_amax(self):
        x = seeded(20000).abs()
        found = [
            quantizer(calib_method="histogram", num_bits=4, unsigned=unsigned) for unsigned in (True, False)
        ]
        for item in found:
            item.state = "calibrating"
            item(x)
            item.decide_amax(AmaxSettings(method="mse"))
        assert float(found[0].amax) > float(found[1].amax)

    def test_methods_that_need_a_histogram(self):
        found = quantizer()
        found.state = "calibrating"
        found(seeded(3))
        with pytest.raises(MissingStatisticError):
            found.decide_amax(AmaxSettings(method="entropy"))

    def test_nothing_was_calibrated(self):
        with pytest.raises(QuantizerValueError, match="the quantizer was not calibrated"):
            quantizer().decide_amax()
        found = quantizer()
        found.state = "calibrating"
        with pytest.raises(QuantizerValueError, match="no tensor was calibrated yet"):
            found.decide_amax()

    def test_unknown_collector(self):
        with pytest.raises(UnknownNameError, match="unknown method 'nonsense'"):
            quantizer(calib_method="nonsense").state = "calibrating"

    @pytest.mark.parametrize("odd", [float("nan"), float("inf")])
    def test_what_is_not_finite(self, odd):
        found = quantizer()
        found.state = "calibrating"
        with pytest.raises(QuantizerValueError, match="NaN and infinite values have no range"):
            found(torch.tensor([1.0, odd]))

    def test_other_channels_than_before(self):
        found = quantizer(axis=0)
        found.state = "calibrating"
        found(seeded(3, 2))
        with pytest.raises(QuantizerShapeError, match=r"had the shape \(3, 1\) and now have \(4, 1\)"):
            found(seeded(4, 2))


class TestLearning:
    def test_amax_is_a_parameter_that_finds_its_value(self):
        found = quantizer(num_bits=3, narrow_range=True, learn_amax=True, amax=4.0)
        x = seeded(4000)
        optimizer = torch.optim.Adam(found.parameters(), lr=0.05)
        errors = []
        for _ in range(150):
            optimizer.zero_grad()
            error = (found(x) - x).square().mean()
            error.backward()
            optimizer.step()
            errors.append(float(error.detach()))
        best = min(
            float((fake_quantize(x, amax, bits=3) - x).square().mean()) for amax in np.linspace(0.5, 4, 141)
        )
        assert errors[-1] < 1.1 * best < 0.5 * errors[0]


ROUND_TRIPS = [
    {},
    {"amax": 1.5, "num_bits": 4},
    {"axis": 0, "amax": [1.0, 2.0, 3.0], "narrow_range": True},
    {"learn_amax": True, "amax": 2.0},
    {"num_bits": (4, 3), "amax": 3.0},
]


class TestKeeping:
    @each_case("fields", ROUND_TRIPS, ids=str)
    @each_case("other", [{}, {"axis": 0, "amax": [9.0, 9.0]}, {"learn_amax": True, "amax": 9.0}], ids=str)
    def test_state_dict_makes_any_quantizer_the_same(self, fields, other):
        found, into, x = quantizer(**fields), quantizer(**other), seeded(3, 4)
        buffer = io.BytesIO()
        torch.save(found.state_dict(), buffer)
        buffer.seek(0)
        into.load_state_dict(torch.load(buffer, weights_only=True))
        assert into.descriptor == found.descriptor
        assert torch.equal(into(x), found(x))
        assert [type(item) for item in into.parameters()] == [type(item) for item in found.parameters()]

    def test_state_dict_without_a_descriptor(self):
        found = quantizer(num_bits=4, axis=0)
        found.load_state_dict({"amax": torch.tensor([[1.0], [2.0]])})
        assert found.descriptor == QuantDescriptor(num_bits=4, axis=0)
        assert found.amax.tolist() == [[1.0], [2.0]]

    def test_in_a_model_strictly(self):
        model = nn.Sequential(nn.Linear(4, 4), quantizer(amax=1.0))
        other = nn.Sequential(nn.Linear(4, 4), quantizer())
        other.load_state_dict(model.state_dict())
        x = seeded(2, 4)
        assert torch.equal(other(x), model(x))
        with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "1.amax"'):
            model.load_state_dict(nn.Sequential(nn.Linear(4, 4)).state_dict())

    def test_damaged_descriptor(self):
        state = {**quantizer().state_dict(), "_extra_state": torch.zeros(3, dtype=torch.uint8)}
        with pytest.raises(QuantizerValueError, match="the descriptor in the state dict cannot be read"):
            quantizer().load_state_dict(state)

    @each_case("fields", ROUND_TRIPS, ids=str)
    def test_copies_and_pickles_even_while_calibrating(self, fields):
        found, x = quantizer(calib_method="histogram", **fields), seeded(3, 4)
        found.state = "calibrating"
        found(x)
        for other in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
            assert other.state == "calibrating"
            assert torch.equal(other.decide_amax().amax, copy.deepcopy(found).decide_amax().amax)
            assert torch.equal(other(x), copy.deepcopy(found).decide_amax()(x))

    @pytest.mark.parametrize("learn", [False, True])
    def test_a_half_model_keeps_its_amax(self, learn):
        found = quantizer(amax=1e-8, learn_amax=learn)
        model = nn.Sequential(nn.Linear(2, 2), found).half()
        assert model[0].weight.dtype is torch.float16
        assert (found.amax.dtype, found.amax.item()) == (torch.float32, pytest.approx(1e-8))

    def test_it_moves_to_a_device(self):
        found = quantizer(amax=1.0).to("meta")
        assert found.amax.device.type == "meta"
