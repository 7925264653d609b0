"""What a run directory remembers of data, beside a ptq.toml that names none."""

from pathlib import Path

import numpy as np
import pytest

from ptq_cli.core.errors import EmptyDataError
from ptq_cli.latency.run_bench import BenchOptions, run_bench
from ptq_cli.pipeline.run_evaluate import run_evaluate
from ptq_cli.pipeline.run_verify import run_verify
from ptq_cli.setup.remembered_data import with_calibration_data, with_remembered_evaluation
from ptq_cli.setup.resolve import Request, resolve
from ptq_cli.setup.run_directory import RunDirectory

QUICK = {"latency": False}


@pytest.fixture
def remembering(finished: RunDirectory) -> RunDirectory:
    """A run, and a recipe that takes the place of the run's own and names no data."""
    Path("ptq.toml").write_text("[gate.min]\ncosine = 0.1\n")
    return finished


def remembered(run: RunDirectory, **settings: object) -> tuple[str, int | None, str]:
    request = Request(settings=settings)
    found, note = with_remembered_evaluation(resolve(request), run, None)
    data = found.recipe.evaluation.data
    return Path(data).name if data is not None else "", found.recipe.evaluation.samples, note


def test_an_evaluation_takes_the_data_of_the_last_one(remembering: RunDirectory) -> None:
    np.savez("other.npz", x=np.ones((5, 4), np.float32), label=np.zeros(5, np.int64))
    assert remembered(remembering) == (
        "calib.npz",
        None,
        "evaluation data: calib.npz, as ptq quantize was given them",
    )
    run_evaluate(Request(settings={**QUICK, "eval_data": "other.npz", "eval_samples": 4}), remembering)
    note = "evaluation data: other.npz, as in the last ptq evaluate"
    assert remembered(remembering) == ("other.npz", 4, note)
    assert remembered(remembering, eval_samples=3) == ("other.npz", 3, note)
    assert remembered(remembering, eval_data="calib.npz") == ("calib.npz", None, "")
    told: list[str] = []
    report = run_evaluate(
        Request(settings=QUICK), remembering, progress=lambda at: told.append(at.note)
    ).report
    assert (report.evaluation.source, report.evaluation.samples) == ("other.npz", 4)
    assert note in told
    Path("ptq.toml").write_text('[evaluation]\ndata = "calib.npz"\n')
    assert remembered(remembering) == ("calib.npz", None, ""), "a recipe says what is meant"


def test_nothing_to_remember_is_asked_for(finished: RunDirectory) -> None:
    Path("ptq.toml").write_text("[amax]\nmethod = 'max'\n")
    finished.recipe.unlink()
    with pytest.raises(EmptyDataError, match="no evaluation data was given"):
        run_evaluate(Request(settings=QUICK), finished)


def test_verify_and_bench_take_the_samples_of_the_run(remembering: RunDirectory) -> None:
    verified = run_verify(Request(settings={}), remembering)
    assert Path(verified.comparison.data).name == "calib.npz"
    benched = run_bench(Request(settings={"threads": 1}), remembering, options=BenchOptions(runs=5))
    assert Path(benched.data).name == "calib.npz"


def test_a_tuning_takes_the_samples_of_the_same_model(remembering: RunDirectory) -> None:
    def data(model: str, **settings: object) -> tuple[object, str]:
        request = Request(settings=settings, model=Path(model))
        found, note = with_calibration_data(resolve(request), remembering)
        return Path(str(found.settings.get("data"))).name, note

    note = "calibration data: calib.npz, as in the last calibration"
    assert data("model.onnx") == ("calib.npz", note)
    assert data("other.onnx") == ("None", "")
    assert data("model.onnx", data="other.npz") == ("other.npz", "")
    assert data("model.onnx", rename={"y": "x"}) == ("None", ""), "read in another way"
