"""What a user should know of a result although nothing failed."""

from dataclasses import dataclass
from typing import Literal

WarningCode = Literal[
    "larger_than_float", "few_integers", "low_sqnr", "slower_than_float", "other_operators", "saturating_sums"
]


@dataclass(frozen=True)
class ReportWarning:
    """What a user should know although nothing failed.

    Attributes:
        code: which of the warnings: ``larger_than_float``, ``few_integers``, ``low_sqnr``,
            ``slower_than_float``, ``other_operators`` or ``saturating_sums``.
        message: what was found, with the reasons.
        hints: what to try, most promising first.
    """

    code: WarningCode
    message: str
    hints: tuple[str, ...] = ()
