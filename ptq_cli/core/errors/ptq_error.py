"""The base of every error that a user can meet: a code, one line that says what is wrong, and a hint."""

from typing import ClassVar

from ptq_cli.core.errors.error_text import cut

ERRORS = "ptq_cli.core.errors"


class PtqError(Exception):
    """Base of every error that is the input's fault, not a bug in ptq.

    Attributes:
        code: stable identifier, such as ``PTQ-DATA-002``.
        exit_status: what the command exits with.
        message: one line.
        hint: what to do about it, or an empty string.

    Example:
        >>> from ptq_cli.core.errors import DataShapeError
        >>> error = DataShapeError("input 'x' has shape (3, 8)", hint="pass --data with shape (3, 9)")
        >>> print(error)
        PTQ-DATA-003: input 'x' has shape (3, 8)
        hint: pass --data with shape (3, 9)
    """

    code: ClassVar[str] = "PTQ-000"
    exit_status: ClassVar[int] = 2

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        # A traceback names the place that programs import the class from, whichever file has it.
        if cls.__module__.startswith(f"{ERRORS}."):
            cls.__module__ = ERRORS

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = cut(" ".join(message.split()))
        self.hint = cut(" ".join(hint.split()))

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        return f"{text}\nhint: {self.hint}" if self.hint else text
