"""docs/metrics.md describes every metric."""

from pathlib import Path

from ptq_cli.evaluation.metrics.metric_registry import LABEL_METRICS, PAIR_METRICS, REQUESTED_COMPARISONS

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_metric_is_described() -> None:
    for name in (*LABEL_METRICS, *REQUESTED_COMPARISONS, *PAIR_METRICS):
        assert f"`{name}`" in PAGE, name
