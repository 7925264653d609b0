import subprocess
import sys
import types

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.runtime.machine import usable_cores
from ptq_cli.runtime.session import Session

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.full((2, 3), 2, np.float32)


@pytest.fixture
def two_outputs(build_model):
    floats = (TensorProto.FLOAT, ["n", 3])
    return build_model(
        [("Neg", ["x"], ["second"]), ("Abs", ["second"], ["first"])],
        {"x": floats},
        {"second": floats, "first": floats},
    ).SerializeToString()


def test_outputs_come_in_the_order_of_the_graph_or_as_asked(two_outputs):
    session = Session(two_outputs)
    assert session.outputs == ("second", "first")
    np.testing.assert_array_equal(session.run({"x": X}), [-X, X])
    np.testing.assert_array_equal(session.run({"x": X}, ["first", "second"]), [X, -X])
    np.testing.assert_array_equal(session.run({"x": X}, ["first"]), [X])


def test_a_bound_run_feeds_a_number_as_a_number(build_model):
    session = Session(
        build_model(
            [("Shape", ["x"], ["s"]), ("Size", ["s"], ["y"])],
            {"x": (TensorProto.FLOAT, None)},
            {"y": (TensorProto.INT64, [])},
        ).SerializeToString()
    )
    rank = np.full((), 9, np.int64)
    session.run_bound({"x": np.array(1.5, np.float32)}, session.bind_outputs([rank]))
    assert rank == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"garbage", "INVALID_PROTOBUF"), (b"", "No graph was found"), (b"\x00" * 100, "INVALID_PROTOBUF")],
    ids=["garbage", "empty", "zeros"],
)
def test_bytes_that_are_no_model_are_refused(content, said):
    with pytest.raises(RuntimeFailedError, match=said) as caught:
        Session(content)
    assert caught.value.code == "PTQ-RUNTIME-001"
    assert caught.value.message.startswith("ONNX Runtime cannot load the model: ")
    assert "\n" not in caught.value.message and caught.value.hint


def test_operator_of_another_domain_is_refused(arithmetic):
    arithmetic.graph.node[0].domain = "my.domain"
    with pytest.raises(RuntimeFailedError, match=r"my\.domain") as caught:
        Session(arithmetic.SerializeToString())
    assert "custom domain" in caught.value.hint


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"x": X}, "y"),
        ({"x": X, "y": Y, "z": Y}, "z"),
        ({"x": X, "y": Y[:, :2]}, "Got: 2 Expected: 3"),
        ({"x": X, "y": Y[0]}, "Invalid rank"),
        ({"x": X, "y": Y.astype(np.float64)}, "double"),
        ({"x": X, "y": Y[:1].repeat(3, axis=0)}, "Sub_difference"),
        ({"x": X, "y": "text"}, "."),
    ],
    ids=["missing", "unknown", "shape", "rank", "dtype", "batch sizes", "no array"],
)
def test_inputs_that_do_not_fit_are_refused(arithmetic, inputs, said):
    session = Session(arithmetic.SerializeToString())
    with pytest.raises(RuntimeFailedError, match=said) as caught:
        session.run(inputs)
    assert caught.value.message.startswith("ONNX Runtime failed on a batch: ")
    assert caught.value.hint.startswith("check that the model accepts inputs of this size; try a batch of 1")


TABLE = """<ir_version: 10, opset_import: ["": 20]> g (int64[n] ids) => (float[n] y)
    <float[3] table = {0.0, 1.0, 2.0}> { y = Gather(table, ids) }"""


def test_an_index_beyond_a_table_is_not_blamed_on_the_batch():
    session = Session(onnx.parser.parse_model(TABLE).SerializeToString())
    with pytest.raises(RuntimeFailedError, match="out of data bounds, idx=7") as caught:
        session.run({"ids": np.array([0, 7])})
    assert caught.value.hint.startswith("an index in the data is larger than the model's table")


@pytest.mark.parametrize(
    "said", ["std::bad_alloc", "Failed to allocate memory for requested buffer of size 9"]
)
def test_too_little_memory_is_not_blamed_on_the_model(arithmetic, monkeypatch, said):
    session = Session(arithmetic.SerializeToString())

    def full(*_arguments):
        raise RuntimeError(said)

    monkeypatch.setattr(session, "_session", types.SimpleNamespace(run=full))
    with pytest.raises(RuntimeFailedError) as caught:
        session.run({"x": X, "y": Y})
    assert caught.value.hint.startswith("there is not enough memory: pass smaller batches")


def test_input_that_is_no_number_is_refused(build_model):
    kind = (TensorProto.STRING, [None])
    session = Session(build_model([("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind}).SerializeToString())
    with pytest.raises(
        RuntimeFailedError, match=r"input 'x' is a tensor\(string\), expected an array of numbers"
    ):
        _ = session.inputs


@pytest.mark.parametrize(("threads", "set_to"), [(1, 1), (3, 3), (0, usable_cores())])
def test_threads_are_those_asked_for_or_one_a_core(arithmetic, threads, set_to):
    session = Session(arithmetic.SerializeToString(), threads=threads)
    assert session._session.get_session_options().intra_op_num_threads == set_to


def test_threads_do_not_spin(arithmetic):
    options = Session(arithmetic.SerializeToString())._session.get_session_options()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize(("claim", "is_said"), [("", True), ("claim_process()", False)])
def test_what_is_said_outside_of_sessions_is_silenced_in_our_own_process_alone(
    arithmetic, tmp_path, claim, is_said
):
    onnx.save(arithmetic, tmp_path / "m.onnx")
    script = f"""
import onnxruntime
from pathlib import Path
from ptq_cli.core.process import claim_process
from ptq_cli.runtime.session import Session
{claim}
Session(Path({str(tmp_path / "m.onnx")!r}))
options = onnxruntime.SessionOptions()
for value in "01":  # The second is worth a warning of the logger that is no session's.
    options.add_session_config_entry("session.intra_op.allow_spinning", value)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert ("already exists" in done.stderr) is is_said
