"""Which samples a model has right, as text: small enough for a report, and two of them can be paired."""

from collections.abc import Sequence

from ptq_cli.core.errors import ReportError
from ptq_cli.report.intervals.flips import Flips

SAMPLES_A_DIGIT = 4


def hits_to_text(hits: Sequence[bool]) -> str:
    """Return hits in hexadecimal: four samples a digit, the first in the highest bit, zeros at the end.

    Shapes:
        hits [N], N at least 1; the text has N / 4 digits, rounded up.

    Edge case:
        50,000 samples take 12.5 kB.

    Example:
        >>> hits_to_text([True, False, False, True, True])
        '98'
    """
    digits = -(-len(hits) // SAMPLES_A_DIGIT)
    bits = "".join("1" if hit else "0" for hit in hits).ljust(digits * SAMPLES_A_DIGIT, "0")
    return f"{int(bits, 2):0{digits}x}"


def require_hits(text: str, samples: int, share: float, where: str) -> None:
    """Refuse hits that are not those of so many samples, or that make another share.

    Raises:
        ReportError: they are not; ``where`` is their place in the report.

    Example:
        >>> require_hits("98", samples=5, share=0.6, where="metrics[0].quantized_hits")
    """
    digits = -(-samples // SAMPLES_A_DIGIT)
    spare = digits * SAMPLES_A_DIGIT - samples
    bits = int(text, 16)
    if len(text) != digits or bits % 2**spare or abs(bits.bit_count() / samples - share) > 1e-9:
        raise ReportError(
            f"'{where}' does not fit the report's samples and value",
            hint="run ptq evaluate again",
        )


def flips_between(before: str, after: str, samples: int) -> Flips:
    """Return the flips from one model's hits to another's on the same samples.

    Shapes:
        both texts are of ``samples`` hits.

    Units:
        samples.

    Edge case:
        Equal texts have no flips.

    Source:
        McNemar 1947, "Note on the sampling error of the difference between correlated proportions or
        percentages".

    Example:
        >>> flips = flips_between("98", "f0", samples=5)
        >>> flips.lost, flips.gained
        (1, 2)
    """
    old, new = int(before, 16), int(after, 16)
    return Flips.counted(samples, (old & ~new).bit_count(), (new & ~old).bit_count())
