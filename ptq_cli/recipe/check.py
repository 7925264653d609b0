"""Values that have the right type and still make no sense."""

import math
from collections.abc import Callable, Mapping, Sequence

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.formats import FLOATS
from ptq_cli.core.process import parse_size
from ptq_cli.core.words import parse_duration
from ptq_cli.recipe.quantizer_settings import (
    ScaledActivations,
    ScaledWeights,
    activation_family,
    weight_family,
)
from ptq_cli.recipe.recovery_rungs import check_granularity, check_mode, check_overridden, recovery_rungs
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import (
    FLOAT_TYPES,
    LATENCY,
    PREFERENCES,
    ActivationSettings,
    AmaxSettings,
    ExportSettings,
    Limit,
    OverrideSettings,
    WeightSettings,
)

# Which values a setting may have, for settings that are judged by themselves: a line of a table for each.


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


SEARCHES = ("entropy", "mse")
"""Methods of amax that try ranges on the steps of integers."""


def check_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe if its values make sense.

    Names (of a method, a target, a metric) are looked up by the room that knows them.

    Raises:
        RecipeValueError: a number outside its range.
        UnknownNameError: there is no such rung of recovery.

    Example:
        >>> check_recipe(Recipe()).quantization.target
        'ort-cpu'
    """
    for name, value, holds, wanted in RULES:
        if not holds(recipe):
            raise RecipeValueError(
                f"'{name}' is {value(recipe)}, it must be {wanted}", hint=f"correct '{name}'"
            )
    for section, limits in (
        ("gate.max_drop", recipe.gate.max_drop),
        ("gate.max_ratio", recipe.gate.max_ratio),
        ("gate.min", recipe.gate.min),
        ("gate.max_regression", recipe.gate.max_regression),
        ("tune.budget", recipe.tune.budget),
    ):
        _check_limits(section, limits)
    for name, value in recipe.model.inputs.items():
        _check_constant(name, value)
    for name, axis in recipe.data.batch_axis.items():
        _check_batch_axis(name, axis)
    for name, shape in recipe.model.input_shape.items():
        _check_shape(name, shape)
    _check_profile(recipe.export)
    recovery_rungs(recipe.recovery)
    _check_methods(recipe.amax, recipe.weights, recipe.activations)
    check_mode(recipe.activations)
    for override in recipe.override:
        _check_override(override)
    check_granularity(recipe)
    check_overridden(recipe)
    return recipe


def _check_limits(section: str, limits: Mapping[str, Limit]) -> None:
    for metric, limit in limits.items():
        if isinstance(limit, float) and math.isnan(limit):
            raise RecipeValueError(f"'{section}.{metric}' is NaN, expected a number", hint="give a limit")


def _check_batch_axis(name: str, axis: int | str) -> None:
    if axis != "none" and (isinstance(axis, str) or axis < 0):
        raise RecipeValueError(
            f"'data.batch_axis.{name}' is {axis!r}, expected an axis from 0, or 'none'",
            hint="for example: --batch-axis state=1",
        )


def _check_shape(name: str, shape: Sequence[int]) -> None:
    if not shape or min(shape) < 1:
        raise RecipeValueError(
            f"'model.input_shape.{name}' is {shape}, expected sizes of at least 1",
            hint="for example: --input-shape x=1,3,224,224",
        )


def _check_profile(export: ExportSettings) -> None:
    if export.profile is not None and export.prefer != LATENCY:
        raise RecipeValueError(
            f"'export.profile' has no effect where 'export.prefer' is '{export.prefer}'",
            hint="--prefer latency --profile FILE, or leave the profile out",
        )


def _check_methods(amax: AmaxSettings, weights: WeightSettings, activations: ActivationSettings) -> None:
    """Refuse a method that searches steps of one size for a float type, which has steps of many."""
    weight, activation = weight_family(weights), activation_family(activations)
    for key, method, family in (
        ("amax.method", amax.method, activation),
        ("amax.weight_method", amax.weight_method, weight),
    ):
        dtype = family.dtype if isinstance(family, ScaledWeights | ScaledActivations) else None
        if method in SEARCHES and dtype in FLOATS:
            raise RecipeValueError(
                f"'{key}' is '{method}', which needs evenly spaced steps, and {dtype} has none",
                hint="choose max or percentile",
            )


def _check_constant(name: str, value: object) -> None:
    """Refuse what is neither a number nor a boolean nor lists of them that have one shape."""
    if _shape_of(value) is None:
        raise RecipeValueError(
            f"'model.inputs.{name}' is {value!r:.80}, expected a number, true, false, or lists of one length",
            hint="for example: --input sr=16000 or --input scale=[1,2]",
        )


def _shape_of(value: object) -> tuple[int, ...] | None:
    if isinstance(value, (bool, int, float)):
        return ()
    if not isinstance(value, list):
        return None
    shapes = {_shape_of(item) for item in value}
    (inner,) = shapes if len(shapes) == 1 else (None,)
    return None if inner is None else (len(value), *inner)


def _check_override(override: OverrideSettings) -> None:
    if not override.match and not override.op:
        raise RecipeValueError(
            "[[override]] has neither match nor op",
            hint="write match = '*' to match everything",
        )
    if override.percentile is not None and not 0 < override.percentile <= 100:
        raise RecipeValueError(
            f"'override.percentile' of '{override.match}' is {override.percentile}, "
            "expected a number above 0 and at most 100",
            hint="correct 'override.percentile'",
        )
    # Parameters alone belong to a quantizer that is known once the override is applied.
    if override.weights is not None and override.weights.quantizer is not None:
        weight_family(override.weights, "override.weights")
    if override.activations is not None:
        check_mode(override.activations, "override.activations")
        if override.activations.quantizer is not None:
            activation_family(override.activations, "override.activations")
    if all(value is None for key, value in vars(override).items() if key not in ("match", "op")):
        raise RecipeValueError(
            f"the override of '{override.match or override.op}' sets nothing",
            hint="give it quantize, amax, percentile, weight_amax, weights or activations",
        )
