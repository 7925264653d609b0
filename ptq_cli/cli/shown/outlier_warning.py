"""The warning about weights with outliers: one line on stderr, whatever the command prints."""

from collections.abc import Mapping

from ptq_cli.cli.terminal.output import warn

NAMED = 2
"""Most further weights that the warning names."""


def warn_of_outliers(outliers: Mapping[str, str]) -> None:
    """Print on stderr which weights have outliers, if any."""
    if outliers:
        warn(outlier_line(outliers))


def outlier_line(outliers: Mapping[str, str]) -> str:
    """Return the warning.

    Example:
        >>> outlier_line({"fc.weight": "a value is 99 times the mean of others"})
        "'fc.weight': a value is 99 times the mean of others; pass --set amax.weight_method=mse to clip it"
    """
    (name, what), *rest = outliers.items()
    others = [f"'{other}'" for other, _ in rest]
    also = f"; also in {', '.join(others[:NAMED])}" if others else ""
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    fix = (
        "pass --set weights.granularity=channel to give each its own scale" if "share a scale" in what else ""
    )
    return f"'{name}': {what}{also}{more}; {fix or 'pass --set amax.weight_method=mse to clip it'}"
