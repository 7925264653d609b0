"""How a verification reads: what matters is listed, what repeats is joined, doubt is said."""

import math

import pytest

from ptq_cli.evaluation.verification import OutputComparison, OutputDifference, Verification
from ptq_cli.qdq.proof.operators import OperatorProof
from ptq_cli.qdq.proof.target_faults import Fault
from ptq_cli.shown.verification_tables import MOST_FAULTS, MOST_ROWS, print_verification


def integer(name: str, work: int | None = 10) -> OperatorProof:
    return OperatorProof(
        name=name,
        op="Conv",
        placement="integer",
        kernel="QLinearConv",
        multiply_accumulates=work,
        reason="",
        quantized=True,
    )


def floating(name, reason, op="Gemm", work=10, *, touched=True):
    return OperatorProof(
        name=name,
        op=op,
        placement="float",
        kernel=op,
        multiply_accumulates=work,
        reason=reason,
        quantized=touched,
    )


def verification(*operators: OperatorProof, **changes: object) -> Verification:
    values: dict[str, object] = {
        "model": "m.onnx",
        "made_by": "somebody 1",
        "target": "ort-cpu",
        "opset": 20,
        "runtime": "onnxruntime 1",
        "operators": operators,
        "unknown": {},
        "assumed": {},
        "faults": (),
        "comparison": None,
        "min_integer_share": None,
    }
    return Verification(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "160")

    def call(result: Verification, *, show_all: bool = False) -> list[str]:
        print_verification(result, show_all=show_all)
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return call


def test_floats_with_the_same_reason_are_one_line(printed):
    operators = [floating(f"fc{index}", f"its input 'x{index}' is float") for index in range(3)]
    lines = printed(verification(*operators))
    assert "fc0 and 2 more Gemm float 30 its input 'x0' is float" in lines
    assert "integers: 0 % of 30 multiply-accumulates" in lines


def test_floats_between_floats_are_listed_only_on_demand(printed):
    relu = floating("r", "target ort-cpu has no rule for Sin", "Sin", 0, touched=False)
    assert not any(line.startswith("r Sin") for line in printed(verification(integer("c"), relu)))
    assert any(line.startswith("r Sin") for line in printed(verification(integer("c"), relu), show_all=True))


def test_many_reasons_are_cut_and_counted(printed):
    operators = [floating(f"f{index}", f"reason {index}") for index in range(MOST_ROWS + 5)]
    assert "and 5 more; --all lists every operator" in printed(verification(*operators))


def test_an_operator_that_is_not_counted_is_named_and_misses_a_share(printed):
    loop = floating("body", "holds a graph", "Loop", None)
    result = verification(
        integer("c"), loop, unknown={"body": "how often it runs is not known"}, min_integer_share=0.5
    )
    lines = printed(result)
    assert "warning: 'body' is not counted: how often it runs is not known" in lines
    assert "the share is not proven: some float operators are not counted" in lines
    assert (result.share_passes, result.verdict, lines[-1]) == (False, "fail", "FAIL")


def test_faults_are_listed_by_rule_and_cut(printed):
    faults = [Fault("formats", f"'q{index}' gives int8") for index in range(MOST_FAULTS + 2)]
    lines = printed(verification(integer("c"), faults=(*faults, Fault("ties", "two scales"))))
    assert "formats and 2 more; --json has all of them" in lines
    assert "ties two scales" in lines
    assert f"structure: {MOST_FAULTS + 3} faults for ort-cpu" in lines


@pytest.mark.parametrize(("decibels", "warned"), [(45.0, False), (12.0, True)])
def test_outputs_that_differ_by_more_than_rounding_are_a_warning(printed, decibels, warned):
    difference = OutputDifference(output="y", absolute=0.5, step=0.25, on_grid=True, sqnr_db=decibels)
    lines = printed(verification(integer("c"), comparison=OutputComparison("d.npz", 8, (difference,))))
    assert f"y: at most 2 steps of its grid (0.5), SQNR {decibels:.2f} dB" in lines
    assert any(line.startswith("warning: 'y' differs") for line in lines) == warned


def test_outputs_that_are_the_same_say_so(printed):
    same = OutputDifference(output="y", absolute=0.0, step=1.0, on_grid=False, sqnr_db=math.inf)
    assert "y: identical" in printed(
        verification(integer("c"), comparison=OutputComparison("d.npz", 8, (same,)))
    )


def test_without_data_it_is_said_that_nothing_was_compared(printed):
    lines = printed(verification(integer("c"), assumed={"x[0]": 1}))
    assert "outputs: not compared, because there are no data; pass --data or --random-inputs" in lines
    assert "note: counted for x[0] = 1; pass --data to count the real sizes" in lines


def test_a_model_without_sums_of_products_has_a_whole_share():
    assert verification(floating("s", "no rule", "Sin", 0)).integer_share == 1.0


def test_many_operators_that_are_not_counted_are_cut(printed):
    loops = [floating(f"body{index}", "holds a graph", "Loop", None) for index in range(7)]
    lines = printed(verification(*loops, unknown={loop.name: "how often is not known" for loop in loops}))
    assert sum("' is not counted: " in line for line in lines) == 5
    assert "warning: 2 more are not counted; --json has all of them" in lines
