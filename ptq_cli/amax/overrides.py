"""Which amax settings hold for which tensor: the recipe's, changed by the overrides that match its names."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from ptq_cli.amax.decide import AUTO
from ptq_cli.amax.registry import METHODS
from ptq_cli.core.errors import RecipeValueError, did_you_mean, require_known
from ptq_cli.recipe.schema import AmaxSettings, OverrideSettings

WILDCARDS = "*?["

Names = Collection[str]
"""Of one tensor: its own, those of tensors that share its parameters, and the layer's that it belongs to."""


def check_overrides(overrides: Iterable[OverrideSettings]) -> None:
    """Raise if an override names no method.

    Raises:
        UnknownNameError: there is none of that name.

    Example:
        >>> check_overrides([OverrideSettings("*", amax="mse")])
    """
    for item in overrides:
        if item.amax is not None:
            require_known("amax method", item.amax, (AUTO, *METHODS))
        if item.weight_amax is not None:
            require_known("amax method of weights", item.weight_amax, METHODS)


def settings_for(names: Names, settings: AmaxSettings, overrides: Iterable[OverrideSettings]) -> AmaxSettings:
    """Return the settings of a tensor: each override that matches one of its names changes what it sets.

    Edge case:
        A percentile without a method asks for the percentile method, as ``--percentile`` does.

    Example:
        >>> overrides = [OverrideSettings("layer3.*", amax="mse"), OverrideSettings("*.add", percentile=99.0)]
        >>> settings_for(["layer3.conv"], AmaxSettings(), overrides).method
        'mse'
        >>> settings_for(["layer3.add"], AmaxSettings(), overrides).method
        'percentile'
        >>> settings_for(["head"], AmaxSettings(), overrides) == AmaxSettings()
        True
    """
    for item in overrides:
        if matches(item.match, names):
            settings = _changed(settings, item)
    return settings


def require_matches(
    overrides: Iterable[OverrideSettings], activations: Sequence[Names], weights: Sequence[Names]
) -> None:
    """Raise if an override sets something that holds for no tensor.

    Args:
        overrides: of the recipe.
        activations: names of each activation that is quantized.
        weights: names of each weight that is quantized.

    Raises:
        RecipeValueError: an override matches nothing; the message has the nearest name.

    Example:
        >>> require_matches([OverrideSettings("stem*", amax="mse")], [["stem.conv"]], [])
        >>> require_matches([OverrideSettings("sten.conv", amax="mse")], [["stem.conv"]], [])
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.RecipeValueError: PTQ-RECIPE-003: [[override]] match = 'sten.conv' matches no \
activation that is quantized (did you mean 'stem.conv'?)
        hint: ptq inspect lists the layers; * stands for any part of a name
    """
    for item in overrides:
        kinds = []
        if item.amax is not None or item.activations is not None:
            kinds.append(("activation", activations))
        if item.weight_amax is not None or item.weights is not None:
            kinds.append(("weight", weights))
        if not kinds:  # a percentile alone
            kinds.append(("activation", activations))
        for kind, tensors in kinds:
            if not any(matches(item.match, names) for names in tensors):
                known = list(dict.fromkeys(name for names in tensors for name in names))
                raise RecipeValueError(
                    f"[[override]] match = '{item.match}' matches no {kind} that is quantized"
                    f"{nearest_match(item.match, known)}",
                    hint="ptq inspect lists the layers; * stands for any part of a name",
                )


def matches(pattern: str, names: Names) -> bool:
    """Tell whether a pattern matches one of a tensor's names.

    Example:
        >>> matches("layer3.*", ["x", "layer3.conv"]), matches("layer[3]", ["layer[3]"])
        (True, True)
    """
    # A name that holds [brackets] itself is matched by being written as it is.
    return any(name == pattern or fnmatchcase(name, pattern) for name in names)


def _changed(settings: AmaxSettings, override: OverrideSettings) -> AmaxSettings:
    if override.percentile is not None:
        settings = replace(settings, percentile=override.percentile)
        if override.amax is None and override.weight_amax is None:
            settings = replace(settings, method="percentile")
    if override.amax is not None:
        settings = replace(settings, method=override.amax)
    if override.weight_amax is not None:
        settings = replace(settings, weight_method=override.weight_amax)
    return settings


def nearest_match(match: str, known: list[str]) -> str:
    """Return what was perhaps meant: a name, or a pattern with its fixed beginning corrected.

    Example:
        >>> nearest_match("layr3.*", ["layer3.conv"])
        " (did you mean 'layer3.*'?)"
    """
    fixed = min((match.find(sign) for sign in WILDCARDS if sign in match), default=len(match))
    if fixed == len(match):
        return did_you_mean(match, known)
    # Beginnings that end as the pattern's does, so that layr3.* finds layer3.
    last = match[fixed - 1 : fixed]
    starts = [name[: index + 1] for name in known for index, sign in enumerate(name) if sign == last]
    found = did_you_mean(match[:fixed], list(dict.fromkeys(starts)))
    return found.replace("'?)", f"{match[fixed:]}'?)") if found else ""
