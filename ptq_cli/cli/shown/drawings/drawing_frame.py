"""What drawings made of characters share: the left margin, and the labels below the axis."""

from ptq_cli.report.text.numbers import format_number

MARGIN = 14
NARROWEST = 16
LABEL = MARGIN - 2


def axis_labels(low: float, high: float, columns: int) -> str:
    """Write both ends of the axis, and 0 if there is room for it between them.

    Example:
        >>> axis_labels(-1.0, 3.0, 20)
        '-1   0             3'
        >>> axis_labels(0.0, 3.0, 20)
        '0                  3'
    """
    left, right = format_number(low), format_number(high)
    line = left.ljust(columns - len(right)) + right
    zero = round(-low / (high - low) * (columns - 1))
    if len(left) < zero < columns - len(right) - 1 and line[zero - 1 : zero + 2].isspace():
        line = line[:zero] + "0" + line[zero + 1 :]
    return line
