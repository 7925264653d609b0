"""Which keys of the recipe a keyword argument of Python, or a flag of the same name, sets."""

from collections.abc import Mapping
from typing import Any

from ptq_cli.core.errors import UsageError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.recipe.schema import SETTINGS, instead_of

FLAG_KEYS = {declared.name: key for key, declared in SETTINGS.items() if declared.name}  # Key by name.

# Flags of which each value is an override: the key that it is a pattern for, and ``quantize``.
OVERRIDE_FLAGS: dict[str, tuple[str, bool]] = {
    "include": ("match", True),
    "include_op": ("op", True),
    "exclude": ("match", False),
    "exclude_op": ("op", False),
}
# The flag for whole overrides. Overrides of flags follow those of the recipe, in this order.
OVERRIDE = "override"


def settings_to_table(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their names as a recipe's nested tables.

    A key that has no name, such as ``model.path``, is its own.

    Edge case: A percentile alone also sets the method to percentile, because no other method has one. With
        ``weight_amax="percentile"`` it is for the weights.
    """
    table: dict[str, Any] = {}
    known = [*FLAG_KEYS, *OVERRIDE_FLAGS, OVERRIDE]
    for name, value in settings.items():
        if name not in known and "." not in name:
            raise UsageError(
                f"there is no setting '{name}'{did_you_mean(name, known)}",
                hint=instead_of(name) or f"settings: {', '.join(known)}",
            )
        section, dot, field = FLAG_KEYS.get(name, name).partition(".")
        if dot:
            table.setdefault(section, {})[field] = value
    if "percentile" in settings and "amax" not in settings and settings.get("weight_amax") != "percentile":
        table["amax"]["method"] = "percentile"
    for name in (*OVERRIDE_FLAGS, OVERRIDE):
        # A text would be taken for the list of its characters.
        if not isinstance(settings.get(name, ()), (list, tuple)):
            raise UsageError(f"'{name}' is {settings[name]!r:.80}, expected a list", hint=f"correct '{name}'")
    overrides = [
        {key: pattern, "quantize": quantize}
        for name, (key, quantize) in OVERRIDE_FLAGS.items()
        for pattern in settings.get(name, ())
    ]
    overrides += settings.get(OVERRIDE, ())
    return {**table, "override": overrides} if overrides else table
