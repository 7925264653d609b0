"""Which amax settings hold for which tensor: the recipe's, changed by the overrides that match its names."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from ptq_cli.amax.method_registry import AUTO_METHOD, require_method
from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.words import did_you_mean
from ptq_cli.recipe.check import split_method
from ptq_cli.recipe.sections import AmaxSettings, OverrideSettings

WILDCARDS = "*?["
OF_LAYERS = ("mode", "granularity")  # Keys of ``[activations]`` that are of the layer that reads them.
_Names = Collection[str]


@dataclass(frozen=True)
class Meant:
    """What an override may mean a tensor or a layer by.

    Attributes:
        names: of a tensor its own, those of tensors that share its parameters, and its layer's.
        ops: operator types of those layers.
    """

    names: _Names
    ops: _Names = ()


def check_overrides(overrides: Iterable[OverrideSettings]) -> None:
    """Raise if an override names no method."""
    for item in overrides:
        if item.amax is not None and item.amax != AUTO_METHOD:
            require_method(split_method(item.amax)[0], more=(AUTO_METHOD,))
        if item.weight_amax is not None:
            require_method(split_method(item.weight_amax)[0], "amax method of weights")


class OverridesByName:
    """Overrides of a recipe: of hundreds that name a layer each, as ``tune`` writes them, few are compared.

    Example:
        >>> found = OverridesByName([OverrideSettings(match="a"), OverrideSettings(op="Conv")])
        >>> [item.match for item in found.of(Meant(["a"], ["Conv"]))], len(found.of(Meant(["b"], ["Gemm"])))
        (['a', None], 0)
    """

    def __init__(self, overrides: Iterable[OverrideSettings]) -> None:
        self._all = tuple(overrides)
        self._named: dict[str, list[int]] = {}
        self._others = []
        for place, item in enumerate(self._all):
            if item.match and not any(sign in item.match for sign in WILDCARDS):
                self._named.setdefault(item.match, []).append(place)
            else:
                self._others.append(place)

    def of(self, meant: Meant) -> list[OverrideSettings]:
        """Those that mean a tensor or a layer, in their order."""
        named = (place for name in meant.names for place in self._named.get(name, ()))
        return [item for place in sorted({*named, *self._others}) if means(item := self._all[place], meant)]


def settings_for(meant: Meant, settings: AmaxSettings, overrides: OverridesByName) -> AmaxSettings:
    """The settings of a tensor: each override that means it changes what it sets."""
    for item in overrides.of(meant):
        settings = _changed(settings, item)
    return settings


def require_matches(
    overrides: Sequence[OverrideSettings],
    activations: Sequence[Meant],
    weights: Sequence[Meant],
    layers: Sequence[Meant] = (),
) -> None:
    """Raise if an override sets something that holds for no tensor.

    Args:
        overrides: of the recipe.
        activations: each activation that is quantized.
        weights: each weight that is quantized.
        layers: each layer of the graph.

    Raises: RecipeValueError: an override matches nothing; the message has the nearest name.

    Example:
        >>> require_matches([OverrideSettings(match="stem*", amax="mse")], [Meant(["stem.conv"])], [])
        >>> require_matches([OverrideSettings(match="sten.conv", amax="mse")], [Meant(["stem.conv"])], [])
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.RecipeValueError: PTQ-RECIPE-003: [[override]] match = 'sten.conv' matches no \
activation that is quantized (did you mean 'stem.conv'?)
        hint: run `ptq inspect` to list the layers; * matches any part of a name
    """
    by_name = OverridesByName(overrides)
    found = {
        kind: {id(item) for meant in tensors for item in by_name.of(meant)}
        for kind, tensors in (("activation", activations), ("weight", weights), ("layer", layers))
    }
    for item in overrides:
        kinds = []
        if item.amax is not None or _describes_integers(item):
            kinds.append(("activation", activations))
        if item.weight_amax is not None or item.weights is not None:
            kinds.append(("weight", weights))
        if item.quantize is not None or _describes_layers(item):
            kinds.append(("layer", layers))
        for kind, tensors in kinds:
            if id(item) not in found[kind]:
                raise RecipeValueError(
                    f"{described(item)} matches no {kind}{'' if kind == 'layer' else ' that is quantized'}"
                    f"{_nearest(item, tensors)}",
                    hint="run `ptq inspect` to list the layers; * matches any part of a name",
                )


def _describes_layers(override: OverrideSettings) -> bool:
    settings = override.activations
    return settings is not None and any(getattr(settings, key) is not None for key in OF_LAYERS)


def _describes_integers(override: OverrideSettings) -> bool:
    """Whether an override says more of activations than a mode, which is a layer's."""
    settings = override.activations
    return settings is not None and any(
        value is not None for key, value in vars(settings).items() if key not in OF_LAYERS
    )


def means(override: OverrideSettings, meant: Meant) -> bool:
    """Whether an override means a tensor or a layer: by name, by operator type, or by both.

    Example:
        >>> conv = Meant(["stem.conv"], ["Conv"])
        >>> means(OverrideSettings(op="Conv"), conv), means(OverrideSettings(match="head.*", op="Conv"), conv)
        (True, False)
    """
    named = not override.match or matches(override.match, meant.names)
    return named and (not override.op or matches(override.op, meant.ops))


def described(override: OverrideSettings) -> str:
    """Say which override is meant, as a user wrote it.

    Example:
        >>> described(OverrideSettings(match="head.*", amax="mse"))
        "[[override]] match = 'head.*'"
        >>> described(OverrideSettings(op="Gemm", quantize=False))
        "exclude op = 'Gemm'"
    """
    keys = {"match": override.match, "op": override.op}
    text = ", ".join(f"{key} = '{value}'" for key, value in keys.items() if value)
    if override.quantize is None:
        return f"[[override]] {text}"
    return f"{'include' if override.quantize else 'exclude'} {text}"


def _nearest(override: OverrideSettings, tensors: Sequence[Meant]) -> str:
    ops = list(dict.fromkeys(op for meant in tensors for op in meant.ops))
    if override.op and not matches(override.op, ops):
        return nearest_match(override.op, ops)
    names = list(dict.fromkeys(name for meant in tensors for name in meant.names))
    return nearest_match(override.match or "", names)


def matches(pattern: str, names: _Names) -> bool:
    """Whether a pattern matches one of a tensor's names.

    Example:
        >>> matches("layer3.*", ["x", "layer3.conv"]), matches("layer[3]", ["layer[3]"])
        (True, True)
    """
    # A name that holds [brackets] itself is matched by being written as it is.
    return any(name == pattern or fnmatchcase(name, pattern) for name in names)


def _changed(settings: AmaxSettings, override: OverrideSettings) -> AmaxSettings:
    for key, text in (("method", override.amax), ("weight_method", override.weight_amax)):
        if text is not None:
            method, percentile = split_method(text)
            changes: dict[str, Any] = (
                {key: method} if percentile is None else {key: method, "percentile": percentile}
            )
            settings = replace(settings, **changes)
    return settings


def nearest_match(match: str, known: list[str]) -> str:
    """Text about the nearest match: a name, or a pattern with its fixed beginning corrected.

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
