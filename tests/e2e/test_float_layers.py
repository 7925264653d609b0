"""The rung ``float``: some layers find ranges at each run or stay in float where outputs are below 20 dB."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ptq_cli
from ptq_cli.core.documents import to_json
from ptq_cli.latency.measure_profile import operators_digest, runtime_version
from ptq_cli.models.files.stored import serialize
from ptq_cli.placement.fastest_placement import MachineProfile, NodeTimes
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recover.ladder import float_layers
from ptq_cli.shown.export_lines import float_lines
from tests.e2e.test_recover import correlated
from tests.unit.plan.graphs import build

TEXT = """(float[N,16,12,12] x) => (float[] y)
<float[16,16,1,1] u, float[64,16,3,3] w, float[64,64,3,3] m, float[8,64,1,1] v> {
  [narrow] a = Conv(x, u)
  [loud] b = Conv(a, w) [r1] c = Relu(b)
  [middle] d = Conv(c, m) [r2] e = Relu(d)
  [last] y = Conv(e, v)
}"""


@pytest.fixture
def quantize(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(loud=3000.0, unused=0.0, **settings):
        # One channel of what the first layer makes is so loud that the others have a step or none.
        u = np.random.default_rng(3).standard_normal((16, 16, 1, 1)).astype(np.float32)
        w = np.random.default_rng(4).standard_normal((64, 16, 3, 3)).astype(np.float32) / 10
        u[0] *= loud
        w[:, 0] /= 30 * loud
        w[-1] = 0
        m = np.random.default_rng(5).standard_normal((64, 64, 3, 3)).astype(np.float32) / 10
        m[0, -1] = unused
        (tmp_path / "model.onnx").write_bytes(
            serialize(build(TEXT, constants={"u": u, "w": w, "m": m})).content
        )
        np.savez(tmp_path / "calib.npz", x=correlated((16, 12, 12), 32))
        return ptq_cli.quantize("model.onnx", data="calib.npz", threads=1, **settings).export

    return call


def test_the_layer_that_integers_ruin_stays_in_float(quantize):
    result = quantize(recover=["float"])
    found = result.float_layers
    assert found.before < 20 <= found.after
    assert found.decided_by == 32  # Nothing is learned from samples, so that all of them judge.
    # Between two floats nothing is quantized; one layer alone would still be read or made as integers.
    assert found.layers == ("narrow", "loud")
    assert 0 < found.slower <= 0.5
    layers = {layer.name: layer for layer in result.layers}
    assert not layers["narrow"].integer
    assert layers[found.layers[0]].reason.startswith("computes in float: its integers cost")
    assert layers["middle"].integer
    stored = {item.key: item.value for item in onnx.load(result.output).metadata_props}[
        MetadataKey.FLOAT_LAYERS
    ]
    assert json.loads(stored)["layers"] == list(found.layers)
    first = result.output.read_bytes()
    assert quantize(recover=["float"]).output.read_bytes() == first


def test_no_layer_is_looked_at_where_the_outputs_are_good(quantize):
    result = quantize(loud=1.0, recover=["float"])
    assert result.accuracy.sqnr_db >= 20
    assert result.float_layers is None


def test_a_profile_tells_what_layers_in_float_cost(quantize, tmp_path):
    assert quantize(recover=["float"]).float_layers.layers != ()
    model = ir.load("ptq-run/model.float.onnx")
    nodes = {node.name: NodeTimes(10.0, 10.0) for node in model.graph}
    # A machine that is as fast in float, and where integers become floats for nothing.
    profile = MachineProfile(
        model=operators_digest(model),
        target="ort-cpu",
        runtime=runtime_version(),
        machine="",
        batch=1,
        threads=1,
        floating=10.0 * len(nodes),
        integer=10.0 * len(nodes),
        spread=1.0,
        seam_fixed=0.0,
        seam_element=0.0,
        nodes=nodes,
        elements={},
    )
    (tmp_path / "same.json").write_text(to_json(profile))
    words = {"prefer": "latency", "profile": "same.json"}
    assert ptq_cli.export(**words).float_layers.layers == ("narrow", "loud")


def test_weights_in_float_have_no_scale(quantize):
    # Nothing reaches the large weight, but a scale for all of its layer's weights would leave no other.
    assert quantize(loud=1.0, unused=1e4, recover=["float"]).accuracy.sqnr_db >= 20


GATED = """(float[N,16,64] x) => (float[] y)
<float[64,128] g, float[64,128] u, float[128,64] d, float[64] ones, float[64,32] h> {
  [gate] a = MatMul(x, g) [sigmoid] b = Sigmoid(a) [silu] c = Mul(a, b)
  [up] e = MatMul(x, u) [product] f = Mul(c, e)
  [down] k = MatMul(f, d) [residual] m = Add(x, k)
  [norm] n = LayerNormalization(m, ones) [head] y = MatMul(n, h)
}"""


@pytest.fixture
def quantize_gated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(3)
    shapes = {"g": (64, 128), "u": (64, 128), "d": (128, 64), "h": (64, 32)}
    constants = {name: random.standard_normal(shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    constants |= {"d": constants["d"] / 2, "ones": np.ones(64, np.float32)}
    x = random.standard_normal((32, 16, 64)).astype(np.float32)
    x[:, 0] *= 15  # The product of the gate makes the first position 200 times as large as the others.
    (tmp_path / "model.onnx").write_bytes(serialize(build(GATED, constants=constants)).content)
    np.savez(tmp_path / "calib.npz", x=x)
    return lambda **settings: ptq_cli.quantize("model.onnx", data="calib.npz", threads=1, **settings).export


def test_what_no_static_range_mends_is_found_at_each_run(quantize_gated, tmp_path):
    result = quantize_gated(recover=["float"])
    found = result.float_layers
    assert found.before < 15 < 22 <= found.after
    assert (found.layers, found.dynamic) == ((), ("down",))
    assert 0 < found.slower <= 0.2
    kernels = [node.op_type for node in onnx.load(result.output).graph.node]
    assert kernels.count("MatMulInteger") == 1
    (line,) = float_lines(found)
    assert line.startswith("set ranges at each run for 1 layer (down), for about ")
    stored = {item.key: item.value for item in onnx.load(result.output).metadata_props}[
        MetadataKey.FLOAT_LAYERS
    ]
    assert json.loads(stored)["dynamic"] == ["down"]
    assert ptq_cli.verify(threads=1).verdict == "pass"


def test_of_a_large_model_the_tensor_is_measured_whose_rows_lose_most(quantize_gated, monkeypatch):
    monkeypatch.setattr("ptq_cli.recover.ladder.float_layers.RANK_WORK", 0.0)
    monkeypatch.setattr("ptq_cli.recover.ladder.float_layers.LOUD", 1)
    assert quantize_gated(recover=["float"]).float_layers.dynamic == ("down",)


def test_weights_that_lose_much_are_left_to_their_rungs(quantize_gated, monkeypatch):
    assert quantize_gated(recover=["float"], weight_bits=4).float_layers.dynamic == ()
    monkeypatch.setattr("ptq_cli.recover.ladder.float_layers.WEIGHTS_MATTER_DB", 0.0)
    assert quantize_gated(recover=["float"]).float_layers.dynamic == ()


def test_all_leaves_out_a_search_of_minutes_where_weights_lose_little(quantize_gated, monkeypatch):
    monkeypatch.setattr("ptq_cli.recover.rung_work.LONG_SEARCH", 1.0)
    assert quantize_gated(recover=["all"]).recovery is None
    assert [item.rung for item in quantize_gated(recover=["all", "round"]).recovery.effects] == ["round"]


def test_no_layer_is_ranked_where_the_model_has_the_goal(quantize, monkeypatch):
    monkeypatch.setattr(float_layers._Search, "choose", None)
    result = quantize(loud=1.0, recover=["ranges", "float"])
    assert result.float_layers is None
    assert result.accuracy.sqnr_db >= 30.0


def test_weights_of_few_bits_that_cost_most_get_8(quantize):
    plain = quantize(loud=1.0, recover=["none"], weight_bits=4)
    result = quantize(loud=1.0, recover=["float"], weight_bits=4, goal_db=20.0)
    found = result.float_layers
    assert found.before < 20.0 <= result.accuracy.sqnr_db
    assert (found.more_bits, found.layers) == (("loud", "middle", "last"), ())
    assert any(line.startswith("gave 8 bits to ") for line in float_lines(found))
    types = {
        tensor.data_type
        for tensor in onnx.load(result.output).graph.initializer
        if tensor.name.endswith(".quantized")
    }
    assert types == {onnx.TensorProto.INT8, onnx.TensorProto.INT4}
    assert plain.bytes < result.bytes < 0.4 * result.float_bytes


def test_bits_of_an_override_stay(quantize):
    own = [{"match": "*", "weights": {"bits": 4}}]
    result = quantize(loud=1.0, recover=["float"], goal_db=22.0, override=own)
    assert result.float_layers.more_bits == (), "none got any"
    assert all(
        tensor.data_type != onnx.TensorProto.INT8
        for tensor in onnx.load(result.output).graph.initializer
        if tensor.name.endswith(".quantized") and len(tensor.dims) == 4
    )


def test_the_default_chooses_weights_of_few_bits_again_before_it_gives_them_more(quantize):
    found = quantize(loud=1.0, weight_bits=4, goal_db=16.0)
    assert [effect.rung for effect in found.recovery.effects] == ["round"]
    assert found.float_layers is None
    assert found.accuracy.sqnr_db >= 16.0
    more = quantize(loud=1.0, weight_bits=4, goal_db=30.0)
    assert more.float_layers.more_bits
    assert more.accuracy.sqnr_db >= 30.0
    assert not more.overridden, "nobody asked for it"
    left = quantize(loud=1.0, weight_bits=4, goal_db=30.0, recover=["none"])
    assert (left.recovery, left.float_layers, left.accuracy) == (None, None, None)
    assert left.bytes <= found.bytes < more.bytes < 0.4 * left.float_bytes
