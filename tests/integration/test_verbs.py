"""The verbs on a model of one layer: what they return, and what they write."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ptq_cli
from ptq_cli.core.errors import UsageError
from ptq_cli.pipeline import run_export as export_module
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_evaluate import run_evaluate
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.pipeline.run_inspect import run_inspect
from ptq_cli.pipeline.run_quantize import run_quantize
from ptq_cli.recipe.assignments import Once
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory

RequestWith = Callable[..., Request]


def test_kernels_are_not_asked_for_in_passing_where_the_graph_is_long(finished, monkeypatch):
    monkeypatch.setattr(export_module, "COUNTED_NODES", 1)
    assert run_export(Request(settings={}), finished).kernels is None


def test_kernels_are_those_of_a_target_that_runs_here(folder, run, request_with):
    run_calibrate(request_with(target="tensorrt"), run)
    assert run_export(request_with(target="tensorrt"), run).kernels is None


def test_metrics_that_are_limited_are_computed(finished: RunDirectory) -> None:
    report = run_evaluate(Request(settings={"metric": ["top1"], "max_drop": {"top5": 0.9}}), finished).report
    assert [metric.name for metric in report.metrics][:2] == ["top1", "top5"]
    assert report.verdict == "pass"


def test_without_labels_the_comparisons_are_left(finished: RunDirectory, folder: Path) -> None:
    np.savez(folder / "bare.npz", x=np.ones((3, 4), np.float32))
    report = run_evaluate(Request(settings={"eval_data": "bare.npz"}), finished).report
    assert "top1" not in [metric.name for metric in report.metrics]


@pytest.mark.parametrize(
    ("settings", "evaluate", "evaluated"),
    [({"min": {"cosine": 0.1}}, None, True), ({"min": {"cosine": 0.1}}, False, False), ({}, True, True)],
)
def test_quantize_evaluates_when_asked_or_limited(run, request_with, settings, evaluate, evaluated):
    result = run_quantize(request_with(**settings), run, once=Once(evaluate=evaluate))
    assert (result.evaluation is not None) is evaluated
    assert run.report_json.exists() is evaluated


def test_inspect_of_onnx_needs_no_data_that_fit(folder: Path) -> None:
    Path("ptq.toml").write_text('[calibration]\ndata = "of-another-model.npz"\n')
    assert run_inspect(Request(settings={}, model=Path("model.onnx"))).parity is None


def test_the_package_has_no_other_attribute() -> None:
    with pytest.raises(AttributeError, match=r"^No ptq_cli attribute quantise$"):
        ptq_cli.quantise  # type: ignore[attr-defined] # noqa: B018


def test_data_and_samples_are_those_of_the_evaluation_where_there_are_no_others(folder, finished):
    np.savez(folder / "more.npz", x=np.ones((6, 4), np.float32))
    for settings in ({"data": "more.npz", "samples": 3}, {"eval_data": "more.npz", "eval_samples": 3}):
        assert ptq_cli.evaluate(run=finished.path, **settings).report.evaluation.samples == 3
        samples = ptq_cli.analyze(run=finished.path, **settings).analysis.samples
        assert (samples.count, Path(samples.source).name) == (3, "more.npz")


@pytest.mark.parametrize("verb", [ptq_cli.evaluate, ptq_cli.analyze])
def test_samples_by_both_names_are_refused(finished: RunDirectory, verb: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match="'samples' and 'eval_samples' are both given"):
        verb(run=finished.path, samples=3, eval_samples=3)
