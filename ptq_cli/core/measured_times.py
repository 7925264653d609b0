"""When a measured time says something about a model: it is long enough, and the machine was idle enough."""

# Seconds: a call of ONNX Runtime takes 5 to 6 µs itself, so that shorter runs do not tell models apart.
SHORTEST_RUN = 20e-6
# Median run over a fast one: above it, other work on the machine decides what is measured.
MOST_SPREAD = 2.0


def too_spread(spread: float) -> str:
    """Warning that the machine is too busy, with what to do; empty if it is not.

    ``spread`` is the median run's time over a fast run's.

    Example:
        >>> too_spread(1.4), too_spread(3.0)[:46]
        ('', 'the machine is busy: the median run takes 3.0 ')
    """
    if spread <= MOST_SPREAD:
        return ""
    return (
        f"the machine is busy: the median run takes {spread:.1f} times as long as a fast one; "
        "try again when it is idle"
    )
