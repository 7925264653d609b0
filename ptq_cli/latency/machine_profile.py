"""The profile of a model on a machine: a file that can be made on one machine and used on another.

The dataclasses are the format. A change that adds or changes a key must raise ``FORMAT_VERSION``.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ptq_cli.core.decoding import decode, encode, strict_json
from ptq_cli.core.errors import ProfileError, ReportError
from ptq_cli.core.read_files import read_file

FORMAT = "ptq.profile"
FORMAT_VERSION = 1
HINT = "run ptq profile again on the machine that the model is for"


@dataclass(frozen=True)
class NodeTimes:
    """What a node takes.

    Attributes:
        floating: microseconds in the float model; 0 where the runtime merges it into another node.
        integer: microseconds in the model with everything in integers that can be.
    """

    floating: float
    integer: float


@dataclass(frozen=True, kw_only=True)
class MachineProfile:
    """How long each node of a model takes, in float and in integers.

    Attributes:
        model: SHA-256 of the float model's file.
        target: the target whose rules decided what can be integer.
        runtime_operators: whether that model had operators of the runtime's own.
        runtime: the runtime and its version.
        machine: the processor, in words.
        batch: samples per run.
        threads: of one operator.
        floating, integer: microseconds of a run of the two whole models.
        spread: the median run's time over a fast run's, of the model where that is larger; near 1 on a quiet
            machine.
        seam_fixed: microseconds that each tensor costs where integers become floats, or floats integers.
        seam_element: microseconds for each of its elements.
        nodes: by the node's name.
        elements: how many numbers each tensor has.
    """

    model: str
    target: str
    runtime: str
    machine: str
    batch: int
    threads: int
    floating: float
    integer: float
    spread: float
    seam_fixed: float
    seam_element: float
    nodes: dict[str, NodeTimes]
    elements: dict[str, int]
    runtime_operators: bool = False
    format: Literal["ptq.profile"] = "ptq.profile"
    version: int = FORMAT_VERSION


def profile_to_json(profile: MachineProfile) -> bytes:
    """Return a profile as the content of its file."""
    return (json.dumps(encode(profile), indent=1) + "\n").encode()


def load_profile(path: Path) -> MachineProfile:
    """Read the file of a profile.

    Raises:
        InputFileError: it is missing or unreadable.
        ProfileError: it is damaged, or of another version.
    """
    try:
        table = strict_json(read_file(path, "profile"))
        if (
            isinstance(table, dict)
            and table.get("format") == FORMAT
            and table.get("version") != FORMAT_VERSION
        ):
            found = table.get("version")
            raise ProfileError(
                f"'{path.name}' has format version {found}, expected {FORMAT_VERSION}", hint=HINT
            )
        return decode(MachineProfile, table, f"'{path.name}'")  # type: ignore[no-any-return]
    except (ReportError, ValueError, RecursionError) as error:
        reason = error.message if isinstance(error, ReportError) else str(error)
        raise ProfileError(f"'{path.name}' is not a profile of ptq: {reason}", hint=HINT) from error
