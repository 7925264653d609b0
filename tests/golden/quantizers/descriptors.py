"""Replay recorded cases of NVIDIA's descriptors against ptq's."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ptq_cli.quantizers.scaled import descriptor as predefined
from ptq_cli.quantizers.scaled.descriptor import QuantDescriptor
from tests.golden.verdicts import Arrays, Case, OnPurposeError, kind_of, require

ON_PURPOSE = {
    "descriptors with arrays": "theirs cannot be compared when amax is an array; ours can",
    "older version": "recorded from 2.1.2; ours follows 2.2.1, which has E4M3 and axis 1 for ConvTranspose",
}


def read(value: Any) -> Any:
    """Return what a stand-in of the index stands for."""
    if not isinstance(value, dict):
        return value
    makers: dict[str, Callable[[], Any]] = {
        "tuple": lambda: tuple(value["tuple"]),
        "ndarray": lambda: np.array(value["ndarray"], dtype=value["dtype"]).reshape(value["shape"]),
        "numpy_scalar": lambda: np.dtype(value["numpy_scalar"]).type(value["value"]),
        "bytes": lambda: bytes(value["bytes"], "ascii"),
    }
    return makers[next(key for key in value if key in makers)]()


def make(kwargs: dict[str, Any]) -> QuantDescriptor:
    """Return the descriptor of recorded arguments."""
    return QuantDescriptor(**{key: read(value) for key, value in kwargs.items()})


def replay_descriptor(case: Case, _arrays: Arrays) -> None:
    """Compare the fields, the text and what is written, or the kind of exception."""
    try:
        descriptor = make(case["params"]["kwargs"])
    except (TypeError, ValueError) as error:
        require("raises" in case, f"ours raises {type(error).__name__}: {error}")
        require(isinstance(error, kind_of(case)), f"ours raises {type(error).__name__}")
        return
    if "raises" in case:
        if "older_version" in case["tags"] and descriptor.num_bits == (4, 3):
            raise OnPurposeError("older version")
        require(False, f"the reference raises {case['raises']}, ours does not")
    values = case["values"]
    for field, recorded in {**values["properties"], **values["dict"]}.items():
        found, wanted = getattr(descriptor, field), read(recorded)
        require(np.array_equal(found, wanted) and found is not NotImplemented, f"{field} is {found!r}")
        require(type(found) is type(wanted) or field == "amax", f"{field} is a {type(found).__name__}")
    require(str(descriptor) == values["str"], f"its text is {descriptor}")
    require(QuantDescriptor.from_toml(descriptor.to_toml()) == descriptor, "it does not come back from TOML")


def replay_equality(case: Case, _arrays: Arrays) -> None:
    """Compare two descriptors."""
    equal = make(case["params"]["kwargs"]) == make(case["params"]["other"])
    if "raises" in case:
        require(equal, "equal descriptors differ")
        raise OnPurposeError("descriptors with arrays")
    require(equal is case["values"]["equal"], f"equal is {equal}")


def replay_predefined(case: Case, _arrays: Arrays) -> None:
    """Compare every field of every predefined descriptor."""
    for name, properties in case["values"].items():
        for field, recorded in properties.items():
            found = getattr(getattr(predefined, name), field)
            if found != recorded and "older_version" in case["tags"] and "CONVTRANSPOSE" in name:
                raise OnPurposeError("older version")
            require(found == recorded, f"{field} of {name} is {found!r}")
