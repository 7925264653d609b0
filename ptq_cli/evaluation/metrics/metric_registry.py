"""Every metric of ptq by its name. To add one: write its file, add its line here."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from ptq_cli.core.entry_points import METRICS, Plugin, find_plugin, plugin_names
from ptq_cli.core.errors import UnknownNameError
from ptq_cli.core.words import did_you_mean
from ptq_cli.evaluation.document.measurement import GENERATED
from ptq_cli.evaluation.metrics.auroc import Auroc
from ptq_cli.evaluation.metrics.base import LabelMetric, PairMetric
from ptq_cli.evaluation.metrics.class_accuracy import (
    ClassAccuracy,
    KlDivergence,
    MacroF1,
    Top1Agreement,
    TopK,
)
from ptq_cli.evaluation.metrics.mean_iou import MeanIou
from ptq_cli.evaluation.metrics.similarities import Cosine, Spearman
from ptq_cli.evaluation.metrics.token_metrics import EmbeddingCosine, ExactMatch, Perplexity, TokenAccuracy
from ptq_cli.evaluation.metrics.value_errors import R2, MaxAbsError, MeanError, Sqnr, WorstChannelSqnr

MakeMetric = Callable[..., LabelMetric]

# Computed on request, on each model; ``topK`` for any other number too.
LABEL_METRICS: dict[str, MakeMetric] = {
    "top1": partial(TopK, 1),
    "top5": partial(TopK, 5),
    "class_accuracy": ClassAccuracy,
    "f1": MacroF1,
    "auroc": Auroc,
    "mse": partial(MeanError, "mse", np.square),
    "mae": partial(MeanError, "mae", np.abs),
    "r2": R2,
    "mean_iou": MeanIou,
    "perplexity": Perplexity,
    "masked_top1": partial(TokenAccuracy, "masked_top1", "marked tokens"),
    "spearman": Spearman,
}

# Computed on request, between the two models: what the float model returns is the label.
REQUESTED_COMPARISONS: dict[str, MakeMetric] = {
    "next_token_agreement": partial(TokenAccuracy, "next_token_agreement", "float tokens"),
    "exact_match": ExactMatch,
    "cosine_of_embeddings": EmbeddingCosine,
}

SQNR = "sqnr_db"
# Always computed, between the two models.
PAIR_METRICS: dict[str, type[PairMetric]] = {
    SQNR: Sqnr,
    "worst_channel_sqnr_db": WorstChannelSqnr,
    "cosine": Cosine,
    "top1_agreement": Top1Agreement,
    "kl_divergence": KlDivergence,
    "max_abs_error": MaxAbsError,
}

_TOP_K = re.compile(r"top([1-9][0-9]{0,5})")


def is_label_metric(name: str) -> bool:
    """Return whether a metric of ptq that needs labels has this name."""
    return name in LABEL_METRICS or _TOP_K.fullmatch(name) is not None


def is_requested_metric(name: str) -> bool:
    """Return whether a metric of ptq or of a plug-in that is computed on request has this name."""
    return is_label_metric(name) or name in REQUESTED_COMPARISONS or plugin_metric(name) is not None


def plugin_metric(name: str) -> Plugin | None:
    """Return the plug-in with this name, or None if there is none."""
    is_own = is_label_metric(name) or name in REQUESTED_COMPARISONS or name in PAIR_METRICS
    return find_plugin(METRICS, name, [name] if is_own else ())


def is_comparison(name: str) -> bool:
    """Return whether a metric of ptq has one value, which says how near the two models are.

    Example:
        >>> is_comparison("sqnr_db"), is_comparison("exact_match"), is_comparison("perplexity")
        (True, True, False)
    """
    return name in PAIR_METRICS or name in REQUESTED_COMPARISONS or name == GENERATED


def has_floor(name: str) -> bool:
    """Return whether a comparison of the models is better when higher, so that it may have a minimum.

    Example:
        >>> has_floor("sqnr_db"), has_floor("max_abs_error"), has_floor("exact_match")
        (True, False, True)
    """
    requested = name in REQUESTED_COMPARISONS or name == GENERATED
    return requested or (name in PAIR_METRICS and PAIR_METRICS[name].higher_is_better)


def require_metric(name: str, more: Iterable[str] = ()) -> None:
    """Refuse a name that no metric has.

    ``more`` are names that the recipe defines, which a misspelled one may have meant.
    """
    if is_requested_metric(name) or name in PAIR_METRICS:
        return
    known = [*LABEL_METRICS, *REQUESTED_COMPARISONS, *PAIR_METRICS, *plugin_names(METRICS), *more]
    raise UnknownNameError(
        f"there is no metric '{name}'{did_you_mean(name, known)}",
        hint=f"known: {', '.join(known)}; or torchmetrics.classification:MulticlassF1Score, file.py:callable",
    )


def make_label_metric(name: str, arguments: dict[str, Any]) -> LabelMetric:
    """Return a new metric of ptq."""
    found = _TOP_K.fullmatch(name)
    if found:
        return TopK(int(found[1]), **arguments)
    return {**LABEL_METRICS, **REQUESTED_COMPARISONS}[name](**arguments)
