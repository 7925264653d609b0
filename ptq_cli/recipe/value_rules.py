"""Which values a setting may have, for settings that are judged by themselves: a line of a table for each."""

import math
from collections.abc import Callable

from ptq_cli.core.durations import parse_duration
from ptq_cli.core.work.memory import parse_size
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.quantization_sections import FLOAT_TYPES, PREFERENCES

MOST_BINS = 65536
"""Of a linear histogram; the searches take time in proportion."""

MOST_THREADS = 1024
"""ONNX Runtime starts as many as it is told to; with a million the kernel ends the process without a word."""

MOST_PREFETCH = 1024

MOST_ACCURACY_LEVEL = 4
"""Of ONNX Runtime's MatMulNBits: activations rounded to 8 bits."""

MOST_STRIDE = 1 << 20
MOST_MASKED = 0.9

MOST_SET_ASIDE = 0.9
"""Of the samples; the others are calibrated on."""

Rule = tuple[str, Callable[[Recipe], object], Callable[[Recipe], bool], str]
"""A setting, its value, whether that is valid, and what it must be, in words."""


def _at_least_one(value: int | None) -> bool:
    return value is None or value >= 1


RULES: tuple[Rule, ...] = (
    (
        "calibration.batch_size",
        lambda r: r.calibration.batch_size,
        lambda r: _at_least_one(r.calibration.batch_size),
        "at least 1",
    ),
    (
        "calibration.samples",
        lambda r: r.calibration.samples,
        lambda r: _at_least_one(r.calibration.samples),
        "at least 1",
    ),
    (
        "calibration.set_aside",
        lambda r: r.calibration.set_aside,
        lambda r: 0 <= r.calibration.set_aside <= MOST_SET_ASIDE,
        f"0 to {MOST_SET_ASIDE}",
    ),
    (
        "tune.time_budget",
        lambda r: repr(r.tune.time_budget),
        lambda r: not r.tune.time_budget or bool(parse_duration(r.tune.time_budget)),
        "a time such as 90s, 10m or 1h",
    ),
    (
        "calibration.checkpoint_every",
        lambda r: r.calibration.checkpoint_every,
        lambda r: 0 <= r.calibration.checkpoint_every < math.inf,
        "0 or more, and finite",
    ),
    (
        "evaluation.checkpoint_every",
        lambda r: r.evaluation.checkpoint_every,
        lambda r: 0 <= r.evaluation.checkpoint_every < math.inf,
        "0 or more, and finite",
    ),
    (
        "evaluation.batch_size",
        lambda r: r.evaluation.batch_size,
        lambda r: _at_least_one(r.evaluation.batch_size),
        "at least 1",
    ),
    (
        "evaluation.samples",
        lambda r: r.evaluation.samples,
        lambda r: _at_least_one(r.evaluation.samples),
        "at least 1",
    ),
    (
        "text.window",
        lambda r: r.text.window,
        lambda r: r.text.window is None or r.text.window >= 2,
        "at least 2",
    ),
    (
        "text.stride",
        lambda r: r.text.stride,
        lambda r: _at_least_one(r.text.stride) and (r.text.stride or 1) <= (r.text.window or MOST_STRIDE),
        "at least 1, and at most the window",
    ),
    (
        "text.tail",
        lambda r: repr(r.text.tail),
        lambda r: r.text.tail in ("drop", "pad"),
        "'drop' or 'pad'",
    ),
    (
        "text.pairs",
        lambda r: repr(r.text.pairs),
        lambda r: r.text.pairs in ("joined", "apart"),
        "'joined' or 'apart'",
    ),
    (
        "text.mask_share",
        lambda r: r.text.mask_share,
        lambda r: 0 <= r.text.mask_share <= MOST_MASKED,
        f"0 to {MOST_MASKED}",
    ),
    (
        "text.columns",
        lambda r: r.text.columns,
        lambda r: len(r.text.columns) <= 2 and all(r.text.columns),
        "one column, or two for pairs",
    ),
    (
        "amax.percentile",
        lambda r: r.amax.percentile,
        lambda r: 0 < r.amax.percentile <= 100,
        "above 0 and at most 100",
    ),
    (
        "amax.bins",
        lambda r: r.amax.bins,
        lambda r: 2 <= r.amax.bins <= MOST_BINS,
        f"2 to {MOST_BINS}",
    ),
    (
        "amax.start_bin",
        lambda r: r.amax.start_bin,
        lambda r: _at_least_one(r.amax.start_bin),
        "at least 1",
    ),
    (
        "amax.stride",
        lambda r: r.amax.stride,
        lambda r: r.amax.stride >= 1,
        "at least 1",
    ),
    (
        "quantization.float_type",
        lambda r: r.quantization.float_type,
        lambda r: r.quantization.float_type in FLOAT_TYPES,
        "'float32' or 'float16'",
    ),
    (
        "export.prefer",
        lambda r: r.export.prefer,
        lambda r: r.export.prefer in PREFERENCES,
        "'accuracy', 'latency' or 'size'",
    ),
    (
        "export.serve_batch",
        lambda r: r.export.serve_batch,
        lambda r: _at_least_one(r.export.serve_batch),
        "at least 1",
    ),
    (
        "runtime.threads",
        lambda r: r.runtime.threads,
        lambda r: 0 <= r.runtime.threads <= MOST_THREADS,
        f"0 to {MOST_THREADS}",
    ),
    (
        "runtime.accuracy_level",
        lambda r: r.runtime.accuracy_level,
        lambda r: r.runtime.accuracy_level is None or 0 <= r.runtime.accuracy_level <= MOST_ACCURACY_LEVEL,
        f"0 to {MOST_ACCURACY_LEVEL}",
    ),
    (
        "runtime.prefetch",
        lambda r: r.runtime.prefetch,
        lambda r: 0 <= r.runtime.prefetch <= MOST_PREFETCH,
        f"0 to {MOST_PREFETCH}",
    ),
    (
        "runtime.max_memory",
        lambda r: r.runtime.max_memory,
        lambda r: not r.runtime.max_memory or bool(parse_size(r.runtime.max_memory)),
        "a size such as 2GiB or 800MB",
    ),
)
