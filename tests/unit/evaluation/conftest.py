"""A small analysis, the same in every test; a test replaces what it is about."""

from dataclasses import replace

import pytest

from ptq_cli.evaluation.document.analysis_document import (
    Analysis,
    AnalyzedModels,
    Cost,
    LayerAnalysis,
    Samples,
    Sensitivity,
    TensorAnalysis,
)
from ptq_cli.evaluation.document.report_document import ModelEntry
from tests.pages import METRIC, SHARES


@pytest.fixture
def analysis() -> Analysis:
    return Analysis(
        created="2026-01-31T12:00:00Z",
        versions={"ptq-cli": "0.1.0", "onnxruntime": "1.23.0"},
        models=AnalyzedModels(
            "model.pt",
            ModelEntry("model.float.onnx", "a" * 64, 4_000_000),
            ModelEntry("model_int8.onnx", "b" * 64, 1_000_000),
        ),
        target="ort-cpu",
        samples=Samples("eval.npz", 256, "d" * 64),
        metric=METRIC,
        shares=SHARES,
        order="sqnr",
        cost=Cost(4, 6.5),
        tensors=(ACTIVATION, WEIGHT, BIAS),
        layers=(CONV, ACT, FC),
    )


ACTIVATION = TensorAnalysis(
    name="relu.output",
    kind="activation",
    layers=("/fc/Gemm",),
    op="Conv",
    dtype="uint8",
    shape=(None, 16, 8, 8),
    axis=None,
    low=0.0,
    high=25.5,
    scale_min=0.1,
    scale_max=0.1,
    zero_point_min=0,
    zero_point_max=0,
    clipped=0.0001,
    range_used=0.04,
    channel_imbalance=3.5,
    sqnr_accumulated_db=18.5,
    sqnr_isolated_db=19.25,
    cause="outliers",
    finding="the middle 99.9 % of values take 4.0 % of the range",
    remedy="--method percentile",
)
WEIGHT = replace(
    ACTIVATION,
    name="fc.weight",
    kind="weight",
    op="Gemm",
    dtype="int8",
    shape=(10, 64),
    axis=0,
    low=-1.25,
    high=1.25,
    scale_min=0.001,
    scale_max=0.01,
    clipped=0.0,
    range_used=None,
    channel_imbalance=1.5,
    sqnr_accumulated_db=42.0,
    sqnr_isolated_db=42.0,
    cause="",
    finding="",
    remedy="",
)
BIAS = replace(
    WEIGHT,
    name="fc.bias",
    kind="bias",
    dtype="int32",
    shape=(10,),
    low=-2147483.0,
    high=2147483.0,
    scale_min=0.0001,
    scale_max=0.001,
    channel_imbalance=None,
    sqnr_accumulated_db=float("inf"),
    sqnr_isolated_db=float("inf"),
)
CONV = LayerAnalysis(
    name="/conv1/Conv",
    op="Conv",
    integer=True,
    reason="",
    multiply_accumulates=110_592,
    output="relu.output",
    sqnr_accumulated_db=18.5,
    sqnr_isolated_db=19.25,
    sensitivity=Sensitivity(
        metric_only_quantized=0.828,
        metric_left_float=0.829,
        drop_only_quantized=0.002,
        drop_left_float=0.001,
        sqnr_only_quantized_db=33.0,
        sqnr_left_float_db=38.5,
        rank=1,
    ),
    cause="outliers",
    finding="the middle 99.9 % of values of 'relu.output' take 4.0 % of the range",
    remedy="--method percentile",
)
ACT = LayerAnalysis(
    name="/act/HardSwish",
    op="HardSwish",
    integer=False,
    reason="no rule",
    multiply_accumulates=None,
    output="act.output",
    sqnr_accumulated_db=None,
    sqnr_isolated_db=None,
)
FC = LayerAnalysis(
    name="/fc/Gemm",
    op="Gemm",
    integer=True,
    reason="",
    multiply_accumulates=640,
    output="logits",
    sqnr_accumulated_db=31.5,
    sqnr_isolated_db=None,
    sensitivity=Sensitivity(
        metric_only_quantized=0.83,
        metric_left_float=0.826,
        drop_only_quantized=0.0,
        drop_left_float=0.004,
        sqnr_only_quantized_db=45.0,
        sqnr_left_float_db=31.75,
        rank=2,
    ),
)
