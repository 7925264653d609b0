"""What is declared of a setting, once: its default, its limits, and its sentence; names of modes and rungs.

A section is a dataclass whose fields are made by ``setting``. The decoder, the checks, the keyword arguments
of Python, the JSON Schema, the reference page and the help of flags are made from what is declared there.
"""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import Any, get_args

DECLARED = "declared"
DERIVED = "*"
REQUIRED: Any = MISSING  # The default of a setting that has to be given.


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A declared setting.

    Attributes:
        help: one sentence that says what it is, with Markdown's backquotes around what is typed.
        name: of the keyword argument and the flag, with underscores; empty if it has neither. ``DERIVED`` is
            the key's own, with the prefix of the section.
        low: the smallest value.
        high: the largest value.
        above: a number that it must exceed.
        choices: the texts that it, or an entry of its list, may be; a mapping says what each means.
        names: what it is the name of, if only a room above this one knows the names: ``"collector"``.
        is_open: other texts than the choices and names are allowed, such as a file.
        parse: returns None or 0 for a text that it may not be; an empty text is allowed.
        wanted: what it must be, in words; empty where any value of its type will do.
        is_location: it is a path or ``file.py:callable``.
        is_entry_point: its texts are names or entry points; the file of ``file.py:callable`` is resolved.
        takes_objects: Python takes an object in its place, too.
        key: with its section, such as ``"amax.bins"``; ``settings_of`` sets this and what follows.
        type: the declared type, without None.
        default: the value where nothing sets it, None if there is none, or ``REQUIRED``.
    """

    help: str
    name: str = DERIVED
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: Collection[str] = ()
    names: str = ""
    is_open: bool = False
    parse: Callable[[str], object] | None = None
    wanted: str = ""
    is_location: bool = False
    is_entry_point: bool = False
    takes_objects: bool = False
    key: str = ""
    type: Any = None
    default: Any = None

    def allows(self, value: Any) -> bool:
        """Whether a value of its type is within the declared limits.

        Edge case: None is allowed, as nothing is set then. NaN is not if there is a limit.
        """
        if isinstance(value, str):
            is_known = not self.choices or self.is_open or value in self.choices
            return is_known and (self.parse is None or not value or bool(self.parse(value)))
        if not isinstance(value, int | float) or isinstance(value, bool):
            return True
        # Written so that NaN fails each.
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
        )

    def sentence(self) -> str:
        """The help, with what the setting must be behind its first sentence, if it does not say so.

        Example:
            >>> Setting(help="Samples per batch; it changes nothing.", wanted="at least 1").sentence()
            'Samples per batch (at least 1); it changes nothing.'
        """
        says_it = self.choices and all(f"`{name}`" in self.help for name in self.choices)
        if not self.wanted or says_it or self.type is bool:
            return self.help
        end = re.search(r"[;.](?= |$)", self.help)
        where = end.start() if end else len(self.help)
        return f"{self.help[:where]} ({self.wanted.replace(chr(39), '`')}){self.help[where:]}"


def setting(default: Any, help: str, **declared: Any) -> Any:
    """A field of a section; ``declared`` are other attributes of ``Setting``.

    Each section gets its own copy of a default that is a list or a table.
    """
    made = Setting(help=help, **{"wanted": _wanted(**declared), **declared})
    metadata = {
        DECLARED: made,
        "location": made.is_location,
        "or_name": made.is_open,
        "entry_points": made.is_entry_point,
    }
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def one_of(names: Collection[str]) -> str:
    """Names as a message lists them.

    Example:
        >>> one_of(["accuracy", "latency", "size"]), one_of(["drop", "pad"])
        ("'accuracy', 'latency' or 'size'", "'drop' or 'pad'")
    """
    *others, last = (f"'{name}'" for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def _wanted(
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: Collection[str] = (),
    is_open: bool = False,
    **declared: Any,
) -> str:
    if choices and not is_open:
        return one_of(choices)
    if above is not None:
        return f"above {above}" + (f" and at most {high}" if high is not None else "")
    if low is None:
        return "true or false" if declared.get("type") is bool else ""
    return f"{low} to {high}" if high is not None else f"at least {low}"


def settings_of(section_type: type, section: str = "", prefix: str = "") -> Iterator[Setting]:
    """Yield what a section declares, in order; ``prefix`` begins names where none is declared.

    Example:
        >>> from ptq_cli.recipe.sections import ImageSettings
        >>> [item.name for item in settings_of(ImageSettings, "image")][:3]
        ['image_mode', 'resize', 'crop']
    """
    for item in fields(section_type):
        declared: Setting = item.metadata[DECLARED]
        kind = without_none(item.type)
        yield replace(
            declared,
            name=f"{prefix}{item.name}" if declared.name == DERIVED else declared.name,
            key=f"{section}.{item.name}" if section else item.name,
            type=kind,
            wanted=declared.wanted or ("true or false" if kind is bool else ""),
            default=item.default if item.default_factory is MISSING else item.default_factory(),
        )


def without_none(kind: Any) -> Any:
    """A declared type without its None.

    Example:
        >>> without_none(int | None), without_none(float | str)
        (<class 'int'>, float | str)
    """
    if not isinstance(kind, UnionType) or NoneType not in get_args(kind):
        return kind
    first, *others = (item for item in get_args(kind) if item is not NoneType)
    for other in others:
        first |= other
    return first


STATIC, DYNAMIC, FLOAT = "static", "dynamic", "float"
ROW, TENSOR = "row", "tensor"
STATEMENT_SUFFIX = ".intoto.json"  # of the file that says what a model was made from
# Units that share a scale of activations that become integers at each run.
GRANULARITIES = {ROW: "one scale per row of summed values", TENSOR: "one scale and zero point per tensor"}
# Modes of activations, with what each does.
MODES = {
    STATIC: "quantize activations with calibrated ranges",
    DYNAMIC: "quantize activations with ranges found at each run; no calibration data needed",
    FLOAT: "quantize weights only; no calibration data needed",
}
EQUALIZE, SMOOTH, RANGES, ROUND = "equalize", "smooth", "ranges", "round"
IN_FLOAT, BITS = "float", "bits"
# Rungs in the order in which they run, with what each does.
RUNGS = {
    EQUALIZE: "equalize channel ranges of layers before calibration",
    SMOOTH: "the same for channels of normalizations, and through attention",
    RANGES: "choose the range of each activation by its effect on the outputs",
    IN_FLOAT: "leave a few layers in float, or find ranges at each run, where outputs are below 22 dB",
    BITS: "where only weights are quantized, give more bits to those that cost the outputs most",
    ROUND: "choose scales, integers and biases of each layer by what it reads and what earlier layers lost",
}
ALL, NONE, AUTO = "all", "none", "auto"
