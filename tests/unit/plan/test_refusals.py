"""Angles, as positions that Sin and Cos are taken of, and outer products stay float."""

import numpy as np

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.each_case import each_case
from tests.quantized import quantize_model
from tests.unit.plan.graphs import build, parameters, run, sqnr_db

ROTARY = """(float[N,6,4] x, float[N,1,6] p, float[N,4,1] f) => (float[N,6,3] y)
<float[4,4] w, float[4,3] v, float[1] k> {
    q = MatMul(x, w)
    a = MatMul(f, p)
    t = Transpose<perm=[0,2,1]>(a)
    s = Mul(t, k)
    c = Cos(s)
    d = Sin(s)
    e = Mul(q, c)
    g = Mul(q, d)
    h = Add(e, g)
    y = MatMul(h, v) }"""


FOURIER = """(float[N,5,2] x) => (float[N,5,3] y) <float[2,8] g, float[16,3] v, float b> {
    a = MatMul(x, g)
    t = Add(a, b)
    c = Cos(t)
    d = Sin(t)
    e = Concat<axis=2>(c, d)
    y = MatMul(e, v) }"""


ACTIVATION = """(float[N,5,2] x) => (float[N,5,3] y) <float[2,8] g, float[8,3] v> {
    a = MatMul(x, g)
    d = Sin(a)
    y = MatMul(d, v) }"""


OUTER = """(float[N,4,1] x, float[N,1,5] z) => (float[N,4,3] y) <float[5,3] v> {
    a = MatMul(x, z)
    y = MatMul(a, v) }"""


ANGLE = "its result is an angle that Sin and Cos read: an error of one step could be a full turn"


REASONS = {
    "rotary": (ROTARY, ANGLE),
    "fourier": (FOURIER, ANGLE),
    "activation": (ACTIVATION, ""),
    "outer": (OUTER, "multiplies without summing: in integers it would lose accuracy and not be faster"),
}


@each_case("name", ["ort-cpu", "tensorrt", "generic"])
@each_case("case", REASONS)
def test_the_product_stays_float_and_what_reads_it_is_integer(case, name):
    graph, reason = REASONS[case]
    layers = {layer.name: layer for layer in make_plan(build(graph), load_target(name)).layers}
    assert layers["a"].reason == reason
    assert layers["a"].quantized == (not reason)
    assert layers["y"].quantized


def test_positions_beyond_the_steps_of_8_bits_keep_their_angles():
    model = build(ROTARY, constants={"k": np.ones(1, np.float32)})
    random = np.random.default_rng(0)
    frequencies = (1 / 10000 ** np.arange(0, 1, 0.25, np.float32)).reshape(1, 4, 1)

    def inputs() -> dict[str, np.ndarray]:
        starts = random.integers(0, 2000, (64, 1, 1))
        return {
            "x": random.standard_normal((64, 6, 4)).astype(np.float32),
            "p": (starts + np.arange(6)).astype(np.float32),
            "f": np.repeat(frequencies, 64, axis=0),
        }

    plan = make_plan(model, load_target("ort-cpu"))
    integers = quantize_model(model, plan, parameters(model, plan, [inputs()]))
    test = inputs()
    assert sqnr_db(run(model, test)[0], run(integers, test)[0]) > 30
