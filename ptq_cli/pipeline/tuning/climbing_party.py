"""The processes that climb together under ``torchrun``: they measure in parts, and do the same next."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ptq_cli.pipeline.calibration.run_calibrate import machine_of_rank
from ptq_cli.pipeline.run.resolve import Resolved

if TYPE_CHECKING:
    from ptq_cli.pipeline.calibration.torchrun.distributed import Group


@dataclass(frozen=True)
class Party:
    """One or several processes.

    Every process makes each candidate, which comes out the same on all; what is measured on samples is shared
    out, and what a clock or a folder says is what they say to the first process.

    Attributes:
        group: the processes; None of a single one.

    Example:
        >>> alone = Party()
        >>> alone.is_first, alone.agreed(lambda: True), alone.told(lambda: b"profile")
        (True, True, b'profile')
    """

    group: "Group | None" = None

    @property
    def is_first(self) -> bool:
        """Whether this one writes."""
        return self.group is None or self.group.ranks.is_first

    def go_on(self) -> None:
        """Say that there is progress, and raise what another process has raised.

        Raises:
            PtqError: another process's.
        """
        if self.group is not None:
            self.group.after_batch(0, 0)

    def told(self, make: Callable[[], bytes]) -> bytes:
        """Return what the first process makes, on all of them.

        Raises:
            PtqError: another process's.
        """
        if self.group is None:
            return make()
        return self.group.announce(make() if self.is_first else b"", self.group.next_place())

    def agreed(self, ask: Callable[[], bool]) -> bool:
        """Return what the first process answers, on all of them."""
        return bool(self.told(lambda: b"yes" if ask() else b""))

    def of_rank(self, resolved: Resolved) -> Resolved:
        """Return a recipe with this process's own part of the machine."""
        if self.group is None:
            return resolved
        return replace(resolved, machine=machine_of_rank(resolved.machine, self.group.ranks))
