"""The profile of a model on a machine: a file that can be made on one machine and used on another."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ptq_cli.core.documents import FileFormat
from ptq_cli.core.errors import ProfileError


@dataclass(frozen=True)
class NodeTimes:
    """What a node takes."""

    floating: Annotated[
        float, "Microseconds in the float model; 0 where the runtime merges it into another node."
    ]
    integer: Annotated[float, "Microseconds in the model with everything in integers that can be."]


@dataclass(frozen=True, kw_only=True)
class MachineProfile:
    """How long each node of a model takes, in float and in integers."""

    FORMAT: ClassVar[FileFormat] = FileFormat(
        name="ptq.profile",
        version=1,
        noun="profile",
        error=ProfileError,
        hint="run ptq bench --operators again on the machine that the model is for",
    )

    model: Annotated[str, "SHA-256 of the float model's file."]
    target: Annotated[str, "The target whose rules decided what can be integer."]
    runtime: Annotated[str, "The runtime and its version."]
    machine: Annotated[str, "The processor, in words."]
    batch: Annotated[int, "Samples per run."]
    threads: Annotated[int, "Of one operator."]
    floating: Annotated[float, "Microseconds of a run of the two whole models."]
    integer: Annotated[float, "Microseconds of a run of the two whole models."]
    spread: Annotated[
        float,
        "The median run's time over a fast run's, of the model where that is larger; near 1 on a quiet "
        "machine.",
    ]
    seam_fixed: Annotated[
        float, "Microseconds that each tensor costs where integers become floats, or floats integers."
    ]
    seam_element: Annotated[float, "Microseconds for each of its elements."]
    nodes: Annotated[dict[str, NodeTimes], "By the node's name."]
    elements: Annotated[dict[str, int], "How many numbers each tensor has."]
    runtime_operators: Annotated[bool, "Whether that model had operators of the runtime's own."] = False
